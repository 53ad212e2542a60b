"""What an engine is to the rest of the package, and which engines there are."""

from .engine import Engine, Reader
from .first_batch import FirstBatches, Peeked
from .registry import AUTO, CUDA_GRAPHS, ENGINES, FORMATS, choose_engine, engine_module, needs_torch
from .runner import DryRun, PhasedStep, Runner, TrainStep
from .setup import Setup
from .timing import Timer, untimed

__all__ = [
    "AUTO",
    "CUDA_GRAPHS",
    "ENGINES",
    "FORMATS",
    "DryRun",
    "Engine",
    "FirstBatches",
    "Peeked",
    "PhasedStep",
    "Reader",
    "Runner",
    "Setup",
    "Timer",
    "TrainStep",
    "choose_engine",
    "engine_module",
    "needs_torch",
    "untimed",
]
