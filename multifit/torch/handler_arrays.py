"""What handlers do with tensors; see :class:`multifit.engines.Arrays`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..distributed import World
from ..engines import Arrays
from ..engines.batch import as_numpy
from ..spec import TaskSpec
from ..spec.terms import LABELS, Ref, Taker, Term, changed
from ..utils.protocols import Numbers
from .batch import Batch
from .losses import Objective
from .model import Model

COMPARISONS: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...] = (
    ((nn.CrossEntropyLoss, nn.NLLLoss, F.cross_entropy, F.nll_loss, "accuracy", "acc"), {"axis": 1}),
    ((nn.BCELoss, F.binary_cross_entropy), {"threshold": 0.5}),
    ((nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits, "binary_accuracy"), {"threshold": 0.0}),
    ((nn.L1Loss, nn.MSELoss, nn.HuberLoss, nn.SmoothL1Loss, F.l1_loss, F.mse_loss, F.huber_loss), {}),
    ((F.smooth_l1_loss, "mae", "mse", "rmse"), {}),
)


class TorchArrays(Arrays):
    """Functions on tensors."""

    def __init__(self, spec: TaskSpec, model: Model, world: World) -> None:
        self._spec, self._model, self._world = spec, model, world
        self._objectives: dict[Any, Objective] = {}

    def held(self, kind: str = "all") -> dict[str, list[Any]]:
        parameters, statistics = self._model.parameters, self._model.statistics
        trained = {name: p for name, p in parameters.items() if kind == "all" or p.requires_grad}
        tensors = statistics if kind == "statistics" else {**trained, **(statistics if kind == "all" else {})}
        return {name: [tensor.detach()] for name, tensor in tensors.items() if not is_lazy(tensor)}

    def numpy(self, array: Any) -> Numbers:
        numbers: Numbers = as_numpy(array).copy()
        return numbers

    def copy(self, array: Any) -> Tensor:
        copied: Tensor = array.detach().clone()
        return copied

    def assign(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def approach(self, average: Any, value: Any, rate: float) -> Any:
        if not value.is_floating_point():  # such as a BatchNorm's number of batches
            return average.copy_(value)
        return average.to(value.device).lerp_(value, rate)  # it was read from a checkpoint

    def noise(self, arrays: Sequence[Any], sigma: float, random: Callable[..., Any] | None) -> list[Any]:
        draw = torch.normal if random is None else random
        places = [{"dtype": each.dtype, "device": each.device} for each in arrays]
        noises = [draw(0.0, sigma, size=tuple(each.shape), **where) for each, where in zip(arrays, places)]
        if not self._world.alone:
            hosts = [noise.cpu() for noise in noises]
            self._world.broadcast([host.numpy() for host in hosts])
            noises = [host.to(noise.device) for host, noise in zip(hosts, noises)]
        return noises

    def add(self, array: Any, other: Any) -> None:
        array += other

    def indices(self, order: Numbers, array: Any) -> Tensor:
        return torch.from_numpy(order).to(array.device)

    def take(self, array: Any, order: Any, axis: int) -> Tensor:
        taken: Tensor = array.index_select(axis, order)
        return taken

    def objectives(
        self, arrays: Mapping[Ref, Any], terms: Sequence[Term], scale: Any, axis: int, smoothed: bool = False
    ) -> list[Any]:
        key = tuple(term.key for term in terms), smoothed
        if key not in self._objectives:
            chosen = tuple(map(self.smoothed, terms)) if smoothed else tuple(terms)
            spec = changed(self._spec, terms=chosen)
            self._objectives[key] = Objective(spec, self._world, self._model.device, None)
        slots = {ref.name: array for ref, array in arrays.items() if ref.space == LABELS}
        samples = next(array.shape[axis] for array in slots.values() if array is not None)
        losses = self._objectives[key](arrays, Batch(None, samples, axis, slots=slots), scale)
        return list(losses.objectives.values())

    def smoothed(self, term: Term) -> Term:
        """Return a term whose cross entropy is that for uniformly distributed labels."""
        fn: Any = copy.copy(term.spec.fn)
        fn.label_smoothing = 1.0
        return replace(term, spec=replace(term.spec, fn=fn))

    def can_smooth(self, term: Term) -> bool:
        fn: Any = term.spec.fn
        return type(fn) is nn.CrossEntropyLoss and fn.label_smoothing == 0

    def comparison(self, taker: Taker) -> Mapping[str, Any] | None:
        spec: Any = taker.spec
        fn = spec.fn if isinstance(taker, Term) else None if spec.transform else spec.metric
        known = [how for kinds, how in COMPARISONS if any(fn == each or type(fn) is each for each in kinds)]
        return known[0] if known else None

    def is_sparse(self, array: Any) -> bool:
        sparse: bool = array.layout is not torch.strided
        return sparse

    def all_finite(self, arrays: Sequence[Any]) -> Tensor:
        dense = [each._values() if self.is_sparse(each) else each for each in arrays]
        norms = torch._foreach_norm([each.float() for each in dense])
        return torch.isfinite(torch.stack(norms).sum()).float()

    def zero_unless(self, flag: Any, arrays: Sequence[Any]) -> None:
        for array in arrays:
            values = array._values() if self.is_sparse(array) else array
            values.masked_fill_(flag == 0, 0.0)
