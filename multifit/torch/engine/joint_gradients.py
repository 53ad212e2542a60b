"""The gradients of all ranks on torch: which parameters any rank has reached, and the sums over the ranks."""

from __future__ import annotations

from itertools import compress
from typing import Collection

import torch

from ...distributed import World
from ...gluon.distributed.joint_gradients import of_any_rank
from .gradients import Gradients
from .parameters import Parameters


class JointGradients:
    """Adds up gradients over the ranks, in the same order on all ranks; with one rank, does nothing."""

    def __init__(self, world: World, parameters: Parameters) -> None:
        self._world, self._parameters = world, parameters

    def agree(
        self, held_back: bool, overflowed: bool, gradients: Gradients, due: Collection[str]
    ) -> tuple[bool, bool]:
        """Return whether a handler on any rank holds back the update, and whether any gradient overflowed.

        Also sets ``gradients.added`` if any rank adds gradients up. If the update is not held back,
        parameters that only other ranks' samples have reached get gradients of 0. `due` are the names of the
        parameters whose trainers update.
        """
        if self._world.alone:
            return held_back, overflowed
        names = sorted(due)
        reached_here = [name in gradients.tensors for name in names]
        reached, (held_back, overflowed, gradients.added) = of_any_rank(
            self._world, reached_here, held_back, overflowed, gradients.added
        )
        for name in compress(names, reached):
            if not held_back and name not in gradients.tensors:
                gradients.tensors[name] = torch.zeros_like(self._parameters.tensors[name])
        return held_back, overflowed

    def add_up(self, gradients: Gradients, due: Collection[str]) -> None:
        """Replace gradients by their sums over the ranks."""
        if self._world.alone:
            return
        tensors: dict[int, torch.Tensor] = {}
        for name in sorted(gradients.tensors.keys() & due):
            tensor = gradients.tensors[name].detach().contiguous()
            if tensor.data_ptr() in tensors:  # two parameters may share one gradient
                tensor = tensor.clone()
            tensors[tensor.data_ptr()] = gradients.tensors[name] = tensor
        self._world.all_reduce_tensors(list(tensors.values()))
