"""Write the engine's part of a run into a folder, and read it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import names as quoted
from ...errors import raise_problems
from ...files import atomic_write, read_json
from ...stages import figure_name
from ..compat import mx
from ..engine import Engine
from .differences import differences as compare
from .figures import load_figures, save_figures
from .identity import identity
from .parameters import load_device_state, read_parameters, save_device_state, write_parameters
from .random import random_state, set_random_state
from .trainers import load_trainer, save_trainer
from .tree import read_tree, write_tree

IDENTITY, DEVICES, TRAINERS, FIGURES, RANDOM = "identity.json", "devices", "trainers", "figures", "random"
BALANCE = "balance"


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
        DEVICES: save_device_state(engine.model.parameters, _trained_parameters(engine)),
        FIGURES: {name: save_figures(stage.figures) for name, stage in engine.stages.items()},
        RANDOM: random_state(),
    }
    if engine.balancer is not None:
        trees[BALANCE] = engine.balancer.state()
    write_parameters(folder, engine.model.net, engine.model.parameters)
    for name, tree in trees.items():
        write_tree(folder, name, tree)
    atomic_write(folder / IDENTITY, json.dumps(identity(engine), indent=1) + "\n")
    return unsaved + _unsaved_figures(trees[FIGURES])


def read(folder: Path, engine: Engine) -> list[str]:
    """Load everything that :func:`write` wrote, the random states last.

    The folder must be intact and without :func:`differences`. The net may be initialised or not; the stages
    were just reset. Returns the names of the figures that start from zero.
    """
    raise_problems(engine.model.initialize())
    trees = {name: read_tree(folder, name) for name in (TRAINERS, DEVICES, FIGURES)}
    trainers = engine.trainers.get()
    for name, expected in ((TRAINERS, set(trainers)), (FIGURES, set(engine.stages))):
        if set(trees[name]) != expected:
            raise ValueError(f"{folder}: {name}.json is of {quoted(trees[name])}, not of {quoted(expected)}")
    read_parameters(folder, engine.model.parameters, engine.model.contexts)
    for name, state in trees[TRAINERS].items():
        trainer = trainers[name]
        load_trainer(trainer, state, _parameter_names(engine, trainer), f'trainers["{name}"]')
    load_device_state(engine.model.parameters, _trained_parameters(engine), trees[DEVICES])
    for name, state in trees[FIGURES].items():
        load_figures(engine.stages[name].figures, state)
    if engine.balancer is not None:
        engine.balancer.load(read_tree(folder, BALANCE))
    read_random(folder)
    return _unsaved_figures(trees[FIGURES])


def read_random(folder: Path) -> None:
    """Set the states of NumPy's and Python's generators to what they were when `folder` was written."""
    set_random_state(read_tree(folder, RANDOM))


def differences(folder: Path, engine: Engine) -> list[str]:
    """Return a line for everything in which the run that wrote `folder` and this one differ."""
    return compare(read_json(folder / IDENTITY), identity(engine))


def _trained_parameters(engine: Engine) -> list[str]:
    return [name for names in engine.trainers.get().parameter_names.values() for name in names]


def _parameter_names(engine: Engine, trainer: mx.gluon.Trainer) -> list[str]:
    """Return the structural names of a trainer's parameters, in its order; a user's trainer may hold any."""
    names = {id(parameter): name for name, parameter in engine.model.parameters.items()}
    return [names.get(id(parameter), parameter.name) for parameter in trainer._params]


def _unsaved_figures(figures: dict[str, Any]) -> list[str]:
    return [figure_name(stage, key) for stage, state in figures.items() for key in state["lost"]]
