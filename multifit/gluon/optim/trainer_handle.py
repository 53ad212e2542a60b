"""A trainer's learning rate, weight decay, momentum and betas, by the same names for every optimizer."""

from __future__ import annotations

from typing import Any, Iterable

from ...arguments import finite_number
from ...errors import TrainerError, names, shown
from ..compat import mx
from .optimizers import build_optimizer
from .schedules import ScaledSchedule

__all__ = ["TrainerHandle"]

CONTROLS = ("learning_rate", "weight_decay", "momentum", "betas")
OWN = {"name", "trainer", *CONTROLS}


class TrainerHandle:
    """A ``gluon.Trainer`` with its name, and with controls that can be read and set at any time.

    Everything else is the trainer's own, to read and to set; ``isinstance(handle, gluon.Trainer)`` holds, and
    it equals its trainer. A control that the optimizer lacks reads as None, and cannot be set.

    * `learning_rate`: float, without the parameters' own multipliers. Set while a schedule runs, it is the
      rate now, and the schedule goes on from there: its later rates are scaled alike. (Where the schedule is
      at 0, what was set holds until it leaves 0.) :meth:`reset_schedule` takes that back. AdaDelta makes no
      use of a rate.
    * `weight_decay`: float, the optimizer's ``wd``.
    * `momentum`: float, the share of the past in the mean of gradients: ``momentum``, or ``beta1`` of Adam
      and its relatives, or ``gamma2`` of a centered RMSProp. From 0 to more it begins at rest.
    * `betas`: pair of float, ``beta1`` and ``beta2``.

    Parameters
    ----------
    name : str
        The trainer's, for messages.
    trainer : gluon.Trainer
        The trainer, whether it updates on its kvstore or not. Distributed servers have a copy of the
        optimizer, which nothing reaches: setting a control is refused there.
    """

    name: str
    trainer: Any

    def __init__(self, name: str, trainer: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "trainer", trainer)

    # What looks for a trainer finds one: type checks such as Gluon's handlers make see its class.
    __class__ = property(lambda self: mx.gluon.Trainer)

    def __getattr__(self, name: str) -> Any:
        if name in OWN:  # a handle that is being copied has no trainer yet
            raise AttributeError(name)
        return getattr(self.trainer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self if name in OWN else self.trainer, name, value)

    def __eq__(self, other: object) -> bool:
        return self.trainer is (other.trainer if isinstance(other, TrainerHandle) else other)

    def __hash__(self) -> int:
        return hash(self.trainer)

    def __repr__(self) -> str:
        values = ((control, getattr(self, control)) for control in CONTROLS)
        said = ", ".join(f"{control}={value}" for control, value in values if value is not None)
        return f'TrainerHandle("{self.name}", {self._kind}: {said})'

    @property
    def learning_rate(self) -> float:
        """The rate now."""
        return float(self.trainer.optimizer.learning_rate)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        rate = finite_number(self._where("learning_rate"), rate, least=0)
        optimizer = self._optimizer("learning_rate")
        scheduler = optimizer.lr_scheduler
        if scheduler is None:
            optimizer.lr = rate
        elif rate != self.learning_rate:
            if not isinstance(scheduler, ScaledSchedule):
                scheduler = optimizer.lr_scheduler = ScaledSchedule(scheduler)
            scheduler.set(rate, optimizer.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate, as ``gluon.Trainer.set_learning_rate`` does, also while a schedule runs."""
        self.learning_rate = lr

    def reset_schedule(self) -> None:
        """Let the schedule's rates be its own again; without a schedule there is nothing to do."""
        optimizer = self._optimizer("learning_rate")
        if isinstance(optimizer.lr_scheduler, ScaledSchedule):
            optimizer.lr_scheduler = optimizer.lr_scheduler.scheduler

    @property
    def weight_decay(self) -> float | None:
        """The weight decay; None where the optimizer has none."""
        return self._read("weight_decay")

    @weight_decay.setter
    def weight_decay(self, value: float) -> None:
        value = finite_number(self._where("weight_decay"), value, least=0)
        self._write("weight_decay", [value])

    @property
    def momentum(self) -> float | None:
        """The momentum, or what means the same; None where the optimizer has none."""
        return self._read("momentum")

    @momentum.setter
    def momentum(self, value: float) -> None:
        before, value = self.momentum, finite_number(self._where("momentum"), value, least=0, below=1)
        self._write("momentum", [value])
        if before == 0 != value and self._attributes("momentum") == ("momentum",):
            self._begin_at_rest(before)

    @property
    def betas(self) -> tuple[float, float] | None:
        """The decay of the means of gradients and of their squares; None where the optimizer has none."""
        return self._read("betas")

    @betas.setter
    def betas(self, pair: Iterable[float]) -> None:
        where = self._where("betas")
        values = list(pair) if isinstance(pair, Iterable) and not isinstance(pair, str) else []
        if len(values) != 2:
            raise ValueError(f"{where} is {shown(pair)}; valid are two numbers, such as (0.9, 0.999)")
        self._write("betas", [finite_number(where, value, least=0, below=1) for value in values])

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
        """Return the optimizer's own names of a control; none where it has no such thing."""
        optimizer = self.trainer.optimizer
        found: dict[str, tuple[str, ...]] = {
            "learning_rate": () if isinstance(optimizer, mx.optimizer.AdaDelta) else ("lr",),
            "weight_decay": () if isinstance(optimizer, mx.optimizer.contrib.GroupAdaGrad) else ("wd",),
            "betas": ("beta1", "beta2"),
            "momentum": ("momentum",) if hasattr(optimizer, "momentum") else ("beta1",),
        }
        if control == "momentum" and isinstance(optimizer, mx.optimizer.RMSProp):
            return ("gamma2",) if optimizer.centered else ()
        return found[control] if all(hasattr(optimizer, name) for name in found[control]) else ()

    def _read(self, control: str) -> Any:
        values = tuple(float(getattr(self.trainer.optimizer, name)) for name in self._attributes(control))
        return values if control == "betas" and values else next(iter(values), None)

    def _write(self, control: str, values: list[float]) -> None:
        optimizer = self._optimizer(control)
        for name, value in zip(self._attributes(control), values):
            setattr(optimizer, name, value)

    def _optimizer(self, control: str) -> Any:
        """Return the optimizer, if setting this control on it has an effect."""
        if not self._attributes(control):
            has = names(self.settable)
            raise TrainerError(f"{self._where(control)}: {self._kind} has none; what it has is {has}")
        if self.trainer._distributed and self.trainer._update_on_kvstore:
            raise TrainerError(
                f"{self._where(control)} cannot be set any more: the servers update with a copy of "
                f"{self._kind}; set it before the first step, or give update_on_kvstore=False"
            )
        return self.trainer.optimizer

    def _begin_at_rest(self, before: float) -> None:
        """Let states be made anew with the next update: without momentum, MXNet's optimizers keep none."""
        problems = build_optimizer(f'trainers["{self.name}"]', self.trainer)[1]
        if problems:  # not every optimizer of MXNet's works with momentum
            self._write("momentum", [before])
            raise TrainerError(problems)
        on_kvstore = self.trainer._kvstore and self.trainer._update_on_kvstore
        updaters = [self.trainer._kvstore._updater] if on_kvstore else self.trainer._updaters
        stock = type(self.trainer.optimizer).__module__.startswith("mxnet.")
        for updater in updaters:
            for index in [i for i, state in updater.states.items() if stock or state is None]:
                del updater.states[index]
