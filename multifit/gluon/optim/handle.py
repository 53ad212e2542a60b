"""A trainer with a name, whose rate, weight decay and momentum can be set, whatever its optimizer."""

from typing import Any

from ...arguments import checked_value
from ...errors import TrainerError, quoted
from ...schedules import ScaledSchedule
from ..compat import mx
from ..user_code import user_code
from .optimizers import LIMITS

CONTROLS = ("learning_rate", "weight_decay", "momentum")


class TrainerHandle:
    """A ``gluon.Trainer`` with a name, and with controls that can be read and set at any time.

    All other attributes are read from the trainer. A control that the optimizer lacks is None and cannot be
    set.

    * `learning_rate`: float, without the multipliers of single parameters. Setting it while a schedule runs
      scales the schedule from now on. (While the schedule is at 0, the rate that was set holds.)
      AdaDelta uses no rate.
    * `weight_decay`: float, the optimizer's ``wd``.
    * `momentum`: float, the share of the past in the running mean of gradients: ``momentum``, or ``beta1`` of
      Adam and its variants. Raised from 0, it starts with a mean of 0.
    """

    __slots__ = ("name", "trainer")

    def __init__(self, name: str, trainer: mx.gluon.Trainer) -> None:
        self.name, self.trainer = name, trainer

    def __getattr__(self, name: str) -> Any:
        if name in self.__slots__:  # while the handle is being copied, it has no trainer
            raise AttributeError(name)
        return getattr(self.trainer, name)

    def __repr__(self) -> str:
        values = ((control, getattr(self, control)) for control in CONTROLS)
        shown_values = ", ".join(f"{control}={value}" for control, value in values if value is not None)
        return f'TrainerHandle("{self.name}", {type(self.optimizer).__name__}: {shown_values})'

    @property
    def learning_rate(self) -> float:
        """The current learning rate; if the schedule fails to return a rate, the error names the trainer."""
        with user_code(lambda: f'trainers["{self.name}"].lr_scheduler'):
            return float(self.optimizer.learning_rate)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        rate, optimizer = self._checked("learning_rate", "lr", rate), self.optimizer
        scheduler = optimizer.lr_scheduler
        if scheduler is None:
            optimizer.lr = rate
        elif rate != self.learning_rate:
            if not isinstance(scheduler, ScaledSchedule):
                scheduler = optimizer.lr_scheduler = ScaledSchedule(scheduler)
            scheduler.set(rate, optimizer.num_update)

    def hold(self, rate: float) -> None:
        """Set a learning rate that no schedule changes any more."""
        self.optimizer.lr_scheduler, self.optimizer.lr = None, rate

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate; unlike the trainer's own method, this also works while a schedule runs."""
        self.learning_rate = lr

    @property
    def weight_decay(self) -> float | None:
        """The weight decay; None if the optimizer has none."""
        return self._read("wd")

    @weight_decay.setter
    def weight_decay(self, value: float) -> None:
        self.optimizer.wd = self._checked("weight_decay", "wd", value)

    @property
    def momentum(self) -> float | None:
        """The momentum or its equivalent; None if the optimizer has none."""
        return self._read(self._momentum)

    @momentum.setter
    def momentum(self, value: float) -> None:
        value, before = self._checked("momentum", self._momentum, value), self.momentum
        setattr(self.optimizer, self._momentum, value)
        if before == 0 != value and self._momentum == "momentum":  # MXNet made no states, or kept old ones
            for updater in self.trainer._updaters:
                updater.states.clear()

    def save_states(self, fname: str) -> None:
        """Save the optimizer and its states to a file, as the trainer does."""
        self.trainer.save_states(fname)

    def load_states(self, fname: str) -> None:
        """Load what :meth:`save_states` saved; do not load files of others, because the trainer unpickles."""
        self.trainer.load_states(fname)

    @property
    def _momentum(self) -> str:
        """The optimizer's attribute for momentum, if it has any."""
        return "momentum" if hasattr(self.optimizer, "momentum") else "beta1"

    def _has(self, attribute: str) -> bool:
        unused = {mx.optimizer.AdaDelta: "lr", mx.optimizer.contrib.GroupAdaGrad: "wd"}
        return hasattr(self.optimizer, attribute) and unused.get(type(self.optimizer)) != attribute

    def _read(self, attribute: str) -> float | None:
        return float(getattr(self.optimizer, attribute)) if self._has(attribute) else None

    def _checked(self, control: str, attribute: str, value: float) -> float:
        """Return a valid value; raises TrainerError if the optimizer lacks the control."""
        where = f'trainers["{self.name}"].{control}'
        if not self._has(attribute):
            attributes = dict(zip(CONTROLS, ("lr", "wd", self._momentum)))
            valid = quoted([each for each, own in attributes.items() if self._has(own)])
            raise TrainerError(f"{where}: {type(self.optimizer).__name__} has none; it has {valid}")
        return checked_value(where, value, LIMITS[{"lr": "learning_rate"}.get(attribute, attribute)])
