"""What handlers do with tensors; see :class:`multifit.engines.Arrays`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..distributed import World
from ..engines import Arrays
from ..protocols import Numbers
from .model import Model


class TorchArrays(Arrays):
    """Functions on tensors."""

    def __init__(self, model: Model, world: World) -> None:
        self._model, self._world = model, world

    def held(self, kind: str = "all") -> dict[str, list[Any]]:
        parameters, statistics = self._model.parameters, self._model.statistics
        trained = {name: p for name, p in parameters.items() if kind == "all" or p.requires_grad}
        tensors = statistics if kind == "statistics" else {**trained, **(statistics if kind == "all" else {})}
        return {name: [tensor.detach()] for name, tensor in tensors.items()}

    def numpy(self, array: Any) -> Numbers:
        array = array.detach().cpu()
        numbers: Numbers = (array.float() if array.dtype == torch.bfloat16 else array).numpy().copy()
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
