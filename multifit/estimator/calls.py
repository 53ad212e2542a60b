"""The calls of an estimator's methods: one thread makes them at a time, and some not within others."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import Iterator

from ..errors import NOTES_ARE_SHOWN, notes

PREDICT = "predict"


class Calls:
    """Refuses calls that would disturb those that are running; only predictions wait for each other.

    The thread that runs one may make further calls, as event handlers do. Both methods raise RuntimeError for
    a call that cannot be made now.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None  # that of the running calls
        self._running: tuple[str, ...] = ()  # the methods' names, the outermost first

    @contextmanager
    def running(self, method: str, within: bool = False) -> Iterator[None]:
        """Return a block in which a method runs; `within` says whether it may be called within others."""
        before: tuple[str, ...] | None = None
        try:
            with self._changed:
                while (method,) == self._running == (PREDICT,) and self._other_thread is not None:
                    self._changed.wait()
                self.check_thread(method)
                self._check_within(method, within)
                before, self._thread = self._running, threading.current_thread()
                self._running = *before, method
            yield
        except Exception as error:
            if before == () and not NOTES_ARE_SHOWN and notes(error):
                self._logger.error("%s: %s", type(error).__name__, "; ".join(notes(error)))
            raise
        finally:
            if before is not None:
                with self._changed:
                    self._running = before
                    self._changed.notify_all()

    def check_thread(self, method: str) -> None:
        """Refuse a call while another thread runs one."""
        running, thread = self._running, self._other_thread
        if running and thread is not None:
            raise RuntimeError(
                f'{method} was called in thread "{threading.current_thread().name}" while {running[0]} runs '
                f'in thread "{thread.name}": an estimator does one thing at a time; wait until {running[0]} '
                "has ended, or use another estimator with a net of its own"
            )

    @property
    def _other_thread(self) -> threading.Thread | None:
        """The thread of the running or last calls, if it is not the current one."""
        thread = self._thread
        return None if thread is None or thread.ident == threading.get_ident() else thread

    def _check_within(self, method: str, within: bool) -> None:
        if self._running and not within:
            raise RuntimeError(
                f"{method} was called by an event handler, in the middle of a run; call it before or after"
            )
        if self._running.count(method) > 1:  # once more than a handler needs that leaves itself out
            raise RuntimeError(
                f"{method} was called by an event handler, during the {method} that an event handler had "
                "called: this would go on without end; pass event_handlers=[], which leaves this handler out"
            )
