"""What an engine is to the rest of the package, and which engines there are."""

from .registry import AUTO, CUDA_GRAPHS, ENGINES, FORMATS, choose_engine, engine_module, needs_torch
from .runner import FirstBatches, Peeked, Runner, Setup, Timer, untimed

__all__ = [
    "AUTO",
    "CUDA_GRAPHS",
    "ENGINES",
    "FORMATS",
    "FirstBatches",
    "Peeked",
    "Runner",
    "Setup",
    "Timer",
    "choose_engine",
    "engine_module",
    "needs_torch",
    "untimed",
]
