"""A trainer with a name: an optimizer whose rate, weight decay and momentum can be set, and its schedule."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import keystr, tree_leaves_with_path, tree_map_with_path

from .. import engines
from ..utils.errors import user_code

KEYS = {"learning_rate": "lr"}  # torch's names of controls, where they differ


class Rates:
    """Sets the learning rates of an optimizer's groups: those of a schedule, times a factor.

    A `schedule` is a function of the number of updates, for the first group; the others keep their ratios to
    it. A `scheduler` is torch's.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Callable[[int], float] | None = None,
        scheduler: LRScheduler | None = None,
    ) -> None:
        self._optimizer, self.schedule, self.scheduler = optimizer, schedule, scheduler
        self._count, self._factor, self.runs = 0, 1.0, True  # and whether the schedule does
        self._held: float | None = None  # the rate that was set while the schedule was at 0
        self._unscaled = self._current()
        self._ratios = [rate / self._unscaled[0] if self._unscaled[0] else 1.0 for rate in self._unscaled]
        self._follow()

    def set(self, rate: float) -> None:
        """Set the first group's rate; scale those of other groups, and all later ones, accordingly.

        A rate of 0 cannot be scaled: if the schedule is at 0, `rate` holds until it leaves 0, and later rates
        are scaled as before.
        """
        if self.schedule is self.scheduler is None:
            self._unscaled = self._current()
        if self._unscaled[0]:
            self._factor = rate / self._unscaled[0]
        else:
            self._held = rate
        self._write(self._scaled())
        self._write([rate])  # without rounding

    def step(self) -> None:
        """Update the parameters by the rates of this update."""
        if self.runs:
            self._count += 1
            self._follow()
        self._optimizer.step()
        if self.scheduler is not None and self.runs:
            if self._scaled() != self._unscaled:  # it may continue from the rates that it finds
                self._write(self._unscaled)
            self.scheduler.step()
            self._unscaled = self._current()
            self._write(self._scaled())

    def state(self) -> list[Any]:
        """Return what changes besides the optimizer's own state, as plain values."""
        leaves = tree_leaves_with_path({} if self.scheduler is None else self.scheduler.state_dict())
        of_scheduler = {keystr(path): each for path, each in leaves if isinstance(each, (int, float, str))}
        return [self._count, self._factor, self.runs, self._held, self._unscaled, of_scheduler]

    def load(self, state: Sequence[Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._count, self._factor, self.runs, self._held, self._unscaled, saved = state
        if self.scheduler is not None:  # whose functions and the like stay as they are
            before = self.scheduler.state_dict()
            after = tree_map_with_path(lambda path, value: saved.get(keystr(path), value), before)
            self.scheduler.load_state_dict(after)

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
        return [each * self._factor if each or self._held is None else self._held for each in self._unscaled]

    def _write(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


class TrainerHandle(engines.TrainerHandle):
    """A ``torch.optim.Optimizer`` with a name, and with controls that can be read and set at any time.

    All other attributes are read from the optimizer. A control that the optimizer lacks is None and cannot be
    set.

    * `learning_rate`: float, that of the first parameter group. Setting it scales the other groups alike, and
      the schedule from now on, if one runs. (While the schedule is at 0, the rate that was set holds.)
    * `weight_decay`: float. Setting it changes the groups that have the value of the first one.
    * `momentum`: float, the share of the past in the running mean of gradients: ``momentum``, or the first of
      Adam's ``betas``. It is set as `weight_decay` is.
    """

    __slots__ = ("optimizer", "rates")

    def __init__(self, name: str, optimizer: Optimizer, rates: Rates | None = None) -> None:
        self.name, self.optimizer = name, optimizer
        self.rates = rates or Rates(optimizer)

    def hold(self, rate: float) -> None:
        """Set a learning rate that no schedule changes any more."""
        self.rates.runs, self.learning_rate = False, rate

    def update(self) -> None:
        """Update the parameters by their gradients; an error names the trainer."""
        with user_code(lambda: f'trainers["{self.name}"]'):
            self.rates.step()

    def save_states(self, file: str | PathLike[str]) -> None:
        """Save the optimizer's ``state_dict``."""
        torch.save(self.optimizer.state_dict(), file)

    def load_states(self, file: str | PathLike[str]) -> None:
        """Load what :meth:`save_states` saved."""
        self.optimizer.load_state_dict(torch.load(file, weights_only=True))

    def _key(self, control: str) -> str:
        """Return the optimizer's name of a control."""
        adam = control == "momentum" and "betas" in self.optimizer.param_groups[0]
        return "betas" if adam else KEYS.get(control, control)

    def _read(self, control: str) -> float | None:
        value = self.optimizer.param_groups[0].get(self._key(control))
        return None if value is None else float(value[0] if isinstance(value, (tuple, list)) else value)

    def _write(self, control: str, value: float) -> None:
        key, groups = self._key(control), self.optimizer.param_groups
        before = groups[0][key]
        if key == "lr":
            if value != self._read(control):
                self.rates.set(value)
            return
        for group in groups:
            if group[key] == before:
                group[key] = (value, *before[1:]) if key == "betas" else value
        if value and key == "momentum" and isinstance(self.optimizer, torch.optim.RMSprop):
            for parameter, state in self.optimizer.state.items():  # which it expects to be complete
                state.setdefault("momentum_buffer", torch.zeros_like(parameter))
