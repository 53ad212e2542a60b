"""A loader's workers and signals; tests/cli/test_resume.py sends them to all processes of a run."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from multifit.gluon.data import worker_signals


class Now:
    """A thread that runs where it is started."""

    def __init__(self, target: Any, args: Any) -> None:
        self.start = lambda: target(*args)


def test_a_worker_outlives_signals_until_it_has_lost_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    set_here: dict[int, Any] = {}
    parents, ended = iter([5, 5, 1]), []
    monkeypatch.setattr(signal, "signal", set_here.__setitem__)
    worker_signals.outlive_signals()  # in no worker
    assert not set_here
    monkeypatch.setattr(worker_signals, "LOOK", 0)
    monkeypatch.setattr(worker_signals, "parent_process", lambda: SimpleNamespace(pid=5))
    monkeypatch.setattr(worker_signals.threading, "Thread", lambda target, args, daemon: Now(target, args))
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", ended.append)
    worker_signals.outlive_signals()
    assert set_here.keys() == {signal.SIGTERM, signal.SIGHUP}
    set_here[signal.SIGTERM](signal.SIGTERM, None)
    assert ended == [1] and not [*parents]
