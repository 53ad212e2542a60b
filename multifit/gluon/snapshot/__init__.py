"""Save and load the engine's part of a run: parameters, trainers, figures, random states; no pickle."""
