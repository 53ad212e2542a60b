"""The engine of an estimator: its model and trainers, with their stages, readers and batch splitters."""

from .engine import Engine

__all__ = ["Engine"]
