"""Runs the engine's batches: training steps, evaluations, predictions and trial runs."""
