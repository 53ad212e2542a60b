"""Calls that may hang: they run in a thread, and the caller stops waiting after some seconds."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # Python's own from 3.11 on
from queue import SimpleQueue
from typing import Any, Callable


class Late(Exception):
    """A call did not return in time. It goes on in its thread."""


class CallThread:
    """A thread that makes calls one at a time.

    Ctrl-C ends the waiting, not the call, so calls never overlap and keep their order.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Let the thread call a function, and return its future."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="multifit-calls", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, function, arguments))
        return future

    def call(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the function returns, or raise what it raises; raise Late after some seconds."""
        return result(self.begin(function, *arguments), seconds)

    def _work(self) -> None:
        while True:
            future, function, arguments = self._calls.get()
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del future, function, arguments  # else arrays live until the next call


def result(future: Future[Any], seconds: float) -> Any:
    """Return or raise what a call returns or raises; raise Late after some seconds."""
    try:
        return future.result(seconds)
    except FutureTimeout:
        if future.done():  # the function itself raised the timeout, or it has just returned
            return future.result()
        raise Late from None
