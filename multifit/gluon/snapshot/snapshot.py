"""Write MXNet's part of a run into a folder, and read it back."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...engines import snapshot
from ...engines.identity import Parameters
from ...engines.snapshot import NO_STATE, TRAINERS
from ...engines.trees import Add, Trees
from ...schedules import ScaledSchedule
from ...utils.errors import raise_problems
from ..compat import mx
from ..data.arrays import new_array
from ..optim.parameters import statistics
from ..session import Session
from .parameters import (
    NET,
    described,
    load_device_state,
    read_parameters,
    read_trained,
    save_device_state,
    write_parameters,
    write_trained,
)
from .trainers import load_settings, load_trainer, partly_saved, save_settings, save_trainer

DEVICES = "devices"
SETTINGS = "settings"  # of a trainer's parameters


class MXNetTrees(Trees):
    """Trees of plain values, NumPy's arrays, and NDArrays, which are restored on their device."""

    valid = f"{Trees.valid}, and NDArrays but CSR's"

    def write_array(self, value: Any, add: Add) -> dict[str, Any] | None:
        """Return the structure of an NDArray; None for another value."""
        if type(value) is mx.nd.NDArray:
            return {"ndarray": add(value.asnumpy()), "on": str(value.context)}
        if type(value) is mx.nd.sparse.RowSparseNDArray:
            rows = [add(part.asnumpy()) for part in (value.data, value.indices)]
            return {"rows": rows, "shape": list(value.shape), "on": str(value.context)}
        return None

    def read_array(self, structure: Any, arrays: list[Any]) -> Any:
        """Return the NDArray of a structure."""
        device = _context(structure["on"])
        if "ndarray" in structure:
            return new_array(arrays[structure["ndarray"]], device)
        values, indices = (arrays[i] for i in structure["rows"])
        options = {"ctx": device, "dtype": values.dtype}
        if not len(indices):
            return mx.nd.sparse.zeros("row_sparse", tuple(structure["shape"]), **options)
        return mx.nd.sparse.row_sparse_array((values, indices), tuple(structure["shape"]), **options)


class Snapshot(snapshot.Snapshot):
    """Writes parameters in Gluon's format, and trainers as trees, without pickle."""

    library = "mxnet"
    net_file, final_file, reader = NET, "final.params", "net.load_parameters"

    def __init__(self, session: Session) -> None:
        super().__init__(session, MXNetTrees())

    def write_trained(self, path: Path) -> None:
        write_trained(path, self._session.model)

    def _described(self) -> Parameters:
        return described(self._session.model.parameters)

    def _schedule_of(self, trainer: Any) -> str | None:
        scheduler = trainer.optimizer.lr_scheduler
        if isinstance(scheduler, ScaledSchedule):  # added when the rate is set during the run
            scheduler = scheduler.scheduler
        return None if scheduler is None else type(scheduler).__name__

    def _read_trained(self, path: Path) -> list[str]:
        model = self._session.model
        return read_trained(path, model.net, model.parameters, model.contexts)

    def _write_parameters(self, folder: Path, evaluated: Mapping[str, Any]) -> None:
        write_parameters(folder / NET, self._session.model.net, self._session.model.parameters, evaluated)

    def _read_parameters(self, folder: Path, rank: int) -> list[str]:
        model, trainers = self._session.model, self._session.trainers
        raise_problems(model.initialize())
        read_parameters(folder, model.parameters, model.contexts)
        self._load_trainers(states := self.read_tree(folder, TRAINERS))
        built, lines = trainers.get(), []
        for name, trainer in built.items():
            load_settings(built.parameters[name], built.added_gradients, states[name][SETTINGS])
            lines += [
                f'trainers["{name}"]: {kind} {NO_STATE}, so only numbers among its attributes are restored'
                for kind in partly_saved(trainer.optimizer)
            ]
        built.added_gradients.begin()  # of what was frozen when the fit began
        load_device_state(model.parameters, trainers.updated(), self.read_own_tree(folder, rank, DEVICES))
        return lines

    def _trainers_state(self) -> dict[str, Any]:
        trainers = self._session.trainers.get()
        return {
            name: {
                **save_trainer(trainer, self._parameter_names(trainer)),
                SETTINGS: save_settings(trainers.parameters[name], trainers.added_gradients),
            }
            for name, trainer in trainers.items()
        }

    def _has_states(self, state: Mapping[str, Any]) -> bool:
        return any(states for tree in state.values() for states in tree["states"])

    def _load_trainers(self, state: Mapping[str, Any]) -> None:
        for name, trainer in self._session.trainers.get().items():
            load_trainer(trainer, state[name], self._parameter_names(trainer))

    def _own_state(self) -> dict[str, Any]:
        model, trainers = self._session.model, self._session.trainers
        return {DEVICES: save_device_state(model.parameters, trainers.updated()), **super()._own_state()}

    def _gradients_wait(self, folder: Path, rank: int) -> bool:
        return bool(self.read_own_tree(folder, rank, DEVICES)["gradients"])

    def _statistics(self) -> dict[str, Any]:
        return {name: p.list_data()[0] for name, p in statistics(self._session.model.parameters).items()}

    def _set_statistics(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            for array in self._session.model.parameters[name].list_data():
                value.copyto(array)

    def _mean(self, arrays: Sequence[Any]) -> Any:
        return mx.nd.add_n(*arrays) / len(arrays)

    def _dtype(self, dtype: Any) -> str:
        return np.dtype(dtype).name

    def _parameter_names(self, trainer: mx.gluon.Trainer) -> list[str]:
        """Return the structural names of a trainer's parameters, in its order.

        Parameters that are not the model's, which a user's own trainer may hold, have MXNet's names.
        """
        names = {id(parameter): name for name, parameter in self._session.model.parameters.items()}
        return [names.get(id(parameter), parameter.name) for parameter in trainer._params]


def _context(device: str) -> mx.Context:
    match = re.fullmatch(r"(\w+)\((\d+)\)", device)
    if match is None or match[1] not in mx.Context.devstr2type:
        raise ValueError(f'there is no device "{device}"')
    return mx.Context(match[1], int(match[2]))
