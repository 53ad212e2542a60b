"""Count the replays of CUDA graphs of the engine that runs traced graphs; see `native.cuda_graphs`."""

import pytest

from multifit.torch.traced import computation

from .native import cuda_graphs

__all__ = ["counted_replays"]


def counted_replays(monkeypatch: pytest.MonkeyPatch) -> cuda_graphs.Replays:
    """Let programs be captured on the device of the tests, and count the replays."""
    return cuda_graphs.counted_replays(monkeypatch, computation)
