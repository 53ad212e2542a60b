"""Predicting with torch, batch by batch."""

from __future__ import annotations

from typing import Any

import torch

from ...gluon.data.batches import Batch
from ...gluon.execution.network import Network
from .parameters import Parameters
from .program import Program
from .uploads import Uploads


class Predictor:
    """Computes a net's declared outputs, as it evaluates; raises SpecError if it has no translation."""

    def __init__(
        self,
        network: Network,
        batch: Batch,
        parameters: Parameters,
        uploads: Uploads,
        compiles: bool | str = False,
    ) -> None:
        self._program = Program(network.trace(batch.slots[0]), parameters, False, compiles)
        self._uploads = uploads

    def __call__(self, batch: Batch) -> list[tuple[dict[str, Any], int]]:
        """Return the outputs as NumPy arrays, and the number of samples, of the one device."""
        slots = batch.slots[0]
        with torch.no_grad():
            outputs = self._program(self._uploads({name: slots[name] for name in self._program.inputs}))
        return [({name: tensor.cpu().numpy() for name, tensor in outputs.items()}, batch.sizes[0])]
