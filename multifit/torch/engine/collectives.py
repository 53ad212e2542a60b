"""Sum tensors over the ranks, with any communicator."""

from __future__ import annotations

from typing import Sequence

import torch

from ...distributed import World


def all_reduce(world: World, tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor by its sum over all ranks, which must have met just before.

    Tensors must be contiguous. Tensors on a GPU are summed there if the communicator takes tensors, as
    torch.distributed does with NCCL; otherwise they are summed on the host.
    """
    if hasattr(world.communicator, "all_reduce_tensors"):
        world.all_reduce_tensors(tensors)
        return
    on_host = [tensor.cpu() for tensor in tensors]
    world.all_reduce([tensor.numpy() for tensor in on_host])
    for tensor, summed in zip(tensors, on_host):
        tensor.copy_(summed)
