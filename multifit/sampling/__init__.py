"""Which of several loaders gives the next batch: ``fit({"a": …, "b": …}, sampling=Proportional())``.

No way of sampling needs an engine.
"""

from .loaders import COUNTS, LoaderCounts, TaskBatch, TaskLoaders
from .ways import Proportional, Ratios, RoundRobin, Sampling, Together, Update

__all__ = [
    "COUNTS",
    "LoaderCounts",
    "Proportional",
    "Ratios",
    "RoundRobin",
    "Sampling",
    "TaskBatch",
    "TaskLoaders",
    "Together",
    "Update",
]
