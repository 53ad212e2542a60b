"""Predict with torch, batch by batch."""

from __future__ import annotations

from typing import Any

import torch

from ...gluon.data.batch import Batch
from ...gluon.execution.network import Network
from ...gluon.user_code import user_code
from .carried_state import CarriedState
from .compile_mode import CompileMode
from .parameters import Parameters
from .program import NetPrograms
from .tensors import Tensors
from .uploads import Uploads

NET = "the graph of the net on torch"


class Predictor:
    """Computes a net's declared outputs in evaluation mode; a call raises SpecError if it has no translation.

    `carried` is the state from batch to batch, if there is any.
    """

    def __init__(
        self,
        network: Network,
        parameters: Parameters,
        uploads: Uploads,
        carried: CarriedState | None,
        mode: CompileMode,
    ) -> None:
        self._programs = NetPrograms(network, parameters, False, mode)
        self._uploads, self._carried = uploads, carried

    def __call__(self, batch: Batch) -> list[tuple[dict[str, Any], int]]:
        """Return a list with the outputs as NumPy arrays and the number of samples, for the only device."""
        slots, carried = batch.slots[0], Tensors()
        program = self._programs(slots)
        if self._carried is not None:
            self._carried.begin()
            carried = self._carried.given
        uploaded = {name: slots[name] for name in program.inputs if name not in carried}
        with torch.no_grad(), user_code(lambda: NET, *slots.items()):
            outputs = program.run({**self._uploads(uploaded), **carried}).values
        if self._carried is not None:
            self._carried.keep(batch, outputs)
        # copies: on the CPU, an output may share the memory of an input
        arrays = {name: tensor.detach().to("cpu", copy=True).numpy() for name, tensor in outputs.items()}
        return [(arrays, batch.sizes[0])]
