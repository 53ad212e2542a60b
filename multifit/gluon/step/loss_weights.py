"""Compute the factor of each term: its weight over its normalizer."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...arguments import is_finite_number
from ...errors import SpecError, shown
from ...protocols import Array, Context
from ...spec.terms import Term
from ...spec.validate import weight_of
from ...state import RunState
from ..compat import mx
from ..data.arrays import new_array
from ..data.batch import Batch
from ..ranks.collectives import Normalizers
from ..user_code import user_code
from .loss_graph import LossGraph
from .present_losses import present_share

VALID_NORMALIZER = "it must be, or return, an array or a finite number, whose sum is at least 0"
Shares = Callable[[Sequence[Term], int], Mapping[str, float]]
MAX_VECTORS = 256  # cached on the devices; more only if weights change with every batch


class BatchLossScale:
    """The weights of one batch's terms, and their normalizers over the whole batch, by term.

    `own` holds this process's parts of the normalizers. `divisors` are what terms are divided by: the
    normalizers, unless the batch is one of several that make an update.
    """

    def __init__(
        self,
        weights: dict[str, float],
        norms: dict[str, Any],
        own: dict[str, Any],
        divisors: dict[str, Any] | None = None,
    ) -> None:
        self.weights, self.norms, self.own = weights, norms, own
        self.divisors = norms if divisors is None else divisors
        self.vectors: dict[Any, Any] = {}  # by the layout of a loss graph, and device

    def factor(self, term: Term, context: Context) -> Any:
        """Return a term's weight / divisor, float64 of shape (1,); 0 if the divisor is 0."""
        key = term.key, context
        if key not in self.vectors:
            self.vectors[key] = _quotient(self.weights[term.key], self.divisors[term.key], context)
        return self.vectors[key]


class LossScaler:
    """Computes the weights and normalizers of batches, without waiting for the engine.

    A normalizer is the number of samples of the whole batch, or the sum of a slot over all devices and
    processes. If that sum is 0, so are the term and its gradient. `dtype` is that of the objective;
    `normalizers` adds up over processes. ``shares(terms, samples)`` returns what terms are divided by, by
    key, if a batch of these samples is one of several that make an update.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        dtype: str,
        normalizers: Normalizers,
        shares: Shares | None = None,
    ) -> None:
        self.terms, self._dtype, self._normalizers = list(terms), dtype, normalizers
        self._shares = shares
        self._is_fixed = not any(callable(t.spec.weight) or not t.counts_samples for t in terms)
        self._scales: dict[Any, BatchLossScale] = {}
        self._vectors: dict[Any, Any] = {}

    def scale(self, batch: Batch, state: RunState | None) -> BatchLossScale:
        """Return the weights and normalizers of a batch; afterwards, its total number of samples is known.

        Raises SpecError if a weight function returns something that is not a weight.
        """
        key = batch.total, batch.samples
        if self._is_fixed and key in self._scales:
            return self._scales[key]
        weights = {term.key: weight_of(term, state) for term in self.terms}
        normalized = [term for term in self.terms if not term.counts_samples]
        local = {term.key: normalizer(term, batch) for term in normalized}
        sums = self._normalizers.add_up(batch, local)
        norms, parts = (
            {term.key: by_key.get(term.key, float(samples or 0)) for term in self.terms}
            for by_key, samples in ((sums, batch.total), (local, batch.samples))
        )
        for term in normalized:
            if least := getattr(term.spec.normalize_by, "least", 0):  # see MatchedAnchors
                empty = norms[term.key] < least
                norms[term.key] = norms[term.key] + empty * least
                parts[term.key] = parts[term.key] + empty * (least * batch.samples / (batch.total or 1))
        divisors = norms
        if normalized and self._shares is not None:
            divisors = {**norms, **self._shares(normalized, batch.total or 0)}
        scale = BatchLossScale(weights, norms, parts, divisors)
        if self._is_fixed and key[0] is not None:
            self._scales[key] = scale
        return scale

    def vector(self, losses: LossGraph, scale: BatchLossScale, context: Context) -> Any:
        """Return weight / divisor of a loss graph's terms as an NDArray; None without terms."""
        if not losses.terms:
            return None
        key = losses.layout, context  # not the graph, of which ever new sizes of samples have ever new ones
        if key not in scale.vectors:
            pairs = [(scale.weights[term.key], scale.divisors[term.key]) for term in losses.terms]
            if any(isinstance(norm, mx.nd.NDArray) for _, norm in pairs):
                quotients = [_quotient(weight, norm, context).astype(self._dtype) for weight, norm in pairs]
                scale.vectors[key] = mx.nd.concat(*quotients, dim=0)
            else:
                numbers = tuple(weight / norm if norm else 0.0 for weight, norm in pairs)
                scale.vectors[key] = self.constant(numbers, context)
        return scale.vectors[key]

    def drop_empty(self, losses: LossGraph, statistics: Any, scale: BatchLossScale) -> Array:
        """Return statistics in which the losses of terms with a normalizer of 0 are 0."""
        normalized = [(term, scale.norms[term.key]) for term in losses.terms if not term.counts_samples]
        empty = [(term, norm) for term, norm in normalized if isinstance(norm, mx.nd.NDArray) or not norm]
        if not empty:
            return statistics
        statistics = statistics.copy()
        for term, norm in empty:
            part = losses.slices[term.where]
            statistics[part] = without_empty(statistics[part], norm)
        return statistics

    def constant(self, values: tuple[float, ...], context: Context) -> Array:
        """Return numbers as an NDArray, the same one each time."""
        if (values, context) not in self._vectors:
            if len(self._vectors) > MAX_VECTORS:
                self._vectors.clear()
            self._vectors[values, context] = new_array(values, context, self._dtype)
        return self._vectors[values, context]


