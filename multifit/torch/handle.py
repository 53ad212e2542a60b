"""A trainer with a name: an optimizer whose rate, weight decay and momentum can be set, and its schedule."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..arguments import NotNegative, Share, checked_value
from ..errors import TrainerError, quoted, user_code

CONTROLS: dict[str, tuple[str, Any]] = {
    "learning_rate": ("lr", NotNegative),
    "weight_decay": ("weight_decay", NotNegative),
    "momentum": ("momentum", Share),
}
PLAIN = (bool, int, float, str, type(None))


class Rates:
    """Sets the learning rates of an optimizer's groups before each update.

    A `schedule` is a function of the number of updates, and counts for the first group: the others keep their
    ratio to it. A `scheduler` is torch's, and sets all groups. Both run unscaled; the factor is that of the
    rate that was set last.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Callable[[int], float] | None = None,
        scheduler: LRScheduler | None = None,
    ) -> None:
        self._optimizer, self.schedule, self.scheduler = optimizer, schedule, scheduler
        self._count, self._factor = 0, 1.0
        self._held: float | None = None  # a rate that was set while the schedule was at 0
        self._unscaled = self._current()
        first = self._unscaled[0]
        self._ratios = [rate / first if first else 1.0 for rate in self._unscaled]
        self._follow()

    def set(self, rate: float) -> None:
        """Set the first group's rate, and scale the other groups and all later rates accordingly.

        A rate of 0 cannot be scaled: if the schedule is at 0, `rate` holds until it leaves 0, and later rates
        are scaled as before.
        """
        if self.schedule is None and self.scheduler is None:
            self._unscaled = self._current()
        first = self._unscaled[0]
        self._held = None if first else rate
        self._factor = rate / first if first else self._factor
        self._write(self._scaled())
        self._write([rate])  # without rounding

    def before_update(self) -> None:
        """Count an update, and set its rates."""
        self._count += 1
        self._follow()

    def after_update(self) -> None:
        """Let torch's scheduler set the rates of the next update."""
        if self.scheduler is not None:
            if self._scaled() != self._unscaled:  # it may continue from the rates that it finds
                self._write(self._unscaled)
            self.scheduler.step()
            self._unscaled = self._current()
            if self._factor != 1 or self._held is not None:
                self._write(self._scaled())

    def state(self) -> dict[str, Any]:
        """Return what changes while it runs, as plain values; the rates themselves are the optimizer's."""
        inner = {} if self.scheduler is None else _plain(self.scheduler.state_dict())
        own = [self._count, self._factor, self._held, self._unscaled]
        return {"own": own, "scheduler": inner}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._count, self._factor, self._held, unscaled = state["own"]
        self._unscaled = list(unscaled)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(_merged(self.scheduler.state_dict(), state["scheduler"]))

    def _follow(self) -> None:
        if self.schedule is not None:
            rate = float(self.schedule(self._count))
            self._unscaled = [rate * ratio for ratio in self._ratios]
            self._write(self._scaled())

    def _current(self) -> list[float]:
        return [float(group.get("lr", 0)) for group in self._optimizer.param_groups]

    def _scaled(self) -> list[float]:
        if self._unscaled[0]:
            self._held = None
        held = self._held
        return [each * self._factor if each or held is None else held for each in self._unscaled]

    def _write(self, rates: list[float]) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def _plain(tree: Any) -> Any:
    """Return the numbers and texts of a scheduler's state; milestones and functions stay as declared."""
    if isinstance(tree, (list, tuple)):
        return [_plain(each) for each in tree]
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items() if isinstance(key, str)}
    return tree if isinstance(tree, PLAIN) else None


def _merged(fresh: Any, saved: Any) -> Any:
    """Return a fresh scheduler's state with the numbers that were saved."""
    if isinstance(fresh, dict):
        return {key: _merged(value, saved[key]) if key in saved else value for key, value in fresh.items()}
    if isinstance(fresh, (list, tuple)) and len(fresh) == len(saved):
        return type(fresh)(map(_merged, fresh, saved))
    return saved if isinstance(fresh, (*PLAIN, list)) else fresh


