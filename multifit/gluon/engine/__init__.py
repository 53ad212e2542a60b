"""The engine of an estimator: its model and trainers, with their stages, readers and batch splitters."""

from .engine import Engine
from .make_engine import make_engine
from .splitters import AnySplitter
from .windows import Windows

__all__ = ["AnySplitter", "Engine", "Windows", "make_engine"]
