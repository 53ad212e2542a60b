"""Calls in a thread: what they return and raise, in time or not."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from multifit.distributed.call_thread import CallThread, Late, result


def fail(error):
    raise error


def test_a_call_returns_and_raises_what_the_function_does():
    thread = CallThread()
    assert thread.call(5, max, 1, 2) == 2
    for error in (ValueError("no"), TimeoutError("its own"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            thread.call(5, fail, error)
        assert caught.value is error


def test_a_call_that_takes_too_long_is_late_and_goes_on():
    thread, go = CallThread(), threading.Event()
    late = thread.begin(go.wait)
    with pytest.raises(Late):
        result(late, 0.01)
    following = thread.begin(max, 1, 2)
    assert not following.done()
    go.set()
    assert result(late, 20) is True and result(following, 20) == 2


def test_a_call_that_returns_at_the_last_moment_is_not_late(monkeypatch):
    future: Future[int] = Future()
    wait = future.result

    def too_late(seconds=None):
        if seconds is not None:
            future.set_result(3)
            raise TimeoutError
        return wait()

    monkeypatch.setattr(future, "result", too_late)
    monkeypatch.setattr("multifit.distributed.call_thread.FutureTimeout", TimeoutError)
    assert result(future, 5) == 3
