"""Everything of a run that lives in the engine, into a folder and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import raise_problems
from ...files import atomic_write
from ...stages import figure_name
from .differences import differences as compare
from .figures import load_stage_state, stage_state
from .identity import identity
from .parameters import device_state, load_device_state, read_parameters, write_parameters
from .random import random_state, set_random_state
from .trainers import load_trainer_state, trainer_state
from .tree import read_tree, write_tree

__all__ = ["differences", "read", "read_identity", "read_random", "write"]

IDENTITY, DEVICES, TRAINERS, FIGURES, RANDOM = "identity.json", "devices", "trainers", "figures", "random"


def write(folder: Path, engine: Any) -> list[str]:
    """Write parameters, trainers, figures, random states and the run's identity.

    Parameters
    ----------
    folder : Path
        It is there already; each file in it is written whole or not at all.
    engine : Engine
        Between two batches.

    Returns
    -------
    list of str
        What could not be saved, and begins anew: figures (``val_mAP``), and attributes of optimizers.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    lost: list[str] = []
    trainers = engine.trainers.get()
    trees = {
        DEVICES: device_state(engine.model.parameters, _held(engine)),
        TRAINERS: {
            name: trainer_state(trainer, _names(engine, trainer), f"trainers.{name}", lost)
            for name, trainer in trainers.items()
        },
        FIGURES: {name: _stage_state(name, stage, lost) for name, stage in engine.stages.items()},
        RANDOM: random_state(),
    }
    write_parameters(folder, engine.model.net, engine.model.parameters)
    for name, tree in trees.items():
        write_tree(folder, name, tree)
    atomic_write(folder / IDENTITY, json.dumps(identity(engine), indent=1) + "\n")
    return lost


def read(folder: Path, engine: Any) -> list[str]:
    """Restore everything that :func:`write` wrote, the random states last.

    Parameters
    ----------
    folder : Path
        A folder that is whole.
    engine : Engine
        Its net may be initialised or not; its stages were just reset.

    Returns
    -------
    list of str
        The figures that begin anew.

    Raises
    ------
    OSError, ValueError
        A file cannot be read, or is another run's.
    TrainerError
        The trainers cannot be built.
    """
    raise_problems(engine.model.initialize())
    found = differences(folder, engine)
    if found:
        raise ValueError("\n  ".join([f"{folder} is another run's:", *found]))
    read_parameters(folder, engine.model.parameters, engine.model.contexts)
    trainers = engine.trainers.get()
    for name, state in read_tree(folder, TRAINERS).items():
        trainer = trainers[name]
        load_trainer_state(trainer, state, _names(engine, trainer), f'trainers["{name}"]')
    load_device_state(engine.model.parameters, _held(engine), read_tree(folder, DEVICES))
    lost: list[str] = []
    for name, state in read_tree(folder, FIGURES).items():
        load_stage_state(engine.stages[name].figures, state)
        lost += [figure_name(name, key) for key in state["lost"]]
    read_random(folder)
    return lost


def read_random(folder: Path) -> None:
    """Set the states of NumPy's and Python's generators to what they were when `folder` was written."""
    set_random_state(read_tree(folder, RANDOM))


def read_identity(folder: Path) -> dict[str, Any]:
    """Return the identity of the run that wrote `folder`."""
    return json.loads((folder / IDENTITY).read_text("utf-8"))


def differences(folder: Path, engine: Any) -> list[str]:
    """Return in what the run that wrote `folder` and this one differ, a line each."""
    return compare(read_identity(folder), identity(engine))


def _held(engine: Any) -> list[str]:
    return [name for names in engine.trainers.get().parameter_names.values() for name in names]


def _names(engine: Any, trainer: Any) -> list[str]:
    """Return a trainer's parameters by structural name, in its order; one of the user's own may hold any."""
    names = {id(parameter): name for name, parameter in engine.model.parameters.items()}
    return [names.get(id(parameter), parameter.name) for parameter in trainer._params]


def _stage_state(name: str, stage: Any, lost: list[str]) -> dict[str, Any]:
    own: list[str] = []
    state = stage_state(stage.figures, own)
    lost += [figure_name(name, key) for key in own]
    return {**state, "lost": own}
