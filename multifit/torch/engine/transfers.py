"""Copy many tensors between the host and a device at once."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import torch

JOINED = 2**18  # elements; a larger tensor is copied by itself: joining it would take longer than a copy


def on_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    """Return tensors of one device as NumPy arrays; waits for the device. Those on the CPU are not copied."""
    detached = [tensor.detach() for tensor in tensors]
    on_cpu = all(tensor.device.type == "cpu" for tensor in detached)
    return [tensor.numpy() for tensor in (detached if on_cpu else joined(detached, torch.device("cpu")))]


def on_device(arrays: Sequence[np.ndarray[Any, Any]], device: torch.device) -> list[torch.Tensor]:
    """Return arrays as tensors on a device, in memory of their own."""
    tensors = [*map(torch.from_numpy, arrays)]
    return [each.clone() for each in tensors] if device.type == "cpu" else joined(tensors, device)


def copy_into(tensors: Sequence[torch.Tensor], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Copy arrays to tensors of the same shapes and dtypes, which are all on one device."""
    if tensors:
        given, device = [*map(torch.from_numpy, arrays)], tensors[0].device
        with torch.no_grad():
            torch._foreach_copy_([*tensors], given if device.type == "cpu" else joined(given, device))


def joined(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return copies of tensors on another device; small ones of one dtype are joined, copied and split."""
    groups: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        key = (tensor.dtype, None if tensor.numel() <= JOINED else place)
        groups.setdefault(key, []).append(place)
    found: dict[int, torch.Tensor] = {}
    for places in groups.values():
        flat = torch.cat([tensors[place].reshape(-1) for place in places]).to(device)
        parts = flat.split([tensors[place].numel() for place in places])
        found.update((place, part.view(tensors[place].shape)) for place, part in zip(places, parts))
    return [found[place] for place in range(len(tensors))]
