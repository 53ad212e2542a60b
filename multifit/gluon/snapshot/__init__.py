"""Save and load the engine's part of a run, without pickle: parameters, trainers, figures, random states."""
