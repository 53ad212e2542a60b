"""A ``gluon.Trainer`` with a name, whose rate, weight decay and momentum can be set."""

from ... import engines
from ...schedules import ScaledSchedule
from ..compat import mx
from ..user_code import user_code


class TrainerHandle(engines.TrainerHandle):
    """A ``gluon.Trainer`` with a name, and with controls that can be read and set at any time.

    All other attributes are read from the trainer. A control that the optimizer lacks is None and cannot be
    set.

    * `learning_rate`: float, without the multipliers of single parameters. Setting it while a schedule runs
      scales the schedule from now on. (While the schedule is at 0, the rate that was set holds.) AdaDelta has
      none.
    * `weight_decay`: float, the optimizer's ``wd``.
    * `momentum`: float, the share of the past in the running mean of gradients: ``momentum``, or ``beta1`` of
      Adam and its variants. Raised from 0, it starts with a mean of 0.
    """

    __slots__ = ("trainer",)

    def __init__(self, name: str, trainer: mx.gluon.Trainer) -> None:
        self.name, self.trainer = name, trainer

    def hold(self, rate: float) -> None:
        """Set a learning rate that no schedule changes any more."""
        self.optimizer.lr_scheduler, self.optimizer.lr = None, rate

    def _key(self, control: str) -> str:
        """Return the optimizer's name of a control."""
        momentum = "momentum" if hasattr(self.optimizer, "momentum") else "beta1"
        return {"learning_rate": "learning_rate", "weight_decay": "wd", "momentum": momentum}[control]

    def _read(self, control: str) -> float | None:
        if control == "learning_rate" and isinstance(self.optimizer, mx.optimizer.AdaDelta):
            return None
        with user_code(lambda: f'trainers["{self.name}"].lr_scheduler'):
            value = getattr(self.optimizer, self._key(control), None)
            return None if value is None else float(value)

    def _write(self, control: str, value: float) -> None:
        optimizer, key = self.optimizer, self._key(control)
        scheduler, before = optimizer.lr_scheduler, self._read(control)
        if key == "learning_rate" and scheduler is None:
            optimizer.lr = value
        elif key == "learning_rate" and value != before:
            if not isinstance(scheduler, ScaledSchedule):
                scheduler = optimizer.lr_scheduler = ScaledSchedule(scheduler)
            scheduler.set(value, optimizer.num_update)
        elif key != "learning_rate":
            setattr(optimizer, key, value)
        if key == "momentum" and before == 0 != value:  # MXNet made no states, or kept old ones
            for updater in self.trainer._updaters:
                updater.states.clear()
