"""Computes what losses are multiplied by: their weights over their normalizers."""

from collections.abc import Sequence
from typing import Any

from ...distributed import World
from ...engines.scale import Divisors, Scale, Scales
from ...handlers.state import RunState
from ...spec.terms import Term
from ...utils.protocols import Array, Context
from ..compat import mx
from ..data.arrays import new_array
from ..data.batch import Batch
from ..user_code import user_code
from .loss_calls import present_share
from .loss_graph import LossGraph

MAX_VECTORS = 256  # cached on the devices; more only if weights change with every batch


class Weights(Scales):
    """Computes the scales of batches, and vectors of them on the devices.

    `dtype` is that of the objective, and of the vectors.
    """

    array = "an array"
    user_code, present_share = staticmethod(user_code), staticmethod(present_share)

    def __init__(
        self, terms: Sequence[Term], dtype: str, world: World, divisors: Divisors | None = None
    ) -> None:
        super().__init__(terms, world, divisors)
        self._dtype, self._constants = dtype, dict[Any, Array]()

    def scale(self, batch: Batch, state: RunState | None) -> Scale:
        """Return the weights and normalizers of a batch, mostly those of an earlier one."""
        fixed = self._fixed.get((batch.total, batch.samples))
        return super().scale(batch, state) if fixed is None else fixed

    def vector(self, losses: LossGraph, scale: Scale, context: Context) -> Array | None:
        """Return weight / divisor of a loss graph's terms; None without terms."""
        key = losses.layout, context  # not the graph, of which ever new sizes of samples have ever new ones
        vector = scale.vectors.get(key)
        if vector is None and losses.terms:
            pairs = [(scale.weights[term.key], scale.divisors[term.key]) for term in losses.terms]
            if any(isinstance(divisor, mx.nd.NDArray) for _, divisor in pairs):
                quotients = [_quotient(*pair, context).astype(self._dtype) for pair in pairs]
                vector = mx.nd.concat(*quotients, dim=0)
            else:
                numbers = tuple(weight / divisor if divisor else 0.0 for weight, divisor in pairs)
                vector = self.constant(numbers, context)
            scale.vectors[key] = vector
        return vector

    def constant(self, values: tuple[float, ...], context: Context) -> Array:
        """Return numbers as an array, the same one each time."""
        key = values, context
        if (array := self._constants.get(key)) is None:
            if len(self._constants) > MAX_VECTORS:
                self._constants.clear()
            array = self._constants[key] = new_array(values, context, self._dtype)
        return array

    def summed(self, value: Any, batch: Batch) -> Any:
        """Return the sum in float64: one of bytes would be a byte, and float32 stops counting at 2**24."""
        if isinstance(value, mx.nd.NDArray):
            return mx.nd.sum(value.astype("float64")).as_in_context(batch.contexts[0])
        return super().summed(value, batch)

    def joined(self, values: list[Any], batch: Batch) -> list[Any]:
        """Return the sums over the ranks; they are queued on the device if the ranks' library can do that."""
        if not self._world.asynchronous:
            return list(map(float, self._world.sum(list(map(as_number, values)))))
        context = batch.contexts[0] if batch.contexts else mx.cpu()
        vector = mx.nd.concat(*[_as_array(value, context) for value in values], dim=0)
        self._world.all_reduce([vector])
        return [vector[i : i + 1] for i in range(len(values))]


def as_number(value: Any) -> float:
    """Return a number, or the element of an array; this waits for it."""
    return float(value.asscalar() if isinstance(value, mx.nd.NDArray) else value)


def factor(term: Term, scale: Scale, context: Context) -> Array:
    """Return a term's weight / divisor, float64 of shape (1,)."""
    key = term.key, context
    if key not in scale.vectors:
        scale.vectors[key] = _quotient(scale.weights[term.key], scale.divisors[term.key], context)
    return scale.vectors[key]


def drop_empty(losses: LossGraph, statistics: Array, scale: Scale) -> Array:
    """Return statistics in which the losses of terms with a normalizer of 0 are 0, even if they are NaN."""
    normalized = [(term, scale.norms[term.key]) for term in losses.terms if not term.counts_samples]
    empty = [(term, norm) for term, norm in normalized if isinstance(norm, mx.nd.NDArray) or not norm]
    statistics = statistics.copy() if empty else statistics
    for term, norm in empty:
        where = losses.slices[term.where]
        sums = statistics[where]
        zeros = mx.nd.zeros_like(sums)
        if isinstance(norm, mx.nd.NDArray):
            is_present = mx.nd.tile(norm.as_in_context(sums.context) != 0, len(sums))
            zeros = mx.nd.where(is_present, sums, zeros)
        statistics[where] = zeros
    return statistics


def _as_array(value: Any, context: Context) -> Array:
    if isinstance(value, mx.nd.NDArray):
        return value.as_in_context(context)
    return mx.nd.full((1,), value, ctx=context, dtype="float64")


def _quotient(weight: float, divisor: Any, context: Context) -> Array:
    """Return weight / divisor, or 0 where the divisor is 0."""
    if not isinstance(divisor, mx.nd.NDArray):
        return _as_array(weight / divisor if divisor else 0.0, context)
    divisor = divisor.as_in_context(context)
    return mx.nd.where(divisor == 0, mx.nd.zeros_like(divisor), weight / divisor)
