"""What handlers do with MXNet's arrays; see :class:`multifit.engines.Arrays`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..distributed import World
from ..engines import Arrays
from ..protocols import Array, Numbers, Parameter
from .compat import mx
from .distributed.collectives import broadcast
from .optim.parameters import statistics

CHUNK = 200  # MXNet takes no more arrays at once


class GluonArrays(Arrays):
    """Functions on arrays of MXNet; `publish` writes into `parameters` what another engine holds."""

    def __init__(
        self, parameters: Mapping[str, Parameter], world: World, publish: Callable[[], object]
    ) -> None:
        self._parameters, self._world, self._publish = parameters, world, publish

    def held(self, kind: str = "all") -> dict[str, list[Array]]:
        self._publish()
        known = {name: p for name, p in self._parameters.items() if p._data is not None}
        if kind == "statistics":
            known = statistics(known)
        elif kind == "trained":
            known = {name: p for name, p in known.items() if p.grad_req != "null"}
        return {name: p.list_data() for name, p in known.items()}

    def numpy(self, array: Array) -> Numbers:
        numbers: Numbers = array.asnumpy()
        return numbers

    def copy(self, array: Array) -> Array:
        return array.copy()

    def assign(self, target: Array, source: Array) -> None:
        source.copyto(target)

    def approach(self, average: Array, value: Array, rate: float) -> Array:
        # MXNet's step of gradient descent computes a - rate (a - w) in one pass, with the value as the
        # gradient and the average as its own decay. If a parameter does not change, its average is exactly
        # equal to it, unlike with ``sgd_update``. Updating many arrays in one call takes longer than one by
        # one.
        mx.nd.multi_sgd_update(
            average, value, lrs=(rate,), wds=(1.0,), rescale_grad=-1.0, num_weights=1, out=[average]
        )
        return average

    def noise(self, arrays: Sequence[Array], sigma: float, random: Callable[..., Any] | None) -> list[Array]:
        draw = mx.nd.random.normal if random is None else random
        noises = [draw(0, sigma, shape=each.shape, dtype=each.dtype, ctx=each.context) for each in arrays]
        broadcast(self._world, noises)
        return noises

    def add(self, array: Array, other: Array) -> None:
        array += other.as_in_context(array.context)

    def is_sparse(self, array: Array) -> bool:
        sparse: bool = array.stype != "default"
        return sparse

    def all_finite(self, arrays: Sequence[Array]) -> Array:
        by_dtype: dict[Any, list[Any]] = {}
        for array in arrays:
            by_dtype.setdefault(np.dtype(array.dtype), []).append(array.tostype("default"))
        chunks = [each[i : i + CHUNK] for each in by_dtype.values() for i in range(0, len(each), CHUNK)]
        # multi_all_finite takes forty times as long
        squares = [mx.nd.multi_sum_sq(*chunk, num_arrays=len(chunk)) for chunk in chunks]
        total = mx.nd.sum(mx.nd.concat(*squares, dim=0), axis=0, keepdims=True)
        return mx.nd.contrib.isfinite(total)

    def zero_unless(self, flag: Array, arrays: Sequence[Array]) -> None:
        for array in arrays:
            if self.is_sparse(array):
                dense = array.tostype("default")
                _keep_if(dense, flag)
                dense.tostype(array.stype).copyto(array)
            else:
                _keep_if(array, flag)


def _keep_if(array: Array, flag: Array) -> None:
    # The array becomes a sequence of one step, which is overwritten if the length is 0. A product would not
    # work, because 0 * NaN is NaN; `where` takes six times as long. The reshaped array shares its memory with
    # the array.
    step = array.reshape((1, 1, -1))
    mx.nd.SequenceMask(step, flag, use_sequence_length=True, value=0, out=step)
