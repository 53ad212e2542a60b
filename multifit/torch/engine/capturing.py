"""What surrounds the capture of CUDA graphs."""

from __future__ import annotations

import gc
import warnings
from contextlib import contextmanager, suppress
from typing import Any, Iterator, Mapping

import torch

ERROR_MODE = "thread_local"  # CUDA forbids what is unsafe during a capture in this thread alone


@contextmanager
def capturing(stream: Any) -> Iterator[Mapping[str, Any]]:
    """Yield options for the graphs of one computation, which are captured in the block, on one stream.

    Operators must have run on the stream before, to allocate and to choose algorithms. The graphs share a
    pool of memory, because they are replayed in the order in which they are captured. Torch's default stream
    for captures belongs to the device that captured first, so it may be another GPU's. Other threads may use
    CUDA meanwhile, as a loader's that pins memory does.
    """
    pool = torch.cuda.graph_pool_handle()
    # The workspaces of cuBLAS then come from the pool. Other code, such as a graph that is deleted, frees
    # those of the stream, and a replay would write to memory that is not its own.
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with _no_garbage_collection():
            yield {"pool": pool, "stream": stream, "capture_error_mode": ERROR_MODE}
    except RuntimeError:
        _recover(pool)
        raise


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep garbage, which may contain other graphs: the end of one would end a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _recover(pool: Any) -> None:
    """End what a capture that failed has left open in some versions of PyTorch.

    Its memory would remain reserved. Random numbers, which are counted by graphs during captures, could not
    be drawn before the end of another capture.
    """
    with suppress(RuntimeError, AttributeError):  # it has ended, or this version has no such function
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    empty = torch.cuda.CUDAGraph()
    with suppress(RuntimeError), warnings.catch_warnings(), torch.cuda.stream(torch.cuda.Stream()):
        warnings.simplefilter("ignore")  # PyTorch warns of graphs that are empty
        empty.capture_begin(capture_error_mode=ERROR_MODE)
        empty.capture_end()
