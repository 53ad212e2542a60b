"""What an engine is to the rest of the package, and which engines there are."""

from .arrays import Arrays
from .dry_run import DryRun
from .engine import Engine, Setup
from .first_batches import FirstBatches, Peeked
from .handle import CONTROLS, TrainerHandle
from .registry import (
    AUTO,
    CUDA_GRAPHS,
    ENGINES,
    FORMATS,
    PRECISIONS,
    choose_engine,
    engine_module,
    library_of,
    needs_torch,
    precision_name,
)
from .result import StepResult
from .session import Session
from .train_step import Timer, TrainStep, untimed
from .trainers import Trainers

__all__ = [
    "AUTO",
    "CONTROLS",
    "CUDA_GRAPHS",
    "ENGINES",
    "FORMATS",
    "PRECISIONS",
    "Arrays",
    "DryRun",
    "Engine",
    "FirstBatches",
    "Peeked",
    "Session",
    "Setup",
    "StepResult",
    "Timer",
    "TrainStep",
    "TrainerHandle",
    "Trainers",
    "choose_engine",
    "engine_module",
    "library_of",
    "needs_torch",
    "precision_name",
    "untimed",
]
