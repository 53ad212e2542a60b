"""Computes a step: the net, its losses and device metrics, as graphs."""
