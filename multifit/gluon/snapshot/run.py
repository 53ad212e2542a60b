"""Write the engine's part of a run into a folder, and read it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from ...errors import counted, quoted, raise_problems
from ...files import atomic_write, read_json
from ...stages import TRAIN, figure_name
from ..compat import mx
from ..data.seeding import random_state, seed_everything, seed_of_rank, set_random_state
from ..distributed.collectives import from_first
from ..engine import Engine
from ..optim.parameters import statistics
from .differences import differences as compare
from .figures import empty_undivided, load_figures, save_figures
from .identity import identity
from .parameters import load_device_state, read_parameters, save_device_state, write_parameters
from .ranks import has_own, has_tree, read_own_tree
from .trainers import load_trainer, save_trainer
from .tree import decode, encode, read_tree, write_tree

IDENTITY, DEVICES, TRAINERS, FIGURES, RANDOM = "identity.json", "devices", "trainers", "figures", "random"
BALANCE, STATISTICS, CARRIED, LABELS = "balance", "statistics", "carried", "labels"
OTHER_RANKS = "what each process has measured cannot be divided among another number of them"


def write(folder: Path, engine: Engine) -> list[str]:
    """Write parameters, trainers, figures, random states and the run's identity, between two batches.

    Returns the names of what cannot be saved and starts from zero after a resume: figures (``val_mAP``), and
    attributes of optimizers.
    """
    unsaved: list[str] = []
    trees = {
        TRAINERS: {
            name: save_trainer(trainer, _parameter_names(engine, trainer), f"trainers.{name}", unsaved)
            for name, trainer in engine.trainers.get().items()
        },
        **_own_state(engine),
    }
    write_parameters(folder, engine.model.net, engine.model.parameters)
    for name, tree in trees.items():
        write_tree(folder, name, tree)
    atomic_write(folder / IDENTITY, json.dumps(identity(engine), indent=1) + "\n")
    return unsaved + _unsaved_figures(trees[FIGURES])


def own_state(engine: Engine) -> dict[str, Any]:
    """Return the trees of what may differ between ranks, such as figures and running statistics."""
    return {**_own_state(engine), STATISTICS: _statistics(engine)}


def read(folder: Path, engine: Engine, ranks: int = 1, complete: bool = False) -> dict[str, str]:
    """Load everything that :func:`write` wrote, the random states last.

    The folder must be intact and without :func:`differences`. The net may be initialised or not; the stages
    were just reset. Returns why, by name, figures start from zero. `ranks` is how many wrote it; if they are
    as many as now, each loads its own state. Else running statistics become the mean of all ranks', and the
    first rank's figures the sum, of what can be added up. After a `complete` epoch, no figures go on.
    """
    raise_problems(engine.model.initialize())
    world = engine.world
    own = world.rank if ranks == world.size else 0
    trees = {TRAINERS: read_tree(folder, TRAINERS)}
    trees.update({name: read_own_tree(folder, own, name) for name in (DEVICES, FIGURES)})
    if ranks != world.size:
        _check_divisible(folder, engine, ranks)
    trainers = engine.trainers.get()
    for name, expected in ((TRAINERS, set(trainers)), (FIGURES, set(engine.stages))):
        if set(trees[name]) != expected:
            raise ValueError(f"{folder}: {name}.json is of {quoted(trees[name])}, not of {quoted(expected)}")
    read_parameters(folder, engine.model.parameters, engine.model.contexts)
    for name, trainer in trainers.items():
        load_trainer(trainer, trees[TRAINERS][name], _parameter_names(engine, trainer), f'trainers["{name}"]')
    load_device_state(engine.model.parameters, engine.trainers.moved(), trees[DEVICES])
    carried = engine.stages[TRAIN].carried
    if carried is not None:
        carried.load(read_own_tree(folder, own, CARRIED))
    why = dict.fromkeys(_unsaved_figures(trees[FIGURES]), "the checkpoint could not hold it")
    if ranks != world.size and not complete:
        emptied = empty_undivided(engine.stages[TRAIN].figures, trees[FIGURES][TRAIN])
        why.update(dict.fromkeys([figure_name(TRAIN, key) for key in emptied], OTHER_RANKS))
    for name, state in trees[FIGURES].items():
        load_figures(engine.stages[name].figures, state)
    if has_tree(folder, own, LABELS):
        for name, known in read_own_tree(folder, own, LABELS).items():
            engine.known_labels[name].update(known)
    if engine.balancer is not None:
        engine.balancer.load(read_own_tree(folder, own, BALANCE))
    if ranks != world.size:
        _redistribute(folder, engine, ranks)
    elif has_own(folder, own, STATISTICS):
        _set_statistics(engine, read_own_tree(folder, own, STATISTICS))
    read_random(folder, world.rank)
    return why


def share_trainers(engine: Engine) -> None:
    """Give the trainers of all ranks the first one's states and counters, if any rank's have been used."""
    trainers = engine.trainers.get()
    names = {name: _parameter_names(engine, trainer) for name, trainer in trainers.items()}
    trees = {name: save_trainer(trainer, names[name], name, []) for name, trainer in trainers.items()}
    used = any(states for tree in trees.values() for states in tree["states"])
    if not any(engine.world.gather_json(used, "the trainers")):
        return
    arrays: list[np.ndarray] = []
    structure = encode(trees, TRAINERS, arrays)
    structure = engine.world.gather_json(structure, "the trainers")[0]
    trees = decode(structure, from_first(engine.world, arrays))
    for name, trainer in trainers.items() if engine.world.rank else ():
        load_trainer(trainer, trees[name], names[name], f'trainers["{name}"]')


def read_random(folder: Path, rank: int = 0) -> None:
    """Set the states of NumPy's and Python's generators to what they were when `folder` was written.

    A rank that did not take part derives its own from the first one's.
    """
    set_random_state(read_own_tree(folder, rank, RANDOM))
    if rank and not has_own(folder, rank, RANDOM):
        seed_everything(seed_of_rank(int(np.random.get_state(legacy=False)["state"]["key"][0]), rank))


def differences(folder: Path, engine: Engine) -> list[str]:
    """Return a line for everything in which the run that wrote `folder` and this one differ."""
    return compare(read_json(folder / IDENTITY), identity(engine))


def _own_state(engine: Engine) -> dict[str, Any]:
    carried = engine.stages[TRAIN].carried
    known = {
        stage: {name: (shape, np.dtype(dtype).name) for name, (shape, dtype) in labels.items()}
        for stage, labels in engine.known_labels.items()
    }
    return {
        DEVICES: save_device_state(engine.model.parameters, engine.trainers.moved()),
        FIGURES: {name: save_figures(stage.figures) for name, stage in engine.stages.items()},
        RANDOM: random_state(),
        **({} if carried is None else {CARRIED: carried.state()}),
        **({LABELS: known} if any(known.values()) else {}),
        **({} if engine.balancer is None else {BALANCE: engine.balancer.state()}),
    }


def _check_divisible(folder: Path, engine: Engine, ranks: int) -> None:
    now, processes = engine.world.size, counted(ranks, "process", "processes")
    if any(read_own_tree(folder, rank, DEVICES)["gradients"] for rank in range(ranks)):
        raise ValueError(
            f"{folder}: gradients of {processes} wait for an update, and cannot be divided among {now}; "
            f"resume with {ranks}, or from a checkpoint at which none wait"
        )
    if engine.stages[TRAIN].carried is not None:
        raise ValueError(
            f"{folder}: holds the state that {processes} carried from batch to batch, which cannot be "
            f"divided among {now}; resume with {ranks}"
        )


def _redistribute(folder: Path, engine: Engine, ranks: int) -> None:
    """Give the first rank the sum of all ranks' figures, and everybody the mean of running statistics."""
    for rank in range(1, ranks):
        states = read_own_tree(folder, rank, FIGURES)
        empty_undivided(engine.stages[TRAIN].figures, states[TRAIN])
        for name, state in states.items():
            engine.stages[name].figures.sums.merge(state["tally"])
            engine.stages[name].figures.labels.merge(state["labels"])
    for stage in engine.stages.values() if engine.world.rank else ():
        stage.figures.reset_own()
    own = _statistics(engine)
    others = [
        read_own_tree(folder, rank, STATISTICS) if has_own(folder, rank, STATISTICS) else own
        for rank in range(1, ranks)
    ]
    _set_statistics(
        engine, {name: mx.nd.add_n(own[name], *(o[name] for o in others)) / ranks for name in own}
    )


def _statistics(engine: Engine) -> dict[str, Any]:
    return {name: p.list_data()[0] for name, p in statistics(engine.model.parameters).items()}


def _set_statistics(engine: Engine, statistics: Mapping[str, Any]) -> None:
    for name, value in statistics.items():
        for array in engine.model.parameters[name].list_data():
            value.copyto(array)


def _parameter_names(engine: Engine, trainer: mx.gluon.Trainer) -> list[str]:
    """Return the structural names of a trainer's parameters, in its order; a user's trainer may hold any."""
    names = {id(parameter): name for name, parameter in engine.model.parameters.items()}
    return [names.get(id(parameter), parameter.name) for parameter in trainer._params]


def _unsaved_figures(figures: dict[str, Any]) -> list[str]:
    return [figure_name(stage, key) for stage, state in figures.items() for key in state["lost"]]
