"""Runs a method of balancing on the losses of a training step."""
