"""Write the engine's part of a run into a folder, and read it back."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...engines.identity import differences, differing
from ...engines.trees import Files, has_own, write_ranks
from ...errors import Problem, SpecError, counted, raise_problems
from ...files import read_json
from ...protocols import Array
from ...seeding import random_state, seed_everything, seed_of_rank, set_random_state
from ...stages import TRAIN, figure_name
from ...version import installed_versions
from ..compat import mx
from ..engine import Engine
from ..optim.parameters import statistics
from .figures import load_figures, merge_figures, save_figures
from .identity import identity
from .parameters import (
    NET,
    NONE,
    load_device_state,
    read_parameters,
    read_trained,
    save_device_state,
    write_parameters,
)
from .trainers import load_settings, load_trainer, partly_saved, save_settings, save_trainer
from .tree import TREES

IDENTITY, DEVICES, TRAINERS, FIGURES, RANDOM = "identity.json", "devices", "trainers", "figures", "random"
BALANCE, STATISTICS, CARRIED, LABELS = "balance", "statistics", "carried", "labels"
SETTINGS = "settings"  # of a trainer's parameters
NO_STATE = "has no state_dict and load_state_dict"
OTHER_RANKS = "what each process has measured cannot be divided among another number of processes"


class Snapshot:
    """Writes an engine's part of a run into a folder, and reads it back; no pickle."""

    net_file, final_file, reader = NET, "final.params", "net.load_parameters"
    versions = staticmethod(partial(installed_versions, ["mxnet"]))
    differing = staticmethod(differing)
    write_tree, read_tree, read_own_tree = TREES.write, TREES.read, TREES.read_own
    write_ranks = staticmethod(write_ranks)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def write(self, folder: Path, evaluated: Mapping[str, Array] = NONE) -> None:
        """Write parameters, trainers, figures, random states and the run's identity; called between batches.

        `evaluated` are the values that evaluations use in place of some parameters.
        """
        trainers = self._engine.trainers.get()
        trees = {
            TRAINERS: {
                name: {
                    **save_trainer(trainer, self._parameter_names(trainer)),
                    SETTINGS: save_settings(trainers.parameters[name], trainers.added_gradients),
                }
                for name, trainer in trainers.items()
            },
            **self._own_state(),
        }
        write_parameters(folder / NET, self._engine.model.net, self._engine.model.parameters, evaluated)
        for name, tree in trees.items():
            TREES.write(folder, name, tree)
        (folder / IDENTITY).write_text(json.dumps(self.identity(), indent=1) + "\n", "utf-8")

    def gather_own(self, trees: Mapping[str, Any]) -> list[Files]:
        """Return, for each rank, the files of `trees` and of its own state that differ from the first rank's.

        A rank's own state are its figures, running statistics and the like.
        """
        return TREES.gather(
            self._engine.world, {**trees, **self._own_state(), STATISTICS: self._statistics()}
        )

    def read(self, folder: Path, ranks: int = 1, complete: bool = False) -> list[str]:
        """Load everything that :meth:`write` wrote, the random states last.

        The folder must be intact and without :meth:`differences`. The net may be initialised or not; the
        stages must have just been reset. `ranks` is the number of ranks that wrote the folder. If there are
        as many now, each loads its own state. Otherwise, running statistics become the mean over all ranks,
        and the first rank's figures become the sum over all ranks, as far as they can be added up. After a
        `complete` epoch, no figures continue. Returns a line for everything that starts anew.
        """
        engine, world = self._engine, self._engine.world
        raise_problems(engine.model.initialize())
        same = ranks == world.size
        rank = world.rank if same else 0
        if not same:
            self._check_divisible(folder, ranks)
        read_parameters(folder, engine.model.parameters, engine.model.contexts)
        trainers, states, lines = engine.trainers.get(), TREES.read(folder, TRAINERS), []
        for name, trainer in trainers.items():
            load_trainer(trainer, states[name], self._parameter_names(trainer))
            load_settings(trainers.parameters[name], trainers.added_gradients, states[name][SETTINGS])
            lines += [
                f'trainers["{name}"]: {kind} {NO_STATE}, so only numbers among its attributes are restored'
                for kind in partly_saved(trainer.optimizer)
            ]
        trainers.added_gradients.begin()  # of what was frozen when the fit began
        load_device_state(
            engine.model.parameters, engine.trainers.updated(), TREES.read_own(folder, rank, DEVICES)
        )
        if (carried := engine.stages[TRAIN].carried) is not None:
            carried.load(TREES.read_own(folder, rank, CARRIED))
        measured = TREES.read_own(folder, rank, FIGURES)
        for name, stage in engine.stages.items():
            lost = load_figures(stage.figures, measured[name], divisible=same)
            if name == TRAIN and not complete:
                why = f"the metric {NO_STATE}" if same else OTHER_RANKS
                lines += [f'"{figure_name(TRAIN, key)}" starts from zero: {why}' for key in lost]
        for name, known in TREES.read_own(folder, rank, LABELS).items():
            engine.known_labels[name].update(known)
        if engine.balancer is not None:
            engine.balancer.load(TREES.read_own(folder, rank, BALANCE))
        if not same:
            self._redistribute(folder, ranks)
        elif has_own(folder, rank, STATISTICS):
            self._set_statistics(TREES.read_own(folder, rank, STATISTICS))
        self.read_random(folder)
        return lines

    def write_trained(self, path: Path) -> None:
        """Write the net's parameters to a file, and those of losses beside it. ValueError: some have none."""
        for parameter in self._engine.model.net.collect_params().values():
            if parameter._data is None:  # no batch has reached it
                raise ValueError(f"{parameter.name} has no values yet: initialise the net, or fit or check")
        write_parameters(path, self._engine.model.net, self._engine.model.parameters)

    def read_trained(self, path: Path) -> None:
        """Set the parameters to those of a file that :meth:`write_trained` or :meth:`write` wrote.

        Raises SpecError if it has others than net and losses, and ValueError if it is missing or damaged;
        then none is set.
        """
        model = self._engine.model
        differences = read_trained(path, model.net, model.parameters, model.contexts)
        if differences:
            message = f"{path} does not fit the net: {'; '.join(differences)}"
            raise SpecError([Problem("spec", f"{message}; make the net that was trained, with its settings")])

    def share_trainers(self) -> None:
        """Give the trainers of all ranks the first rank's states and counters, if any rank has states."""
        world, trainers = self._engine.world, self._engine.trainers.get()
        names = {name: self._parameter_names(trainer) for name, trainer in trainers.items()}
        trees = {name: save_trainer(trainer, names[name]) for name, trainer in trainers.items()}
        used = any(states for tree in trees.values() for states in tree["states"])
        if not any(world.gather(used)):
            return
        arrays: list[np.ndarray] = []
        structure = TREES.encode(trees, TRAINERS, arrays)
        structure, arrays = world.from_first((structure, arrays))
        trees = TREES.decode(structure, arrays)
        for name, trainer in trainers.items() if world.rank else ():
            load_trainer(trainer, trees[name], names[name])

    def read_random(self, folder: Path) -> None:
        """Set the states of NumPy's and Python's generators to what they were when `folder` was written.

        A rank whose states are not in the folder derives its own from those of the first rank.
        """
        rank = self._engine.world.rank
        set_random_state(TREES.read_own(folder, rank, RANDOM))
        if rank and not has_own(folder, rank, RANDOM):
            seed_everything(seed_of_rank(int(np.random.get_state(legacy=False)["state"]["key"][0]), rank))

    def identity(self) -> dict[str, Any]:
        """Return the identity of the run, as a JSON tree."""
        return identity(self._engine)

    def differences(self, folder: Path) -> list[str]:
        """Return a line for each difference between the run that wrote `folder` and this one."""
        return differences(read_json(folder / IDENTITY), self.identity())

    def _own_state(self) -> dict[str, Any]:
        carried = self._engine.stages[TRAIN].carried
        known = {
            stage: {name: (shape, np.dtype(dtype).name) for name, (shape, dtype) in labels.items()}
            for stage, labels in self._engine.known_labels.items()
        }
        return {
            DEVICES: save_device_state(self._engine.model.parameters, self._engine.trainers.updated()),
            FIGURES: {name: save_figures(stage.figures) for name, stage in self._engine.stages.items()},
            RANDOM: random_state(),
            **({} if carried is None else {CARRIED: carried.state()}),
            LABELS: known,
            **({} if self._engine.balancer is None else {BALANCE: self._engine.balancer.state()}),
        }

    def _check_divisible(self, folder: Path, ranks: int) -> None:
        now, processes = self._engine.world.size, counted(ranks, "process", "processes")
        if any(TREES.read_own(folder, rank, DEVICES)["gradients"] for rank in range(ranks)):
            raise ValueError(
                f"{folder}: gradients of {processes} wait for an update, and cannot be divided among {now}; "
                f"resume with {ranks}, or from a checkpoint at which none wait"
            )
        if self._engine.stages[TRAIN].carried is not None:
            raise ValueError(
                f"{folder}: holds the state that {processes} carried from batch to batch, which cannot be "
                f"divided among {now}; resume with {ranks}"
            )

    def _redistribute(self, folder: Path, ranks: int) -> None:
        """Give the first rank the sum of all ranks' figures, and all ranks the mean running statistics."""
        for rank in range(1, ranks):
            for name, state in TREES.read_own(folder, rank, FIGURES).items():
                merge_figures(self._engine.stages[name].figures, state)
        for stage in self._engine.stages.values() if self._engine.world.rank else ():
            stage.figures.reset_own()
        first_rank = self._statistics()
        others = [
            TREES.read_own(folder, rank, STATISTICS) if has_own(folder, rank, STATISTICS) else first_rank
            for rank in range(1, ranks)
        ]
        self._set_statistics(
            {name: mx.nd.add_n(first_rank[name], *(o[name] for o in others)) / ranks for name in first_rank}
        )

    def _statistics(self) -> dict[str, Any]:
        return {name: p.list_data()[0] for name, p in statistics(self._engine.model.parameters).items()}

    def _set_statistics(self, statistics: Mapping[str, Any]) -> None:
        for name, value in statistics.items():
            for array in self._engine.model.parameters[name].list_data():
                value.copyto(array)

    def _parameter_names(self, trainer: mx.gluon.Trainer) -> list[str]:
        """Return the structural names of a trainer's parameters, in its order.

        Parameters that are not the model's, which a user's own trainer may hold, have MXNet's names.
        """
        names = {id(parameter): name for name, parameter in self._engine.model.parameters.items()}
        return [names.get(id(parameter), parameter.name) for parameter in trainer._params]
