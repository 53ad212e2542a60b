"""What every term is multiplied with: its weight over its normaliser."""

from __future__ import annotations

import numbers
from typing import Any, Sequence

import numpy as np

from ...errors import SpecError, shown
from ...spec.terms import Term
from ...spec.validate import weight_problem
from ..compat import mx
from ..data.batches import Batch
from ..user_code import user_code
from .loss_graph import LossGraph

__all__ = ["BatchLossScale", "LossScaler"]


class BatchLossScale:
    """One batch's weights and normalisers, by term."""

    def __init__(self, weights: dict[str, float], norms: dict[str, Any]) -> None:
        self.weights, self.norms = weights, norms
        self.vectors: dict[Any, Any] = {}  # by head and device, for as long as these are the factors


class LossScaler:
    """Computes the factors of a batch, without waiting for the engine.

    A normaliser is the number of samples of the whole batch, or the sum of a slot over all devices; where
    that sum is 0, so is the factor.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = list(terms)
        self._constant = not any(callable(t.spec.weight) or t.spec.normalize_by is not None for t in terms)
        self._factors: dict[int, BatchLossScale] = {}
        self._vectors: dict[Any, Any] = {}

    def factors(self, batch: Batch, state: Any) -> BatchLossScale:
        """Return the factors for a batch.

        Raises
        ------
        SpecError
            A weight that is a function returned something impossible.
        """
        if self._constant and batch.samples in self._factors:
            return self._factors[batch.samples]
        weights = {term.key: self._weight(term, state) for term in self.terms}
        norms = {term.key: self._norm(term, batch) for term in self.terms}
        factors = BatchLossScale(weights, norms)
        if self._constant:
            self._factors[batch.samples] = factors
        return factors

    def vector(self, head: LossGraph, factors: BatchLossScale, context: Any) -> Any:
        """Return weight / normaliser of a head's terms as an NDArray on `context`; None without terms."""
        if not head.terms:
            return None
        if (head, context) not in factors.vectors:
            factors.vectors[head, context] = self._vector(head, factors, context)
        return factors.vectors[head, context]

    def _vector(self, head: LossGraph, factors: BatchLossScale, context: Any) -> Any:
        pairs = [(factors.weights[term.key], factors.norms[term.key]) for term in head.terms]
        if any(isinstance(norm, mx.nd.NDArray) for _, norm in pairs):
            return mx.nd.concat(*[_quotient(weight, norm, context) for weight, norm in pairs], dim=0)
        numbers = tuple(weight / norm if norm else 0.0 for weight, norm in pairs)
        return self.constant(numbers, context)

    def counted(self, head: LossGraph, statistics: Any, factors: BatchLossScale) -> Any:
        """Return a head's statistics; what a normaliser of 0 would divide becomes 0."""
        normalised = [term for term in head.terms if term.spec.normalize_by is not None]
        if not normalised:
            return statistics
        statistics = statistics.copy()
        for term in normalised:
            part, norm = head.slices[term.where], factors.norms[term.key]
            if isinstance(norm, mx.nd.NDArray):
                sums = statistics[part]
                some = mx.nd.tile(norm.as_in_context(statistics.context) != 0, len(sums))
                statistics[part] = mx.nd.where(some, sums, mx.nd.zeros_like(sums))
            elif not norm:
                statistics[part] = 0
        return statistics

    def constant(self, numbers: tuple[float, ...], context: Any) -> Any:
        """Return the numbers as an NDArray that is made once."""
        if (numbers, context) not in self._vectors:
            if len(self._vectors) > 256:  # weights that change with every batch
                self._vectors.clear()
            self._vectors[numbers, context] = mx.nd.array(numbers, ctx=context)
        return self._vectors[numbers, context]

    @staticmethod
    def _weight(term: Term, state: Any) -> float:
        weight = term.spec.weight
        if not callable(weight):
            return weight
        with user_code(lambda: f"{term.where}.weight", ("state", state)):
            value = weight(state)
        problem = weight_problem(term.where, shown(value) if callable(value) else value)
        if problem:
            raise SpecError(f"{problem}; its function returned it for {state}")
        return float(value)

    @staticmethod
    def _norm(term: Term, batch: Batch) -> Any:
        by = term.spec.normalize_by
        if by is None:
            return float(batch.samples)
        sums = []
        for slots in batch.slots:
            with user_code(lambda: f"{term.where}.normalize_by", *slots.items()):
                value = by(slots) if callable(by) else slots[by]
            if not isinstance(value, (mx.nd.NDArray, np.ndarray, numbers.Real)):
                found = f"normalize_by is {shown(value)}"
                raise SpecError(f"{term.where}: {found}; it must be, or return, an array or a number")
            sums.append(_summed(value))
        if all(isinstance(value, float) for value in sums):
            return sum(sums)
        first = batch.contexts[0]
        arrays = [_as_array(value, first) for value in sums]
        return mx.nd.add_n(*arrays) if len(arrays) > 1 else arrays[0]


def _summed(value: Any) -> Any:
    if isinstance(value, mx.nd.NDArray):
        # in float64: a sum of bytes would be a byte, and float32 stops counting at 2**24
        return mx.nd.sum(value.astype("float64"))
    return float(np.sum(value))


def _as_array(value: Any, context: Any) -> Any:
    if isinstance(value, float):
        return mx.nd.full((1,), value, ctx=context, dtype="float64")
    return value.as_in_context(context)


def _quotient(weight: float, norm: Any, context: Any) -> Any:
    if not isinstance(norm, mx.nd.NDArray):
        return mx.nd.full((1,), weight / norm if norm else 0.0, ctx=context)
    norm = norm.as_in_context(context)
    return mx.nd.where(norm == 0, mx.nd.zeros_like(norm), weight / norm).astype("float32")
