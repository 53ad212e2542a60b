"""Optimizers with MXNet's numbers: one rule a file, each moving a list of tensors at once."""
