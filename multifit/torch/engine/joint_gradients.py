"""The gradients of all ranks on torch: who reached which parameter, and their sum."""

from __future__ import annotations

import zlib
from typing import Collection

import torch

from ...distributed import World
from .gradients import Gradients
from .parameters import Parameters


class JointGradients:
    """Adds up gradients over the ranks, in the same order everywhere; alone, does nothing.

    Tensors on a GPU are summed there if the ranks' communicator takes tensors, as torch.distributed does by
    NCCL; else on the host.
    """

    def __init__(self, world: World, parameters: Parameters) -> None:
        self._world, self._parameters = world, parameters

    def hold(self, held: bool, gradients: Gradients, due: Collection[str]) -> bool:
        """Return whether a handler of any rank holds the update back.

        If none does, parameters that only other ranks' samples have reached get gradients of 0. `due` are the
        names of the parameters whose trainers move.
        """
        if self._world.alone:
            return held
        names = sorted(gradients.tensors.keys() & due)
        facts = self._world.meet("the gradients", float(held), float(zlib.crc32("\n".join(names).encode())))
        if facts[:, 0].any():
            return True
        if len(set(facts[:, 1])) > 1:
            every = self._world.gather_json(names, "the names of the gradients")
            for name in set().union(*every) - set(names):
                gradients.tensors[name] = torch.zeros_like(self._parameters.tensors[name])
        return False

    def add_up(self, gradients: Gradients, due: Collection[str]) -> None:
        """Replace gradients by their sums over the ranks, which must have met just before."""
        if self._world.alone:
            return
        tensors: dict[int, torch.Tensor] = {}
        for name in sorted(gradients.tensors.keys() & due):
            tensor = gradients.tensors[name].detach().contiguous()
            if tensor.data_ptr() in tensors:  # two parameters may have one gradient
                tensor = tensor.clone()
            tensors[tensor.data_ptr()] = gradients.tensors[name] = tensor
        self._sum(list(tensors.values()))

    def _sum(self, tensors: list[torch.Tensor]) -> None:
        if hasattr(self._world.communicator, "all_reduce_tensors"):
            self._world.all_reduce_tensors(tensors)
            return
        on_host = [tensor.cpu() for tensor in tensors]
        self._world.all_reduce([tensor.numpy() for tensor in on_host])
        for tensor, summed in zip(tensors, on_host):
            tensor.copy_(summed)
