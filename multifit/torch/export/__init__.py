"""Export of a translated net to files that need only torch."""
