"""Optimizers that compute MXNet's numbers."""
