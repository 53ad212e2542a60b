"""The engine's part of a run in a folder: what all engines have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..utils.errors import Problem, SpecError
from ..utils.files import read_json
from ..utils.protocols import Numbers
from ..utils.seeding import random_state, seed_everything, seed_of_rank, set_random_state
from ..utils.stages import TRAIN, figure_name
from ..utils.text import counted
from ..version import installed_versions
from .identity import Parameters, differences, differing, run_identity
from .trees import Files, Trees, has_own, write_ranks

IDENTITY, TRAINERS, FIGURES, RANDOM = "identity.json", "trainers", "figures", "random"
BALANCE, STATISTICS, CARRIED, LABELS = "balance", "statistics", "carried", "labels"
NO_STATE = "has no state_dict and load_state_dict"
OTHER_RANKS = "what each process has measured cannot be divided among another number of processes"
NONE: Mapping[str, Any] = MappingProxyType({})


class Snapshot(ABC):
    """Writes an engine's part of a run into a folder, and reads it back; no pickle.

    `library` is that of the nets. `net_file` is the file with the net's parameters in a checkpoint, and
    `final_file` that in the folder of a finished run; `reader` reads them without multifit. `trees` are those
    that hold the engine's arrays.
    """

    library: str
    net_file: str
    final_file: str
    reader: str
    differing = staticmethod(differing)
    write_ranks = staticmethod(write_ranks)

    def __init__(self, session: Any, trees: Trees) -> None:
        self._session, self._trees = session, trees
        self.write_tree, self.read_tree, self.read_own_tree = trees.write, trees.read, trees.read_own

    def versions(self) -> dict[str, str]:
        """Return the versions that a run's figures depend on most, by name."""
        return installed_versions([self.library])

    # ---- what each engine does in its own way

    @abstractmethod
    def _described(self) -> Parameters:
        """Return the shape and the dtype of all parameters."""

    @abstractmethod
    def _schedule_of(self, trainer: Any) -> str | None:
        """Return the name of a trainer's schedule; None if it has none."""

    @abstractmethod
    def write_trained(self, path: Path) -> None:
        """Write the net's parameters to a file, and those of losses beside it. ValueError: some have none."""

    @abstractmethod
    def _read_trained(self, path: Path) -> list[str]:
        """Set the parameters to those of a file; return what differs in names, shapes or dtypes."""

    @abstractmethod
    def _write_parameters(self, folder: Path, evaluated: Mapping[str, Any]) -> None:
        """Write the parameters to `net_file`, with those of losses and of `evaluated` beside it."""

    @abstractmethod
    def _read_parameters(self, folder: Path, rank: int) -> list[str]:
        """Load parameters, trainers and the gradients that wait; return a line for what starts anew."""

    @abstractmethod
    def _trainers_state(self) -> Any:
        """Return the state of the trainers, equal on all ranks."""

    @abstractmethod
    def _has_states(self, state: Any) -> bool:
        """Whether a trainer has made a step."""

    @abstractmethod
    def _load_trainers(self, state: Any) -> None:
        """Load what :meth:`_trainers_state` returned."""

    @abstractmethod
    def _statistics(self) -> dict[str, Any]:
        """Return the running statistics by name."""

    @abstractmethod
    def _set_statistics(self, values: Mapping[str, Any]) -> None:
        """Set what :meth:`_statistics` returned."""

    @abstractmethod
    def _mean(self, arrays: Sequence[Any]) -> Any:
        """Return the mean of a running statistic over the ranks."""

    @abstractmethod
    def _dtype(self, dtype: Any) -> Any:
        """Return the name of a dtype, and the dtype of a name."""

    @abstractmethod
    def _gradients_wait(self, folder: Path, rank: int) -> bool:
        """Whether gradients of a rank wait for an update in a checkpoint."""

    # ---- checkpoints

    def identity(self) -> dict[str, Any]:
        """Return the identity of the run, as a JSON tree."""
        return run_identity(self._session, self._described(), self._schedule_of)

    def write(self, folder: Path, evaluated: Mapping[str, Any] = NONE) -> None:
        """Write parameters, trainers, figures, random states and the run's identity; called between batches.

        `evaluated` are the values that evaluations use in place of some parameters. The parameters that
        training continues with are then in a file of their own.
        """
        self._write_parameters(folder, evaluated)
        for name, tree in {TRAINERS: self._trainers_state(), **self._own_state()}.items():
            self.write_tree(folder, name, tree)
        (folder / IDENTITY).write_text(json.dumps(self.identity(), indent=1) + "\n", "utf-8")

    def gather_own(self, trees: Mapping[str, Any]) -> list[Files]:
        """Return, for each rank, the files of `trees` and of its own state that differ from the first rank's.

        A rank's own state are its figures, running statistics and the like.
        """
        trees = {**trees, **self._own_state(), STATISTICS: self._statistics()}
        return self._trees.gather(self._session.world, trees)

    def read(self, folder: Path, ranks: int = 1, complete: bool = False) -> list[str]:
        """Load everything that :meth:`write` wrote, the random states last.

        The folder must be intact and without :meth:`differences`. The net may be initialised or not; the
        stages must have just been reset. `ranks` is the number of ranks that wrote the folder. If there are
        as many now, each loads its own state. Otherwise, running statistics become the mean over all ranks,
        and the first rank's figures become the sum over all ranks, as far as they can be added up. After a
        `complete` epoch, no figures continue. Returns a line for everything that starts anew.
        """
        session, world = self._session, self._session.world
        same = ranks == world.size
        rank = world.rank if same else 0
        if not same:
            self._check_divisible(folder, ranks)
        lines = self._read_parameters(folder, rank)
        if (carried := session.stages[TRAIN].carried) is not None:
            carried.load(self.read_own_tree(folder, rank, CARRIED))
        measured = self.read_own_tree(folder, rank, FIGURES)
        for name, stage in session.stages.items():
            lost = stage.figures.load(measured[name], same)
            if name == TRAIN and not complete:
                why = f"the metric {NO_STATE}" if same else OTHER_RANKS
                lines += [f'"{figure_name(TRAIN, key)}" starts from zero: {why}' for key in lost]
        for name, known in self.read_own_tree(folder, rank, LABELS).items():
            shapes = {label: (shape, self._dtype(dtype)) for label, (shape, dtype) in known.items()}
            session.known_labels[name].update(shapes)
        if session.balancer is not None:
            session.balancer.load(self.read_own_tree(folder, rank, BALANCE))
        if not same:
            self._redistribute(folder, ranks)
        elif has_own(folder, rank, STATISTICS):
            self._set_statistics(self.read_own_tree(folder, rank, STATISTICS))
        self.read_random(folder)
        return lines

    def read_random(self, folder: Path) -> None:
        """Set the states of the random generators to what they were when `folder` was written.

        A rank whose states are not in the folder derives its own from those of the first rank.
        """
        rank = self._session.world.rank
        set_random_state(self.read_own_tree(folder, rank, RANDOM))
        if rank and not has_own(folder, rank, RANDOM):
            seed_everything(seed_of_rank(int(np.random.get_state(legacy=False)["state"]["key"][0]), rank))

    def differences(self, folder: Path) -> list[str]:
        """Return a line for each difference between the run that wrote `folder` and this one."""
        return differences(read_json(folder / IDENTITY), self.identity())

    def read_trained(self, path: Path) -> None:
        """Set the parameters to those of a file that :meth:`write_trained` or :meth:`write` wrote.

        Raises SpecError if it has others than net and losses, and ValueError if it is missing or damaged;
        then none is set.
        """
        if lines := self._read_trained(path):
            message = f"{path} does not fit the net: {'; '.join(lines)}"
            raise SpecError([Problem("spec", f"{message}; make the net that was trained, with its settings")])

    # ---- ranks

    def share_trainers(self) -> None:
        """Give the trainers of all ranks the first rank's states and counters, if any rank has states."""
        world, state, arrays = self._session.world, self._trainers_state(), list[Numbers]()
        if any(world.gather(self._has_states(state))):
            structure, arrays = world.from_first((self._trees.encode(state, TRAINERS, arrays), arrays))
            if world.rank:
                self._load_trainers(self._trees.decode(structure, arrays))

    def _own_state(self) -> dict[str, Any]:
        session = self._session
        carried = session.stages[TRAIN].carried
        known = {
            stage: {label: (tuple(shape), self._dtype(dtype)) for label, (shape, dtype) in labels.items()}
            for stage, labels in session.known_labels.items()
        }
        return {
            FIGURES: {name: stage.figures.state() for name, stage in session.stages.items()},
            RANDOM: random_state(),
            **({} if carried is None else {CARRIED: carried.state()}),
            LABELS: known,
            **({} if session.balancer is None else {BALANCE: session.balancer.state()}),
        }

    def _check_divisible(self, folder: Path, ranks: int) -> None:
        now, processes = self._session.world.size, counted(ranks, "process", "processes")
        if any(self._gradients_wait(folder, rank) for rank in range(ranks)):
            raise ValueError(
                f"{folder}: gradients of {processes} wait for an update, and cannot be divided among {now}; "
                f"resume with {ranks}, or from a checkpoint at which none wait"
            )
        if self._session.stages[TRAIN].carried is not None:
            raise ValueError(
                f"{folder}: holds the state that {processes} carried from batch to batch, which cannot be "
                f"divided among {now}; resume with {ranks}"
            )

    def _redistribute(self, folder: Path, ranks: int) -> None:
        """Give the first rank the sum of all ranks' figures, and all ranks the mean running statistics."""
        stages = self._session.stages
        for rank in range(1, ranks):
            for name, state in self.read_own_tree(folder, rank, FIGURES).items():
                stages[name].figures.merge(state)
        for stage in stages.values() if self._session.world.rank else ():
            stage.figures.reset_own()
        first = self._statistics()
        others = [
            self.read_own_tree(folder, rank, STATISTICS) if has_own(folder, rank, STATISTICS) else first
            for rank in range(1, ranks)
        ]
        self._set_statistics({n: self._mean([each[n] for each in (first, *others)]) for n in first})
