"""Read and set a trainer's learning rate, weight decay, momentum and betas, whatever its optimizer."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from ...arguments import checked_value
from ...errors import TrainerError, quoted, shown
from ..compat import mx
from .named_schedule import named_schedule
from .optimizers import LIMITS, build_optimizer
from .schedules import ScaledSchedule

CONTROLS = ("learning_rate", "weight_decay", "momentum", "betas")
HANDLE_ATTRIBUTES = {"name", "trainer", "publish", *CONTROLS}


class TrainerHandle:
    """A ``gluon.Trainer`` with a name, and with controls that can be read and set at any time.

    All other attributes are read from the trainer, and set on it. ``isinstance(handle, gluon.Trainer)`` is
    true, and the handle equals its trainer. A control that the optimizer lacks is None and cannot be set.

    * `learning_rate`: float, without the multipliers of single parameters. Setting it while a schedule runs
      scales the schedule from now on. (While the schedule is at 0, the rate that was set holds.)
      :meth:`reset_schedule` returns to the schedule's own rates. AdaDelta uses no rate.
    * `weight_decay`: float, the optimizer's ``wd``.
    * `momentum`: float, the share of the past in the running mean of gradients: ``momentum``, ``beta1`` of
      Adam and its variants, or ``gamma2`` of a centered RMSProp. Raised from 0, it starts with a mean of 0.
    * `betas`: pair of float, ``beta1`` and ``beta2``.

    The trainer may update on its kvstore. But if that is distributed, its servers update with copies of the
    optimizer, and no control can be set.

    `publish` is called before states are read or replaced: an engine that holds them itself writes them into
    the trainer.
    """

    name: str
    trainer: mx.gluon.Trainer
    publish: Callable[[], object]

    def __init__(self, name: str, trainer: mx.gluon.Trainer) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "trainer", trainer)
        object.__setattr__(self, "publish", lambda: None)

    # isinstance(handle, gluon.Trainer), which Gluon's handlers check, is true.
    __class__ = property(lambda self: mx.gluon.Trainer)

    def __getattr__(self, name: str) -> Any:
        if name in HANDLE_ATTRIBUTES:  # while the handle is being copied, it has no trainer
            raise AttributeError(name)
        return getattr(self.trainer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self if name in HANDLE_ATTRIBUTES else self.trainer, name, value)

    def __eq__(self, other: object) -> bool:
        return self.trainer is (other.trainer if isinstance(other, TrainerHandle) else other)

    def __hash__(self) -> int:
        return hash(self.trainer)

    def __repr__(self) -> str:
        values = ((control, getattr(self, control)) for control in CONTROLS)
        shown_values = ", ".join(f"{control}={value}" for control, value in values if value is not None)
        return f'TrainerHandle("{self.name}", {self._kind}: {shown_values})'

    @property
    def learning_rate(self) -> float:
        """The current learning rate; if the schedule fails to return a rate, the error names the trainer."""
        optimizer = self.trainer.optimizer
        with named_schedule(self.name, optimizer):
            return float(optimizer.learning_rate)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        rate = checked_value(self._where("learning_rate"), rate, LIMITS["learning_rate"])
        optimizer = self._optimizer("learning_rate")
        scheduler = optimizer.lr_scheduler
        if scheduler is None:
            optimizer.lr = rate
        elif rate != self.learning_rate:
            if not isinstance(scheduler, ScaledSchedule):
                scheduler = optimizer.lr_scheduler = ScaledSchedule(scheduler)
            scheduler.set(rate, optimizer.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate; unlike the trainer's own method, this also works while a schedule runs."""
        self.learning_rate = lr

    def reset_schedule(self) -> None:
        """Return to the schedule's own rates; does nothing without a schedule."""
        optimizer = self._optimizer("learning_rate")
        if isinstance(optimizer.lr_scheduler, ScaledSchedule):
            optimizer.lr_scheduler = optimizer.lr_scheduler.scheduler

    def save_states(self, fname: str) -> None:
        """Save the optimizer and its states to a file, as the trainer does."""
        self.publish()
        self.trainer.save_states(fname)

    def load_states(self, fname: str) -> None:
        """Load what :meth:`save_states` saved; do not load files of others, because the trainer unpickles."""
        self.publish()
        self.trainer.load_states(fname)

    @property
    def weight_decay(self) -> float | None:
        """The weight decay; None if the optimizer has none."""
        return self._read("weight_decay")

    @weight_decay.setter
    def weight_decay(self, value: float) -> None:
        value = checked_value(self._where("weight_decay"), value, LIMITS["wd"])
        self._write("weight_decay", [value])

    @property
    def momentum(self) -> float | None:
        """The momentum or its equivalent; None if the optimizer has none."""
        return self._read("momentum")

    @momentum.setter
    def momentum(self, value: float) -> None:
        value = checked_value(self._where("momentum"), value, LIMITS["momentum"])
        before = self.momentum
        self._write("momentum", [value])
        if before is not None and before == 0 != value and self._attributes("momentum") == ("momentum",):
            self._reset_states(before)

    @property
    def betas(self) -> tuple[float, float] | None:
        """The decay rates of the running means of gradients and their squares; None if there are none."""
        return self._read("betas")

    @betas.setter
    def betas(self, pair: Iterable[float]) -> None:
        where = self._where("betas")
        values = list(pair) if isinstance(pair, Iterable) and not isinstance(pair, str) else []
        if len(values) != 2:
            raise ValueError(f"{where} is {shown(pair)}; valid are two numbers, such as (0.9, 0.999)")
        self._write("betas", [checked_value(where, value, LIMITS["beta1"]) for value in values])

    @property
    def settable(self) -> tuple[str, ...]:
        """The controls that this optimizer has."""
        return tuple(control for control in CONTROLS if self._attributes(control))

    @property
    def _kind(self) -> str:
        return type(self.trainer.optimizer).__name__

    def _where(self, control: str) -> str:
        return f'trainers["{self.name}"].{control}'

    def _attributes(self, control: str) -> tuple[str, ...]:
        """Return the optimizer's attributes for a control; empty if it lacks the control."""
        optimizer = self.trainer.optimizer
        attributes: dict[str, tuple[str, ...]] = {
            "learning_rate": () if isinstance(optimizer, mx.optimizer.AdaDelta) else ("lr",),
            "weight_decay": () if isinstance(optimizer, mx.optimizer.contrib.GroupAdaGrad) else ("wd",),
            "betas": ("beta1", "beta2"),
            "momentum": ("momentum",) if hasattr(optimizer, "momentum") else ("beta1",),
        }
        if control == "momentum" and isinstance(optimizer, mx.optimizer.RMSProp):
            return ("gamma2",) if optimizer.centered else ()
        return attributes[control] if all(hasattr(optimizer, n) for n in attributes[control]) else ()

    def _read(self, control: str) -> Any:
        values = tuple(float(getattr(self.trainer.optimizer, name)) for name in self._attributes(control))
        return values if control == "betas" and values else next(iter(values), None)

    def _write(self, control: str, values: list[float]) -> None:
        optimizer = self._optimizer(control)
        for name, value in zip(self._attributes(control), values):
            setattr(optimizer, name, value)

    def _optimizer(self, control: str) -> mx.optimizer.Optimizer:
        """Return the optimizer; raises TrainerError if setting this control would have no effect."""
        if not self._attributes(control):
            valid = quoted(self.settable)
            raise TrainerError(f"{self._where(control)}: {self._kind} has none; it has {valid}")
        if self.trainer._distributed and self.trainer._update_on_kvstore:
            raise TrainerError(
                f"{self._where(control)} cannot be set any more: the servers update with copies of "
                f"{self._kind}; set it before the first step, or give update_on_kvstore=False"
            )
        return self.trainer.optimizer

    def _reset_states(self, before: float) -> None:
        """Delete the optimizer's states, so that the next update creates them with momentum.

        MXNet keeps no states without momentum, the value `before`.
        """
        problems = build_optimizer(f'trainers["{self.name}"]', self.trainer, self.trainer._params)[1]
        if problems:  # not every MXNet optimizer works with momentum
            self._write("momentum", [before])
            raise TrainerError(problems)
        self.publish()
        on_kvstore = self.trainer._kvstore and self.trainer._update_on_kvstore
        updaters = [self.trainer._kvstore._updater] if on_kvstore else self.trainer._updaters
        stock = type(self.trainer.optimizer).__module__.startswith("mxnet.")
        for updater in updaters:
            for index in [i for i, state in updater.states.items() if stock or state is None]:
                del updater.states[index]
