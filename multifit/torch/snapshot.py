"""Write the engine's part of a run into a folder, and read it back; nothing in the files can run code."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..engines.identity import Parameters, differences, differing, parameter_differences, plain, run_identity
from ..engines.trees import Add, Files, Trees, has_own, write_ranks
from ..errors import Problem, SpecError, counted, last_line, quoted
from ..files import atomic_path, read_json
from ..protocols import Numbers
from ..seeding import random_state, seed_everything, seed_of_rank, set_random_state
from ..stages import TRAIN, figure_name
from ..version import __version__
from .model import Model

NET, FINAL, OTHERS, TRAINED = "net.pt", "final.pt", "losses.pt", "trained.pt"
IDENTITY, TRAINERS, FIGURES, RANDOM = "identity.json", "trainers", "figures", "random"
BALANCE, STATISTICS, CARRIED, LABELS = "balance", "statistics", "carried", "labels"
NO_STATE = "has no state_dict and load_state_dict"
OTHER_RANKS = "what each process has measured cannot be divided among another number of processes"
OF_LOSSES = "losses."  # what the names of losses' parameters begin with
NONE: Mapping[str, Any] = MappingProxyType({})
INTEGERS = {1: torch.uint8, 2: torch.int16}  # by their bytes: for numbers that NumPy lacks, such as bfloat16


class TorchTrees(Trees):
    """Trees that hold tensors too; those that were not on the CPU are restored on `device`."""

    valid = f"{Trees.valid}, and dense tensors"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def write_array(self, value: Any, add: Add) -> dict[str, Any] | None:
        """Return the structure of a tensor; None for another value."""
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            return None
        on_host = value.detach().cpu().contiguous()
        try:
            array = on_host.numpy()
        except TypeError:
            array = on_host.view(INTEGERS[value.element_size()]).numpy()
        return {"tensor": add(array), "dtype": _name(value.dtype), "on": value.device.type}

    def read_array(self, structure: Any, arrays: list[Numbers]) -> Tensor:
        """Return the tensor of a structure."""
        tensor = torch.from_numpy(np.asarray(arrays[structure["tensor"]]))
        dtype = getattr(torch, structure["dtype"])
        tensor = tensor if tensor.dtype == dtype else tensor.view(dtype)
        return tensor if structure["on"] == "cpu" else tensor.to(self._device)


class Snapshot:
    """Writes an engine's part of a run into a folder, and reads it back.

    `reader` reads the net's parameters and buffers in `net_file`, that of a checkpoint, or in `final_file`,
    that of a finished run.
    """

    net_file, final_file, reader = NET, FINAL, "net.load_state_dict(torch.load(file))"
    differing = staticmethod(differing)
    write_ranks = staticmethod(write_ranks)

    def __init__(self, engine: Any) -> None:
        self._engine, self._trees = engine, TorchTrees(engine.model.device)
        self.write_tree, self.read_tree = self._trees.write, self._trees.read
        self.read_own_tree = self._trees.read_own

    def versions(self) -> dict[str, str]:
        """Return the versions that a run's figures depend on most, by name."""
        return {
            "multifit": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": str(torch.__version__),
        }

    # ---- checkpoints

    def write(self, folder: Path, evaluated: Mapping[str, Any] = NONE) -> None:
        """Write parameters, trainers, figures, random states and the run's identity; called between batches.

        `evaluated` are the values that evaluations use in place of some parameters. The parameters that
        training continues with are then in a file of their own.
        """
        model = self._engine.model
        _write(folder / NET, model, evaluated)
        if evaluated:
            trained = {**model.parameters, **model.statistics}
            _save(folder / TRAINED, {name: trained[name] for name in evaluated})
        for name, tree in {TRAINERS: self._engine.trainers.state(), **self._own_state()}.items():
            self.write_tree(folder, name, tree)
        (folder / IDENTITY).write_text(json.dumps(self.identity(), indent=1) + "\n", "utf-8")

    def gather_own(self, trees: Mapping[str, Any]) -> list[Files]:
        """Return, for each rank, the files of `trees` and of its own state that differ from the first rank's.

        A rank's own state are its figures, running statistics, gradients that wait for an update and the
        like.
        """
        own = {**trees, **self._own_state()}
        if self._engine.trainers.left:
            own[TRAINERS] = self._engine.trainers.state()
        return self._trees.gather(self._engine.world, own)

    def read(self, folder: Path, ranks: int = 1, complete: bool = False) -> list[str]:
        """Load everything that :meth:`write` wrote, the random states last.

        The folder must be intact and without :meth:`differences`; the stages must have just been reset.
        `ranks` is the number of ranks that wrote the folder. If there are as many now, each loads its own
        state. Otherwise, running statistics become the mean over all ranks, and the first rank's figures
        become the sum over all ranks, as far as they can be added up. After a `complete` epoch, no figures
        continue. Returns a line for everything that starts anew.
        """
        engine, world, model = self._engine, self._engine.world, self._engine.model
        same = ranks == world.size
        rank = world.rank if same else 0
        if not same:
            self._check_divisible(folder, ranks)
        _read(folder / NET, model)
        if (folder / TRAINED).exists():
            _set(_tensors(model), _load(folder / TRAINED))
        engine.trainers.get().load(self.read_own_tree(folder, rank, TRAINERS))
        if (carried := engine.stages[TRAIN].carried) is not None:
            carried.load(self.read_own_tree(folder, rank, CARRIED))
        measured, lines = self.read_own_tree(folder, rank, FIGURES), []
        for name, stage in engine.stages.items():
            lost = stage.figures.load(measured[name], divisible=same)
            if name == TRAIN and not complete:
                why = f"the metric {NO_STATE}" if same else OTHER_RANKS
                lines += [f'"{figure_name(TRAIN, key)}" starts from zero: {why}' for key in lost]
        for name, known in self.read_own_tree(folder, rank, LABELS).items():
            found = {label: (shape, getattr(torch, dtype)) for label, (shape, dtype) in known.items()}
            engine.known_labels[name].update(found)
        if engine.balancer is not None:
            engine.balancer.load(self.read_own_tree(folder, rank, BALANCE))
        # what a net does not save may have another shape here, such as what was computed for long sequences
        buffers, saved = model.statistics, self.read_own_tree(folder, rank, STATISTICS)
        _set(buffers, {n: each for n, each in saved.items() if each.shape == buffers[n].shape})
        if not same:
            self._redistribute(folder, ranks)
        self.read_random(folder)
        return lines

    def read_random(self, folder: Path) -> None:
        """Set the states of Python's, NumPy's and PyTorch's generators to what they were in `folder`.

        A rank whose states are not in the folder derives its own from those of the first rank.
        """
        rank = self._engine.world.rank
        set_random_state(self.read_own_tree(folder, rank, RANDOM))
        if rank and not has_own(folder, rank, RANDOM):
            seed_everything(seed_of_rank(int(np.random.get_state(legacy=False)["state"]["key"][0]), rank))

    def share_trainers(self) -> None:
        """Give the trainers of all ranks the first rank's states and counters, if any rank has states."""
        world, trainers = self._engine.world, self._engine.trainers.get()
        tree, arrays = trainers.state(), list[Numbers]()
        if any(world.gather(any(each["states"] for each in tree["trainers"].values()))):
            structure, arrays = world.from_first((self._trees.encode(tree, TRAINERS, arrays), arrays))
            if world.rank:
                trainers.load(self._trees.decode(structure, arrays))

    # ---- what was trained

    def write_trained(self, path: Path) -> None:
        """Write the net's parameters to a file, and those of losses beside it. ValueError: some have none."""
        model = self._engine.model
        lazy = [name for name, each in _tensors(model).items() if is_lazy(each)]
        if lazy:  # no batch has reached them
            raise ValueError(f"{quoted(lazy)} of the net have no values yet: call the net, or fit or check")
        _write(path, model)

    def read_trained(self, path: Path) -> None:
        """Set the parameters to those of a file that :meth:`write_trained` or :meth:`write` wrote.

        Raises SpecError if it has others than net and losses, and ValueError if it is missing or damaged;
        then none is set.
        """
        if lines := _read(path, self._engine.model):
            message = f"{path} does not fit the net: {'; '.join(lines)}"
            raise SpecError([Problem("spec", f"{message}; make the net that was trained, with its settings")])

    # ---- identity

    def identity(self) -> dict[str, Any]:
        """Return the identity of the run, as a JSON tree."""
        trainers = self._engine.trainers.get()
        return run_identity(
            self._engine,
            _described(_saved(self._engine.model)),
            {
                name: {
                    "optimizer": type(handle.optimizer).__name__,
                    "options": _options(trainers.options.get(name)),
                    "schedule": _schedule(handle.rates),
                    "clip_norm": plain(trainers.clip_norms.get(name)),
                    "holds": list(trainers.parameters[name]),
                    **(trainers.rhythms[name]._asdict() if name in trainers.rhythms else {}),
                }
                for name, handle in trainers.items()
            },
        )

    def differences(self, folder: Path) -> list[str]:
        """Return a line for each difference between the run that wrote `folder` and this one."""
        return differences(read_json(folder / IDENTITY), self.identity())

    # ---- ranks

    def _own_state(self) -> dict[str, Any]:
        engine = self._engine
        carried = engine.stages[TRAIN].carried
        known = {
            stage: {label: (tuple(shape), _name(dtype)) for label, (shape, dtype) in labels.items()}
            for stage, labels in engine.known_labels.items()
        }
        return {
            FIGURES: {name: stage.figures.state() for name, stage in engine.stages.items()},
            STATISTICS: dict(engine.model.statistics),
            RANDOM: random_state(),
            **({} if carried is None else {CARRIED: carried.state()}),
            LABELS: known,
            **({} if engine.balancer is None else {BALANCE: engine.balancer.state()}),
        }

    def _check_divisible(self, folder: Path, ranks: int) -> None:
        now, processes = self._engine.world.size, counted(ranks, "process", "processes")
        if any(self.read_own_tree(folder, rank, TRAINERS)["gradients"] for rank in range(ranks)):
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
        engine = self._engine
        for rank in range(1, ranks):
            for name, state in self.read_own_tree(folder, rank, FIGURES).items():
                engine.stages[name].figures.merge(state)
        for stage in engine.stages.values() if engine.world.rank else ():
            stage.figures.reset_own()
        every = [self.read_own_tree(folder, rank, STATISTICS) for rank in range(ranks)]
        real = [name for name, each in every[0].items() if each.is_floating_point()]
        _set(engine.model.statistics, {n: torch.stack([each[n] for each in every]).mean(0) for n in real})


