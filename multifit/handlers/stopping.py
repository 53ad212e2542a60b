"""End a fit: at a limit, on a condition, or when a signal arrives."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Annotated, Any

from ..utils.arguments import Count, Positive, Valid, checked, one_of
from ..utils.protocols import MultiEstimator
from ..utils.text import counted
from .handler import Handler, Priority
from .state import RunState

_CATCHABLE = sorted(set(signal.Signals.__members__) - {"SIGKILL", "SIGSTOP"})
_Signal = Annotated[str, one_of(*_CATCHABLE)]
_Condition = Annotated[Callable[[RunState], bool | str], Valid("a function of the run's state")]


class StoppingHandler(Handler):
    """Stops a fit at the first of several limits, counted from the beginning of the fit.

    The limits are checked at the end of each batch and of each epoch. A resumed fit continues the counts,
    including the time.

    Parameters
    ----------
    max_epoch, max_batch : int, optional
        The limits. They default to the estimator's ``max_epoch`` and ``max_batch``, which are read each time,
        because other handlers may change them.
    max_seconds : float, optional
        The time after which to stop, in seconds, above 0. It includes evaluations.
    condition : callable, optional
        Called with the `RunState`. If it returns a true value, the fit stops; a string is the stop reason.
    clock : callable
        Returns the time in seconds.

    Raises
    ------
    ValueError
        A limit is not valid.
    """

    priority = Priority.STOPPING

    @checked
    def __init__(
        self,
        max_epoch: Count | None = None,
        max_batch: Count | None = None,
        max_seconds: Positive | None = None,
        condition: _Condition | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_epoch, self.max_batch = max_epoch, max_batch
        self.max_seconds, self.condition = max_seconds, condition
        self._clock = clock
        self._started = 0.0
        self._epochs = self._batches = 0

    def reached(self, estimator: MultiEstimator) -> str | None:
        """Return the limit that a resumed run has already reached, in words, or None."""
        return self._epoch_limit(estimator) or self._batch_limit(estimator) or self._other_reason(estimator)

    def batches_left(self, estimator: MultiEstimator) -> int | None:
        """Return the number of batches until the limit, or None if there is none."""
        limit = estimator.max_batch if self.max_batch is None else self.max_batch
        return None if limit is None else limit - self._batches

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Start counting."""
        self._started = self._clock()
        self._epochs = self._batches = 0

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> bool:
        """Count the batch, and return whether to stop."""
        self._batches += 1
        return self._stop(estimator, self._batch_limit(estimator))

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> bool:
        """Count the epoch, and return whether to stop."""
        self._epochs += 1
        return self._stop(estimator, self._epoch_limit(estimator))

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the seconds so far."""
        return {"epochs": self._epochs, "batches": self._batches, "seconds": self._clock() - self._started}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from what `state_dict` returned."""
        self._epochs, self._batches = state["epochs"], state["batches"]
        self._started = self._clock() - state["seconds"]

    def _stop(self, estimator: MultiEstimator, limit: str | None) -> bool:
        reason = limit or self._other_reason(estimator)
        if reason is not None:
            estimator.state.stop(reason)
        return reason is not None

    def _epoch_limit(self, estimator: MultiEstimator) -> str | None:
        limit = estimator.max_epoch if self.max_epoch is None else self.max_epoch
        return None if limit is None or self._epochs < limit else counted(limit, "epoch")

    def _batch_limit(self, estimator: MultiEstimator) -> str | None:
        left = self.batches_left(estimator)
        return None if left is None or left > 0 else counted(self._batches + left, "batch", "batches")

    def _other_reason(self, estimator: MultiEstimator) -> str | None:
        if self.max_seconds is not None and self._clock() - self._started >= self.max_seconds:
            return f"{self.max_seconds:g} seconds"
        answer = self.condition(estimator.state) if self.condition is not None else None
        if isinstance(answer, str):
            return answer or None
        return "its condition" if answer else None


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
    def __init__(self, signals: _Signal | Iterable[_Signal] = ("SIGINT", "SIGTERM", "SIGHUP")) -> None:
        names = [signals] if isinstance(signals, str) else signals
        self.signals = tuple(name for name in names if name in _CATCHABLE)  # Windows has no SIGHUP
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
