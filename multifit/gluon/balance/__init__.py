"""Runs a method of balancing on the losses or the gradients of a training step."""
