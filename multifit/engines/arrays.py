"""What handlers do with an engine's arrays besides arithmetic, so that one handler serves all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ..protocols import Array, Numbers


class Arrays(ABC):
    """Functions on the arrays of an engine."""

    @abstractmethod
    def held(self, kind: str = "all") -> dict[str, list[Array]]:
        """Return the arrays of parameters and running statistics themselves, by name, one for each device.

        Of kind "trained", these are the parameters that have gradients; of kind "statistics", those that the
        forward pass changes.
        """

    @abstractmethod
    def numpy(self, array: Array) -> Numbers:
        """Return a copy for NumPy; waits for the device."""

    @abstractmethod
    def copy(self, array: Array) -> Array:
        """Return a copy on the same device."""

    @abstractmethod
    def assign(self, target: Array, source: Array) -> None:
        """Set an array to the values of another one."""

    @abstractmethod
    def approach(self, average: Array, value: Array, rate: float) -> Array:
        """Move an average towards a value by the share `rate` of their distance, in place; return it.

        It may be returned on another device, that of the value.
        """

    @abstractmethod
    def noise(self, arrays: Sequence[Array], sigma: float, random: Callable[..., Any] | None) -> list[Array]:
        """Return normal noise for each array, the same on all ranks; drawn by `random`, if one is given."""

    @abstractmethod
    def add(self, array: Array, other: Array) -> None:
        """Add an array, which may be on another device, to one in place."""

    @abstractmethod
    def is_sparse(self, array: Array) -> bool:
        """Return whether an array is sparse."""

    @abstractmethod
    def all_finite(self, arrays: Sequence[Array]) -> Array:
        """Return 1 if the norm of one device's arrays is finite, else 0: one number, without waiting."""

    @abstractmethod
    def zero_unless(self, flag: Array, arrays: Sequence[Array]) -> None:
        """Set one device's arrays to 0 if the flag is 0, without waiting."""
