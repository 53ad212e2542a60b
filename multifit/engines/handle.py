"""A trainer with a name, and with controls that can be read and set at any time."""

from abc import ABC, abstractmethod
from typing import Any

from ..utils.arguments import NotNegative, Share, checked_value
from ..utils.errors import TrainerError
from ..utils.text import quoted

CONTROLS: dict[str, Any] = {"learning_rate": NotNegative, "weight_decay": NotNegative, "momentum": Share}
"""The controls, and what values they take."""


def _control(name: str, doc: str) -> Any:
    """Return a property that reads and sets a control."""
    return property(lambda self: self._read(name), lambda self, value: self._set(name, value), doc=doc)


class TrainerHandle(ABC):
    """A trainer of any library; attributes that are not defined here are read from the library's object.

    A control that the optimizer lacks is None and cannot be set. The first slot of a subclass holds the
    library's object.
    """

    __slots__ = ("name",)
    optimizer: Any
    learning_rate = _control("learning_rate", "The current learning rate.")
    weight_decay = _control("weight_decay", "The weight decay.")
    momentum = _control("momentum", "The momentum or its equivalent.")

    def __getattr__(self, name: str) -> Any:
        held = self.__slots__
        if name in held or name.startswith("__"):  # while the handle is being copied, it holds nothing
            raise AttributeError(name)
        return getattr(getattr(self, held[0]), name)

    def __repr__(self) -> str:
        values = ", ".join(f"{each}={self._read(each)}" for each in self._controls())
        return f'TrainerHandle("{self.name}", {type(self.optimizer).__name__}: {values})'

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate, also while a schedule runs."""
        self.learning_rate = rate

    def _controls(self) -> list[str]:
        """Return the controls that the optimizer has."""
        return [name for name in CONTROLS if self._read(name) is not None]

    def _set(self, control: str, value: Any) -> None:
        """Set a control; raises TrainerError if the optimizer lacks it, ValueError for a value not valid."""
        where = f'trainers["{self.name}"].{control}'
        if self._read(control) is None:
            name, valid = type(self.optimizer).__name__, quoted(self._controls())
            raise TrainerError(f"{where}: {name} has none; it has {valid}")
        self._write(control, checked_value(where, value, CONTROLS[control]))

    @abstractmethod
    def _read(self, control: str) -> float | None:
        """Return the value of a control; None if the optimizer lacks it."""

    @abstractmethod
    def _write(self, control: str, value: float) -> None:
        """Set a control that the optimizer has to a valid value."""
