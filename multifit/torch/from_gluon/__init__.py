"""Gluon nets on PyTorch: converts what is declared for a Gluon net into what a module would declare."""

from .bridge import Bridge, converted

__all__ = ["Bridge", "converted"]
