"""The engine of an estimator: its model and trainers, with their stages, readers and batch splitters."""

from .engine import AnySplitter, Engine

__all__ = ["AnySplitter", "Engine"]
