"""The weights of a batch's losses, and what they are divided by."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar

import numpy as np

from ..distributed import World
from ..handlers.state import RunState
from ..spec.terms import Term
from ..spec.validate import weight_of
from ..utils.arguments import is_finite_number
from ..utils.errors import SpecError
from ..utils.text import shown

VALID_NORMALIZER = "it must be, or return, {} or a finite number, whose sum is at least 0"
MAX_SCALES = 64  # that are remembered, by numbers of samples

Divisors = Callable[[Sequence[Term], int], Mapping[str, float]]
"""Returns what losses are divided by in one of several batches of an update, which has these samples."""


@dataclass
class Scale:
    """The weights of a batch's losses, and what they are divided by, by loss.

    `norms` are the normalizers of the whole batch, over all devices and ranks: numbers, or arrays of one
    element. `shares` are this rank's parts of them, in proportion to its samples. `divisors` are the norms
    too, unless the batch is one of several that make an update. An engine may keep arrays that it makes of
    them in `vectors`.
    """

    weights: dict[str, float]
    norms: dict[str, Any]
    divisors: dict[str, Any]
    shares: dict[str, Any] = field(default_factory=dict)
    vectors: dict[Any, Any] = field(default_factory=dict)


class Scales(ABC):
    """Computes the scales of batches, without waiting for the device.

    A normalizer is the number of samples of the whole batch, or the sum of a slot, or of what a function
    returns, over all devices and ranks. If it is 0, so are the loss and its gradient. `divisors` are those of
    batches that are added up.

    An engine says how an array is summed on a device, and numbers and arrays over the ranks. `array` is its
    word for an array, `user_code` its scope for calls of the user's functions, and ``present_share(term,
    slots)`` returns the share of each sample that counts for a loss whose labels may be missing.
    """

    array: ClassVar[str]
    user_code: ClassVar[Any]
    present_share: ClassVar[Any]

    def __init__(self, terms: Sequence[Term], world: World, divisors: Divisors | None = None) -> None:
        self.terms, self._world, self._divisors = terms, world, divisors
        self._normalized = [term for term in terms if not term.counts_samples]
        self._has_functions = any(callable(term.spec.weight) for term in terms)
        self._fixed: dict[tuple[int | None, int], Scale] = {}  # by the samples of the batch and of this rank

    def scale(self, batch: Any, state: RunState | None) -> Scale:
        """Return the weights and normalizers of a batch; afterwards, its total number of samples is known.

        Raises SpecError if a function returns what cannot be a weight or a normalizer. If there are
        normalizers, or the total is not known, all ranks must call this.
        """
        if batch.total is None:
            batch.total = round(float(self._world.sum([batch.samples])[0]))
        normalized, key = self.normalized(batch), (batch.total, batch.samples)
        if not normalized and key in self._fixed:
            return self._fixed[key]
        weights = {term.key: weight_of(term, state) for term in self.terms}
        norms: dict[str, Any] = dict.fromkeys(weights, float(batch.total))
        values = [self.normalizer(term, batch) for term in normalized]
        if values and not self._world.alone:
            values = self.joined(values, batch)
        for term, norm in zip(normalized, values):
            least = getattr(term.spec.normalize_by, "least", 0)  # see MatchedAnchors
            norms[term.key] = norm + (norm < least) * least if least else norm
        divisors = shares = norms
        if normalized and self._divisors is not None:
            divisors = {**norms, **self._divisors(normalized, batch.total)}
        if batch.samples != batch.total:
            shares = {key: norm * batch.samples / batch.total for key, norm in norms.items()}
        scale = Scale(weights, norms, divisors, shares)
        if not (normalized or self._has_functions) and len(self._fixed) < MAX_SCALES:
            self._fixed[key] = scale
        return scale

    def normalizer(self, term: Term, batch: Any) -> Any:
        """Return this rank's summand of a loss's normalizer: a number, or an array of one element.

        Raises SpecError if the loss cannot be divided by it, as far as that is known without waiting.
        """
        by, sums = term.spec.normalize_by, []
        if not batch.samples or not term.optional.isdisjoint(batch.absent):
            return 0.0
        if by is None and not term.present:
            return self.counted(term, batch)
        by = partial(self.present_share, term) if by is None else by
        for slots in batch.slots if isinstance(batch.slots, list) else [batch.slots]:
            with self.user_code(lambda: f"{term.where}.normalize_by", *slots.items()):
                value = by(slots) if callable(by) else slots[by]
            total = self.summed(value, batch)
            if isinstance(total, float) and not 0 <= total < math.inf:
                valid = VALID_NORMALIZER.format(self.array)
                raise SpecError(f"{term.where}: normalize_by is {shown(value)}; {valid}")
            sums.append(total)
        return reduce(add, sums)

    def normalized(self, batch: Any) -> list[Term]:
        """Return the losses with another normalizer than the number of samples; the same on all ranks."""
        return self._normalized

    def counted(self, term: Term, batch: Any) -> Any:
        """Return the normalizer, on this rank, of a loss that declares none."""
        return float(batch.samples)

    def summed(self, value: Any, batch: Any) -> Any:
        """Return the sum of an array in float64, on the batch's first device, or a float.

        Returns NaN for what is neither an array nor a finite number.
        """
        is_number = isinstance(value, np.ndarray) or is_finite_number(value)
        return float(np.sum(value, dtype="float64")) if is_number else math.nan

    @abstractmethod
    def joined(self, values: list[Any], batch: Any) -> list[Any]:
        """Return the sums over the ranks of numbers and arrays of one element."""
