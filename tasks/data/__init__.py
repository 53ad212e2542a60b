"""The tasks' data: generated, or read from the files of a data set."""