# ---- parameters and buffers ------------------------------------------------------------------------------


def _tensors(model: Model) -> dict[str, Tensor]:
    return {**model.parameters, **model.statistics}


def _saved(model: Model) -> dict[str, Tensor]:
    """Return what belongs to a file of parameters: all parameters, and the buffers that a net saves."""
    of_net = {name: each for name, each in model.net.state_dict().items() if isinstance(each, Tensor)}
    return {**of_net, **{name: each for name, each in _tensors(model).items() if name.startswith(OF_LOSSES)}}


def _write(path: Path, model: Model, evaluated: Mapping[str, Any] = NONE) -> None:
    """Write the net's ``state_dict`` to a file, and what losses have to ``losses.pt`` beside it.

    `evaluated` replaces values by name. Parameters that have no shape yet are left out. Raises OSError if a
    file cannot be written completely.
    """
    net, tensors = model.net, _tensors(model)
    used = {id(tensors[name]): value for name, value in evaluated.items()}
    of_net = {
        **dict(net.named_parameters(remove_duplicate=False)),
        **dict(net.named_buffers(remove_duplicate=False)),
    }
    _save(path, {n: used.get(id(of_net.get(n)), each) for n, each in net.state_dict().items()})
    of_losses = {n: used.get(id(t), t) for n, t in tensors.items() if n.startswith(OF_LOSSES)}
    if of_losses:
        _save(path.with_name(OTHERS), {n[len(OF_LOSSES) :]: each for n, each in of_losses.items()})


