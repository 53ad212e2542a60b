"""The operations on tensors that methods of balancing need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...distributed import World
from ...gluon.balance.gradients import FeatureGradients, Operator, TaskGradients
from ..from_gluon.translate import translate
from .gradients import ParameterGradients
from .sums import Accumulator
from .tensors import to_array, to_tensor


class TorchArrays:
    """Tensors on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new(self, values: Any) -> torch.Tensor:
        """Return numbers as a float64 tensor."""
        return to_tensor(np.array(values, "float64"), self._device)

    def saved(self, array: torch.Tensor) -> Any:
        """Return a tensor as an NDArray; this waits for the device."""
        return to_array(array)

    def operator(self, symbol: Any) -> Operator:
        """Return the translation of a symbol; raises SpecError if there is none."""
        module = translate(symbol.tojson(), symbol.list_inputs(), {})

        def call(*arrays: torch.Tensor) -> list[torch.Tensor]:
            with torch.no_grad():
                return list(module(*arrays))

        return call

    def sums(self) -> Accumulator:
        """Return an object that adds up tensors."""
        return Accumulator(self._device)

    def task_gradients(self, on: str, parameters: Mapping[str, Any], world: World) -> TaskGradients:
        """Return an object that compares gradients that torch computes."""
        if on == "features":
            return FeatureGradients(world)
        pattern = None if on == "parameters" else on
        return ParameterGradients(pattern, parameters, world, self._device)