class TrainerHandle:
    """A ``torch.optim.Optimizer`` with a name, and with controls that can be read and set at any time.

    All other attributes are read from the optimizer. A control that the optimizer lacks is None and cannot be
    set.

    * `learning_rate`: float, that of the first parameter group. Setting it scales the other groups alike; and
      the schedule from now on, if one runs. (While the schedule is at 0, the rate that was set holds.)
    * `weight_decay`: float. Setting it changes the groups that have the value of the first one.
    * `momentum`: float, the share of the past in the running mean of gradients: ``momentum``, or the first of
      Adam's ``betas``. It is set as `weight_decay` is.
    """

    __slots__ = ("name", "optimizer", "rates")

    def __init__(self, name: str, optimizer: Optimizer, rates: Rates | None = None) -> None:
        self.name, self.optimizer = name, optimizer
        self.rates = rates or Rates(optimizer)

    def __getattr__(self, name: str) -> Any:
        if name in self.__slots__:  # while the handle is being copied, it has no optimizer
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        values = ((control, getattr(self, control)) for control in CONTROLS)
        shown_values = ", ".join(f"{control}={value}" for control, value in values if value is not None)
        return f'TrainerHandle("{self.name}", {type(self.optimizer).__name__}: {shown_values})'

    @property
    def learning_rate(self) -> float | None:
        """The current learning rate; None if the optimizer has none."""
        return self._read("learning_rate")

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        rate = self._checked("learning_rate", rate)
        if rate != self.learning_rate:
            self.rates.set(rate)

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate, also while a schedule runs."""
        self.learning_rate = rate

    @property
    def weight_decay(self) -> float | None:
        """The weight decay; None if the optimizer has none."""
        return self._read("weight_decay")

    @weight_decay.setter
    def weight_decay(self, value: float) -> None:
        self._set("weight_decay", self._checked("weight_decay", value))

    @property
    def momentum(self) -> float | None:
        """The momentum or its equivalent; None if the optimizer has none."""
        return self._read("momentum")

    @momentum.setter
    def momentum(self, value: float) -> None:
        value = self._checked("momentum", value)
        self._set("momentum", value)
        for parameter, state in self.optimizer.state.items():
            if value and state and "momentum" in self.optimizer.param_groups[0]:  # RMSprop makes it at once
                state.setdefault("momentum_buffer", torch.zeros_like(parameter))

    def update(self) -> None:
        """Update the parameters by their gradients; an error names the trainer."""
        with user_code(lambda: f'trainers["{self.name}"]'):
            self.rates.before_update()
            self.optimizer.step()
            self.rates.after_update()

    def save_states(self, file: str | PathLike[str]) -> None:
        """Save the optimizer's ``state_dict``."""
        torch.save(self.optimizer.state_dict(), file)

    def load_states(self, file: str | PathLike[str]) -> None:
        """Load what :meth:`save_states` saved."""
        self.optimizer.load_state_dict(torch.load(file, weights_only=True))

    def _key(self, control: str) -> str:
        key = CONTROLS[control][0]
        return "betas" if key == "momentum" and "betas" in self.optimizer.param_groups[0] else key

    def _read(self, control: str) -> float | None:
        value = self.optimizer.param_groups[0].get(self._key(control))
        return None if value is None else float(value[0] if isinstance(value, (tuple, list)) else value)

    def _set(self, control: str, value: float) -> None:
        key, before = self._key(control), self.optimizer.param_groups[0][self._key(control)]
        for group in self.optimizer.param_groups:
            if group[key] == before:
                group[key] = (value, *before[1:]) if key == "betas" else value

    def _checked(self, control: str, value: float) -> float:
        """Return a valid value; raises TrainerError if the optimizer lacks the control."""
        where = f'trainers["{self.name}"].{control}'
        if self._read(control) is None:
            valid = quoted([each for each in CONTROLS if self._read(each) is not None])
            raise TrainerError(f"{where}: {type(self.optimizer).__name__} has none; it has {valid}")
        return float(checked_value(where, value, CONTROLS[control][1]))
