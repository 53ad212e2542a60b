"""Optimizers that compute MXNet's numbers: one rule per file, each for a list of tensors at once."""
