"""A step's computation: the net, its losses and device metrics, as graphs."""
