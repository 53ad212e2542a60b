"""End a fit after the running batch on Ctrl-C, SIGTERM or SIGHUP."""

import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Annotated, Any

from ..arguments import checked, one_of
from ..events import Handler, Priority
from ..protocols import MultiEstimator

_CATCHABLE = sorted(set(signal.Signals.__members__) - {"SIGKILL", "SIGSTOP"})
_DEFAULT = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in _CATCHABLE]  # Windows has two
_Signal = Annotated[str, one_of(*_CATCHABLE)]


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
    def __init__(self, signals: _Signal | Iterable[_Signal] = _DEFAULT) -> None:
        self.signals = tuple([signals] if isinstance(signals, str) else signals)
        self._installed: list[signal.Signals] = []
        self._process = os.getpid()
        self._running = False
        self._reason = ""

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Install the signal handlers."""
        self._running, self._process, self._reason = True, os.getpid(), ""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.Signals[name] for name in self.signals):
            if signal.getsignal(number) == _default(number):
                signal.signal(number, self._on_signal)
                self._installed.append(number)

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> bool:
        """Stop the fit if a signal has arrived."""
        if self._reason and not estimator.state.stopped:
            # Not when the signal arrives: it may have interrupted the log, which cannot be entered twice.
            estimator.logger.warning(
                "%s: ending the fit; a second Ctrl-C or SIGTERM ends the run at once", self._reason
            )
            estimator.state.stop(self._reason, interrupted=True)
        return estimator.state.interrupted

    epoch_end = batch_end  # a signal may arrive during the validation

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Remove the signal handlers; the state shows a signal that came too late to stop the fit."""
        self._uninstall()
        self._running = False
        if self._reason:
            estimator.state.stop(self._reason, interrupted=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == self._process
        if not ours and number == signal.SIGINT:
            return  # a loader's worker: Ctrl-C reaches all processes, and the batch still needs its workers
        if ours and self._running and not self._reason:
            self._reason = signal.Signals(number).name
        elif not ours or number != getattr(signal, "SIGHUP", None):  # a closed terminal may send it twice
            self._uninstall()
            signal.signal(number, _default(number))  # also if another handler called this one
            signal.raise_signal(number)

    def _uninstall(self) -> None:
        for number in self._installed:
            if signal.getsignal(number) == self._on_signal:  # else another handler was installed since
                signal.signal(number, _default(number))
        self._installed = []


def _default(number: int) -> Any:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
