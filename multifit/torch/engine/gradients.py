"""The gradients of a batch, until trainers use them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Mapping

import torch

from .tensors import to_arrays, to_tensor


class Gradients:
    """Gradients by the names of the parameters, as tensors; as NDArrays if handlers read or change them."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = dict(tensors)

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """The same as NDArrays on the CPU; this waits for the device."""
        return to_arrays(self.tensors)

    def take_changes(self) -> None:
        """Take what handlers have made of :attr:`arrays`, if they read them."""
        for name, array in self.__dict__.get("arrays", {}).items():
            self.tensors[name] = to_tensor(array, self.tensors[name].device)
