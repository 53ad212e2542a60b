"""A net's outputs, which handlers change with MXNet before losses see them."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch

from ...gluon.execution import changed_arrays
from .tensors import Tensors, to_array, to_arrays, to_tensor


class ChangedOutputs:
    """The outputs of a batch as handlers change them, and their backward pass; waits for the device.

    `outputs` are the changed outputs, which losses and metrics see, and `arrays` are the same as NDArrays.
    `leaves` are the outputs that receive gradients; :meth:`objectives` takes these gradients. `trained` are
    the names of the parameters on which the net's own outputs depend.
    """

    def __init__(self, change: Any, outputs: Tensors, slots: Mapping[str, Any], trained: list[str]) -> None:
        self._before, self.trained = outputs, trained
        self._change = changed_arrays.ChangedOutputs(change, to_arrays(outputs), slots)
        self.arrays = self._change.arrays
        device = next(iter(outputs.values())).device
        self.outputs = {name: to_tensor(array, device) for name, array in self.arrays.items()}
        self._real = [name for name, tensor in self.outputs.items() if tensor.is_floating_point()]
        self.leaves = [self.outputs[name].requires_grad_() for name in self._real]

    def objectives(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return numbers whose gradients are those of the net's own outputs."""
        heads = {name: to_array(gradient) for name, gradient in zip(self._real, gradients)}
        through = self._change.gradients(heads).items()
        return [
            weighted(self._before[name], head) for name, head in through if self._before[name].requires_grad
        ]


def weighted(tensor: torch.Tensor, gradient: Any) -> torch.Tensor:
    """Return a number whose gradient with respect to a tensor is `gradient`, an NDArray."""
    return (tensor * to_tensor(gradient, tensor.device)).sum()
