"""What handlers do with an engine's arrays besides arithmetic, so that one handler serves all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..spec.terms import Ref, Taker, Term
from ..utils.protocols import Array, Numbers


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
    def comparison(self, taker: Taker) -> Mapping[str, Any] | None:
        """Return how a loss or a metric compares its output with its label; None if that is not known.

        As classes along an "axis" of the output; as two classes, of which the second is above a "threshold";
        or, with neither, as numbers.
        """

    @abstractmethod
    def indices(self, order: Numbers, array: Array) -> Array:
        """Return a permutation of the samples on the device of an array."""

    @abstractmethod
    def take(self, array: Array, order: Array, axis: int) -> Array:
        """Return an array in another order along an axis."""

    @abstractmethod
    def objectives(
        self, arrays: Mapping[Ref, Any], terms: Sequence[Term], scale: Any, axis: int, smoothed: bool = False
    ) -> list[Array]:
        """Return what one device adds to the objective by these losses, for outputs and slots by reference.

        `scale` is the batch's scale. If `smoothed`, these are the losses for labels that are uniformly
        distributed over all classes.
        """

    @abstractmethod
    def can_smooth(self, term: Term) -> bool:
        """Return whether a loss can be computed for labels that are uniformly distributed."""

    @abstractmethod
    def is_sparse(self, array: Array) -> bool:
        """Return whether an array is sparse."""

    @abstractmethod
    def all_finite(self, arrays: Sequence[Array]) -> Array:
        """Return 1 if the norm of one device's arrays is finite, else 0: one number, without waiting."""

    @abstractmethod
    def zero_unless(self, flag: Array, arrays: Sequence[Array]) -> None:
        """Set one device's arrays to 0 if the flag is 0, without waiting."""
