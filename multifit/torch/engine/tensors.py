"""Convert arrays between MXNet, NumPy and torch."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch

from ...gluon.data.arrays import new_array, shared, to_numpy

Tensors = dict[str, torch.Tensor]


def view_of(array: Any) -> torch.Tensor:
    """Return an array of MXNet or NumPy as a tensor on the CPU, which shares its memory if possible.

    Do not write to the tensor.
    """
    capsule = shared(array)
    return torch.from_numpy(to_numpy(array)) if capsule is None else torch.from_dlpack(capsule)


def to_tensor(array: Any, device: torch.device) -> torch.Tensor:
    """Copy an array of MXNet or NumPy to a tensor on a device."""
    return torch.from_numpy(to_numpy(array)).to(device, non_blocking=True)


def unshared(
    function: Callable[..., Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor]
) -> Callable[..., list[torch.Tensor]]:
    """Return a function that copies those of its results that share memory with tensors."""

    def memory(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr()  # the same for views

    shared = frozenset(map(memory, tensors))

    def call(*arguments: torch.Tensor) -> list[torch.Tensor]:
        return [each.clone() if memory(each) in shared else each for each in function(*arguments)]

    return call


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies of real tensors, in few kernels."""
    return list(torch._foreach_mul(list(tensors), 1.0)) if tensors else []


def copied(tensors: Tensors) -> Tensors:
    """Return copies of tensors; all real ones are copied at once."""
    real = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    copies = dict(zip(real, copies_of([tensors[name] for name in real])))
    return {name: copies[name] if name in copies else tensor.clone() for name, tensor in tensors.items()}


@contextmanager
def restored(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Restore the values of tensors after the block, without waiting for them."""
    saved = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, copy in zip(tensors, saved):
            tensor.copy_(copy)


def to_array(tensor: torch.Tensor) -> Any:
    """Return a tensor as an NDArray on the CPU; this waits for the device."""
    return new_array(tensor.detach().cpu().numpy())


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return tensors as NDArrays on the CPU; this waits for the device."""
    return {name: to_array(tensor) for name, tensor in tensors.items()}
