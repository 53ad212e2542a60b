"""The version of multifit."""

__version__ = "0.1.0"
