"""Which of several loaders gives the next batch: ``fit({"a": …, "b": …}, sampling=Proportional())``.

Each way of sampling has its own file, and needs no engine.
"""

from .proportional import Proportional
from .protocol import Sampling
from .ratios import Ratios
from .round_robin import RoundRobin
from .task_batch import TaskBatch
from .task_loaders import COUNTS, TaskLoaders
from .together import Together
from .updates import Update

__all__ = [
    "COUNTS",
    "Proportional",
    "Ratios",
    "RoundRobin",
    "Sampling",
    "TaskBatch",
    "TaskLoaders",
    "Together",
    "Update",
]
