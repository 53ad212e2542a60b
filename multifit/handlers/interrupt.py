"""End a fit after the running batch on Ctrl-C, SIGTERM or SIGHUP."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from types import FrameType
from typing import Any

from ..arguments import Patterns, checked
from ..errors import quoted, shown, suggest
from ..events import Handler, Priority
from ..protocols import MultiEstimator

_UNCATCHABLE = {"SIGKILL", "SIGSTOP"}
_VALID = sorted(set(signal.Signals.__members__) - _UNCATCHABLE)
_DEFAULT = tuple(name for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in _VALID)  # Windows has two


class InterruptHandler(Handler):
    """Lets a fit finish its batch when a signal arrives; a second signal ends it at once.

    The fit stops as it does for any other reason: the other handlers are called, and a `CheckpointHandler`
    saves a checkpoint. ``state.interrupted`` is then true, and the stop reason is the signal's name. If the
    signal arrives after an epoch's last batch, the epoch ends as usual, with its validation. The second
    signal does what it would do without this handler: SIGINT raises KeyboardInterrupt, the others end the
    process. A second SIGHUP does nothing, because a terminal that is closed may send it twice.

    Signals for which a handler is installed already are left alone, and so are all signals in a fit outside
    the main thread, where Python has no signals. The default handlers are restored at the end of the fit.

    Parameters
    ----------
    signals : iterable of str
        The names of the signals. Defaults to SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal is closed). A
        program that was started with ``nohup`` still ignores SIGHUP.

    Raises
    ------
    ValueError
        A signal is unknown, or cannot be caught.
    """

    # A signal takes effect at this handler's events, not when it arrives, so that all handlers of an event
    # see the same state. This handler comes after those that stop a fit, so that their reason is kept, and
    # before CheckpointHandler.
    priority = Priority.STOPPING + 100.0

    @checked
    def __init__(self, signals: Patterns = _DEFAULT) -> None:
        self.signals = tuple([signals] if isinstance(signals, str) else signals)
        for name in self.signals:
            if name not in _VALID:
                raise ValueError(
                    f"InterruptHandler: signals: there is no {shown(name)} that can be caught"
                    f"{suggest(name, _VALID)}; valid are {quoted(_VALID)}"
                )
        self._installed: list[signal.Signals] = []
        self._estimator: MultiEstimator | None = None
        self._process = os.getpid()
        self._reason = ""
        self._log_queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._log_thread: threading.Thread | None = None

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Install the signal handlers."""
        self._estimator, self._process, self._reason = estimator, os.getpid(), ""
        if threading.current_thread() is not threading.main_thread():
            return
        # A signal can arrive while the log is written to, and logging from its handler could then fail or
        # deadlock, so another thread logs it. Of Python's queues, a signal handler may use only SimpleQueue.
        self._log_thread = threading.Thread(
            target=_log_signals, args=(self._log_queue, estimator.logger), daemon=True
        )
        self._log_thread.start()
        for number in (signal.Signals[name] for name in self.signals):
            if signal.getsignal(number) == _default(number):
                signal.signal(number, self._on_signal)
                self._installed.append(number)

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> bool:
        """Stop the fit if a signal has arrived."""
        if self._reason and not estimator.state.stopped:
            estimator.state.stop(self._reason, interrupted=True)
        return estimator.state.interrupted

    epoch_end = batch_end  # a signal may arrive during the validation

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Remove the signal handlers; the state shows a signal that came too late to stop the fit."""
        self._uninstall()
        if self._reason:
            estimator.state.stop(self._reason, interrupted=True)
        self._estimator = None  # this handler may live longer than the estimator
        if self._log_thread is not None:
            self._log_queue.put(None)
            self._log_thread.join()
            self._log_thread = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        estimator = self._estimator
        if os.getpid() != self._process and number == signal.SIGINT:
            return  # a loader's worker: Ctrl-C reaches all processes, and the batch still needs its workers
        again = bool(self._reason) or (estimator is not None and estimator.state.interrupted)
        if again and os.getpid() == self._process and number == getattr(signal, "SIGHUP", None):
            return  # a terminal that is closed may send it twice, by the shell and by the kernel
        if os.getpid() != self._process or estimator is None or again:
            self._uninstall()
            signal.signal(number, _default(number))  # also if another handler called this one
            signal.raise_signal(number)
        else:
            self._reason = signal.Signals(number).name
            self._log_queue.put(self._reason)

    def _uninstall(self) -> None:
        for number in self._installed:
            if signal.getsignal(number) == self._on_signal:  # else another handler was installed since
                signal.signal(number, _default(number))
        self._installed = []


def _log_signals(signals: queue.SimpleQueue[str | None], logger: logging.Logger) -> None:
    for name in iter(signals.get, None):
        logger.warning("%s: finishing the batch; a second Ctrl-C or SIGTERM ends the run at once", name)


def _default(number: int) -> Any:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