def normalizer(term: Term, batch: Batch, reads: bool = False) -> Any:
    """Return this process's part of a term's normalizer: a float, or an NDArray of shape (1,).

    If it `reads` NDArrays, it returns a float, and may wait for the engine.

    Raises SpecError if a loss cannot be divided by it, as far as that is known without waiting for the
    engine.
    """
    if not term.optional.isdisjoint(batch.absent):
        return 0.0
    if term.optional and term.spec.normalize_by is None and not term.present:
        return float(batch.samples)
    by, sums = term.spec.normalize_by, []
    by = partial(present_share, term) if by is None else by
    for slots in batch.slots:
        with user_code(lambda: f"{term.where}.normalize_by", *slots.items()):
            value = by(slots) if callable(by) else slots[by]
        is_valid = isinstance(value, (mx.nd.NDArray, np.ndarray)) or is_finite_number(value)
        total = _sum(value, reads) if is_valid else math.nan
        if isinstance(total, float) and not 0 <= total < math.inf:
            raise SpecError(f"{term.where}: normalize_by is {shown(value)}; {VALID_NORMALIZER}")
        sums.append(total)
    if all(isinstance(value, float) for value in sums):
        return sum(sums, 0.0)
    arrays = [_as_array(value, batch.contexts[0]) for value in sums]
    return mx.nd.add_n(*arrays) if len(arrays) > 1 else arrays[0]


def without_empty(sums: Array, norm: Any) -> Array:
    """Return the sums of a term's parts, or 0 if its normalizer is 0: then nothing counts, not even NaN."""
    if not isinstance(norm, mx.nd.NDArray):
        return sums if norm else mx.nd.zeros_like(sums)
    present = mx.nd.tile(norm.as_in_context(sums.context) != 0, len(sums))
    return mx.nd.where(present, sums, mx.nd.zeros_like(sums))


def _sum(value: Any, reads: bool) -> Any:
    """Return a sum, in float64: a sum of bytes would be a byte, and float32 stops counting at 2**24."""
    if isinstance(value, mx.nd.NDArray) and not reads:
        return mx.nd.sum(value.astype("float64"))
    value = value.asnumpy() if isinstance(value, mx.nd.NDArray) else value
    return float(np.sum(value, dtype="float64"))


def _as_array(value: Any, context: Context) -> Any:
    if isinstance(value, mx.nd.NDArray):
        return value.as_in_context(context)
    return mx.nd.full((1,), value, ctx=context, dtype="float64")


def _quotient(value: float, norm: Any, context: Context) -> Any:
    """Return value / norm, or 0 where the norm is 0, as an NDArray."""
    if not isinstance(norm, mx.nd.NDArray):
        return _as_array(value / norm if norm else 0.0, context)
    norm = norm.as_in_context(context)
    return mx.nd.where(norm == 0, mx.nd.zeros_like(norm), value / norm)