def _save(path: Path, values: Mapping[str, Any]) -> None:
    # NumPy's arrays are values of handlers
    tensors = {name: torch.as_tensor(each) if _is_array(each) else each for name, each in values.items()}
    on_host = {
        name: each.detach().cpu() if isinstance(each, Tensor) else each
        for name, each in tensors.items()
        if not is_lazy(each)
    }
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save(on_host, file)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _load(path: Path) -> dict[str, Any]:
    """Return a file's tensors by name; ValueError if it is missing or damaged, or holds something else."""
    if not path.is_file():  # torch would wait for a pipe
        raise ValueError(f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many types
        raise ValueError(f"{path} is damaged, or holds no parameters ({last_line(error)})") from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"the tensors of {path} have no names")
    return found


def _read(path: Path, model: Model) -> list[str]:
    """Set the net's parameters and buffers to those in a file, and those of losses to the file beside it.

    Returns what differs in names, shapes or dtypes; then none is set.
    """
    own, found = _saved(model), _load(path)
    of_losses = {name: each for name, each in own.items() if name.startswith(OF_LOSSES)}
    others = {}
    if of_losses:
        others = {f"{OF_LOSSES}{name}": each for name, each in _load(path.with_name(OTHERS)).items()}
    lines = parameter_differences(_described({**found, **others}), _described(own))
    if not lines:
        model.net.load_state_dict(found)
        _set(of_losses, others)
    return lines


@torch.no_grad()
def _set(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        tensors[name].copy_(value)


def _described(tensors: Mapping[str, Any]) -> Parameters:
    """Return shapes and dtypes; None for a shape that no batch has determined yet."""
    return {
        name: (None if is_lazy(each) else tuple(each.shape), _name(each.dtype))
        for name, each in tensors.items()
        if isinstance(each, Tensor)
    }


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


# ---- trainers ----------------------------------------------------------------------------------------------


def _options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return declared options; None for an optimizer that the user built."""
    return None if options is None else {key: plain(value) for key, value in options.items()}


def _schedule(rates: Any) -> str | None:
    kinds: Iterable[Any] = (rates.schedule, rates.scheduler)
    names = [getattr(each, "__name__", type(each).__name__) for each in kinds if each is not None]
    return names[0] if names else None
