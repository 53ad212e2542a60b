"""Ctrl-C and SIGTERM end a fit after the batch that is running."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ..errors import names, suggest
from ..events import EstimatorProtocol, Priority

__all__ = ["InterruptHandler"]

_UNCATCHABLE = {"SIGKILL", "SIGSTOP"}
_VALID = sorted(set(signal.Signals.__members__) - _UNCATCHABLE)


class InterruptHandler:
    """Lets a fit finish its batch when a signal asks it to end; a second signal ends it at once.

    The fit then stops as for any other reason: what other handlers do at its end is done, a checkpoint among
    it. ``state.interrupted`` is true from the signal on, and the signal's name is the reason. The second one
    does what it would do without this handler: KeyboardInterrupt for SIGINT, the end of the process for
    SIGTERM.

    Signals that somebody handles already are left to him, and so are all in a fit outside the main thread,
    where Python has no signals. What stood there before is restored at the end of the fit.

    Parameters
    ----------
    signals : iterable of str
        The names of the signals.

    Raises
    ------
    ValueError
        There is no such signal, or it cannot be caught.
    """

    # Before what writes checkpoints. A signal takes effect here and not when it comes, so that every handler
    # of a batch's or an epoch's end sees the same.
    priority = Priority.NORMAL

    def __init__(self, signals: Iterable[str] = ("SIGINT", "SIGTERM")) -> None:
        self.signals = tuple([signals] if isinstance(signals, str) else signals)
        for name in self.signals:
            if name not in _VALID:
                raise ValueError(
                    f"InterruptHandler: there is no signal {name!r} that can be caught"
                    f"{suggest(name, _VALID)}; valid are {names(_VALID)}"
                )
        self._taken: list[signal.Signals] = []
        self._estimator: EstimatorProtocol | None = None
        self._process = os.getpid()
        self._reason = ""
        self._told: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._teller: threading.Thread | None = None

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Begin to listen."""
        self._estimator, self._process, self._reason = estimator, os.getpid(), ""
        if threading.current_thread() is not threading.main_thread():
            return
        # A signal can come while the log is being written, when writing to it would fail or wait for itself:
        # another thread does it. The queue is the one of Python's that a signal may put something into.
        self._teller = threading.Thread(target=_tell, args=(self._told, estimator.logger), daemon=True)
        self._teller.start()
        for number in (signal.Signals[name] for name in self.signals):
            if signal.getsignal(number) == _default(number):
                signal.signal(number, self._came)
                self._taken.append(number)

    def batch_end(self, estimator: EstimatorProtocol, **_: Any) -> bool:
        """Say whether to stop."""
        return self._stops(estimator)

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> bool:
        """Say whether to stop, for a signal that came during the validation."""
        return self._stops(estimator)

    def train_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Listen no more."""
        self._restore()
        self._estimator = None  # a handler may live longer than the estimator should
        if self._teller is not None:
            self._told.put(None)
            self._teller.join()
            self._teller = None

    def _stops(self, estimator: EstimatorProtocol) -> bool:
        if not estimator.state.interrupted:  # asked once: the signal may come at any line
            return False
        if self._reason:
            estimator.state.stop(self._reason)
        return True

    def _came(self, number: int, frame: FrameType | None) -> None:
        estimator = self._estimator
        if os.getpid() != self._process and number == signal.SIGINT:
            return  # a loader's worker: Ctrl-C reaches all processes, and the batch needs the workers yet
        if os.getpid() != self._process or estimator is None or estimator.state.interrupted:
            self._restore()
            signal.signal(number, _default(number))  # also where somebody's handler passed it on to this one
            signal.raise_signal(number)
        else:
            self._reason = signal.Signals(number).name
            estimator.state.interrupted = True
            self._told.put(self._reason)

    def _restore(self) -> None:
        for number in self._taken:
            if signal.getsignal(number) == self._came:  # else somebody else has taken it over since
                signal.signal(number, _default(number))
        self._taken = []


def _tell(told: queue.SimpleQueue[str | None], logger: logging.Logger) -> None:
    for reason in iter(told.get, None):
        logger.warning("%s: finishing the batch; once more ends at once", reason)


def _default(number: int) -> Any:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
