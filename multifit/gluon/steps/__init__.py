"""Runs the engine's batches: training steps, evaluations, predictions, and runs for trial."""
