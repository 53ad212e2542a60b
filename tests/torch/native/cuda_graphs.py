"""Count the replays of CUDA graphs; on the CPU, with a stand-in for them.

The stand-in records the operators that run during a capture, and replays them in the same memory. A replay
first overwrites what the last one computed. As on a GPU, a capture fails if Python reads a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from multifit.torch import cuda_graphs
from tests.torch.place import DEVICE

__all__ = ["counted_replays"]


class Recorder(TorchDispatchMode):
    """Records operators with the tensors that they read and wrote."""

    def __init__(self, calls: list[Any]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\n…")
        result = function(*args, **(kwargs or {}))
        self._calls.append((function, args, kwargs or {}, result))
        return result


class Graph:
    """A recording."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def capture_begin(self, **options: Any) -> None:
        """Do nothing; operators are recorded within `torch.cuda.graph`."""

    capture_end = capture_begin

    def replay(self) -> None:
        """Compute the results again."""
        with torch.no_grad():
            for new in self._new():
                new.fill_(float("nan") if new.is_floating_point() else 77)
            for function, args, kwargs, result in self.calls:
                again = function(*args, **kwargs)
                for old, new in zip(_owned(args, kwargs, result), _owned(args, kwargs, again)):
                    old.copy_(new)

    def _new(self) -> Iterator[torch.Tensor]:
        for _, args, kwargs, result in self.calls:
            yield from _owned(args, kwargs, result)


def _owned(args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """Return the results that are new memory, rather than views of arguments."""
    given = {
        t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)
    }
    tensors = [each.detach() for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
    return [each for each in tensors if each.untyped_storage().data_ptr() not in given]


@contextmanager
def _capturing(graph: Graph, *, pool: Any, stream: _Stream, capture_error_mode: str) -> Iterator[None]:
    with Recorder(graph.calls):
        yield


class _Stream:
    def wait_stream(self, other: Any) -> None:
        """Do nothing: there is one stream."""


def _has_ended(device: int, pool: Any) -> None:
    raise RuntimeError("nothing is allocated from this pool")


class Replays:
    """The number of replays of all graphs."""

    count = 0


def counted_replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    """Let steps be captured on the device of the tests, and count the replays."""
    if DEVICE.type != "cuda":
        _capture_on_the_cpu(monkeypatch)
        monkeypatch.setattr(cuda_graphs, "CAPTURES", {"cpu"})
    replays, replay = Replays(), torch.cuda.CUDAGraph.replay

    def count(graph: Any) -> None:
        replays.count += 1
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", count)
    return replays


def _capture_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("current_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: _Stream())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", _has_ended, raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    for name in ("memory_reserved", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 0)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", _capturing)
