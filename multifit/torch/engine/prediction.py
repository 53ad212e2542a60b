"""Predicting with torch, batch by batch."""

from __future__ import annotations

from typing import Any

import torch

from ...gluon.data.batches import Batch
from ...gluon.execution.network import Network
from .parameters import Parameters
from .program import Program
from .tensors import to_tensor


class Predictor:
    """Computes a net's declared outputs, as it evaluates; raises SpecError if it has no translation."""

    def __init__(self, network: Network, batch: Batch, parameters: Parameters, device: torch.device) -> None:
        self._program = Program(network.trace(batch.slots[0]), parameters, training=False)
        self._device = device

    def __call__(self, batch: Batch) -> list[tuple[dict[str, Any], int]]:
        """Return the outputs as NumPy arrays, and the number of samples, of the one device."""
        slots = batch.slots[0]
        with torch.no_grad():
            given = {name: to_tensor(slots[name], self._device) for name in self._program.inputs}
            outputs = self._program(given)
        return [({name: tensor.cpu().numpy() for name, tensor in outputs.items()}, batch.sizes[0])]
