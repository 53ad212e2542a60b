"""State that is carried from batch to batch on torch's device."""

from __future__ import annotations

from ...gluon.data.batch import Batch
from ...gluon.execution.carried_state import CarriedState as GluonCarriedState
from .tensors import Tensors, to_arrays


class CarriedState:
    """Keeps the outputs of a stage's last batch for the next one, without waiting for the device.

    `gluon` is MXNet's state, which checks shapes, is saved in checkpoints, and is reset. `given` are the
    values with which the running batch began, if they are not those in its slots.
    """

    def __init__(self, gluon: GluonCarriedState) -> None:
        self._gluon, self._left = gluon, Tensors()
        self.given = Tensors()
        gluon.other_engine_state = self

    def begin(self) -> None:
        """Begin a batch with the state that the last one left."""
        self.given = self._left

    def keep(self, batch: Batch, outputs: Tensors) -> None:
        """Remember the outputs of a batch; raises SpecError if one does not have the shape of its slot."""
        self._gluon.check(batch, [outputs])
        self._gluon.keep(batch, batch.slots)  # the next batch must have as many samples
        # copied, because an output may share its memory with a batch, and a CUDA graph overwrites its outputs
        self._left = {name: outputs[name].detach().clone() for name in self._gluon.shapes}

    def fetch(self) -> None:
        """Copy the state to MXNet's state; this waits for the device."""
        if self._left:
            self._gluon.load([to_arrays(self._left)])

    def clear(self) -> None:
        """Discard the state."""
        self._left = {}
