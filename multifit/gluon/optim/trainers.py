"""Trainers: built from their specs, checked to move every parameter exactly once, stepped together."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...errors import Problem, TrainerError, names
from ...spec import TrainerSpec
from ..compat import mx
from .coverage import (
    coverage_problems,
    declared_problems,
    device_problems,
    frozen_names,
    held_names,
    is_trainer,
)
from .fused_updates import Update
from .optimizers import build_optimizer
from .parameters import trainable
from .trainer_handle import TrainerHandle

__all__ = ["DEFAULT", "Trainers", "bind_trainers"]

DEFAULT = TrainerSpec(".*", "adam", {"learning_rate": 1e-3})


class Trainers(Mapping[str, Any]):
    """The trainers by name; each is a ``gluon.Trainer`` under a handle that can be turned.

    Parameters
    ----------
    trainers : mapping of str to gluon.Trainer
        Who moves what.
    clip_norms : mapping of str to float
        The largest global gradient norm, for those that clip.
    held : mapping of str to list of str
        The names of each trainer's parameters.
    options : mapping of str to mapping
        The declared options of optimizers that were declared by name.
    """

    def __init__(
        self,
        trainers: Mapping[str, Any],
        clip_norms: Mapping[str, float],
        held: Mapping[str, list[str]],
        options: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.options = dict(options)
        self._trainers, self.clip_norms, self.held = dict(trainers), dict(clip_norms), dict(held)
        self._handles = {name: TrainerHandle(name, trainer) for name, trainer in trainers.items()}
        self._updates = {name: Update(trainer) for name, trainer in trainers.items()}

    def __getitem__(self, name: str) -> Any:
        return self._handles[name]

    def __iter__(self) -> Any:
        return iter(self._trainers)

    def __len__(self) -> int:
        return len(self._trainers)

    def only(self, name: str) -> Trainers:
        """Return one of the trainers, by itself."""
        norms = {name: self.clip_norms[name]} if name in self.clip_norms else {}
        return Trainers({name: self._trainers[name]}, norms, {name: self.held[name]}, {})

    def step(self) -> None:
        """Update all parameters from gradients that are normalised already.

        Gradients are settled, reduced and clipped for every trainer before the first one moves a parameter.
        """
        self.reduce()
        self.clip()
        self.update()

    def reduce(self) -> None:
        """Settle the gradients, and add them up over the devices, unless a kvstore will do that itself."""
        for trainer in self._trainers.values():
            on_kvstore = _updates_on_kvstore(trainer)
            _settle(trainer, everywhere=on_kvstore)
            if not on_kvstore:
                trainer.allreduce_grads()

    def clip(self) -> None:
        """Scale the gradients of each trainer that clips down to its largest global norm."""
        for name, norm in self.clip_norms.items():
            if not _updates_on_kvstore(self._trainers[name]):
                _clip(self._trainers[name], norm)

    def update(self) -> None:
        """Move all parameters, by gradients that are ready."""
        for name, trainer in self._trainers.items():
            # parameters that this batch did not reach keep their stale gradient, and are left alone
            if _updates_on_kvstore(trainer):
                trainer.step(1, ignore_stale_grad=True)
                _mark_used(trainer)
            else:
                self._updates[name]()
            for parameter in trainer._params:
                if parameter.grad_req == "add":
                    parameter.zero_grad()

    def calls(self, name: str) -> int | None:
        """Return in how many calls a trainer's parameters are moved; None where it decides by itself."""
        closed = _updates_on_kvstore(self._trainers[name])
        return None if closed else self._updates[name].calls

    def closed(self) -> list[str]:
        """Return the trainers whose reduced gradients nobody sees: their kvstore updates by itself."""
        return [name for name, trainer in self._trainers.items() if _updates_on_kvstore(trainer)]

    def check_open(self, why: str) -> None:
        """Check that the gradients of several devices can be changed before they are used.

        Raises
        ------
        TrainerError
            A kvstore adds them up and moves the parameters by itself; `why` says what cannot be done there.
        """
        closed = [name for name in self.closed() if len(self._trainers[name]._contexts) > 1]
        if closed:
            raise TrainerError(
                f"trainers: {names(closed)} update on the kvstore, {why}; "
                "give a TrainerSpec, or gluon.Trainer(..., update_on_kvstore=False)"
            )

    def learning_rates(self) -> dict[str, float]:
        """Return the rates as figures: ``lr``, or ``lr_<trainer>`` where there are several."""
        if len(self) == 1:
            return {"lr": float(next(iter(self.values())).learning_rate)}
        return {f"lr_{name}": float(trainer.learning_rate) for name, trainer in self.items()}


def bind_trainers(
    declared: Any, parameters: Mapping[str, Any], frozen: Any, contexts: Sequence[Any]
) -> tuple[Trainers | None, list[Problem]]:
    """Build what is declared, and check that every trainable parameter has exactly one trainer.

    Parameters
    ----------
    declared : gluon.Trainer, TrainerSpec or mapping of str to these
        None: the default, Adam at 1e-3 over all.
    parameters : mapping of str to Parameter
        All parameters by structural name, initialised.
    frozen : sequence of str, Block or ParameterDict
        What no trainer moves, on purpose.
    contexts : sequence of Context
        The devices of the run.

    Returns
    -------
    Trainers or None, list of Problem
        None where something is wrong.
    """
    single = not isinstance(declared, Mapping)
    given = {"trainer": DEFAULT if declared is None else declared} if single else declared
    where = {name: "trainers" if single else f'trainers["{name}"]' for name in given}
    problems = declared_problems(declared, given)
    able = {name: value for name, value in given.items() if is_trainer(value)}
    wanted = trainable(parameters)
    cold, wrong = frozen_names(frozen, parameters)
    held: dict[str, list[str]] = {}
    for name, value in able.items():
        held[name], found = held_names(where[name], value, wanted, cold)
        wrong += found
    if not wrong and len(able) == len(given):  # else the parameters that are missing are no news
        wrong = coverage_problems(held, wanted, cold)
    optimizers: dict[str, Any] = {}
    for name, value in able.items():
        optimizers[name], found = build_optimizer(where[name], value)
        wrong += found + device_problems(where[name], value, contexts)
    if problems + wrong:
        return None, problems + wrong
    trainers = {n: _build(v, [parameters[p] for p in held[n]], optimizers[n]) for n, v in able.items()}
    norms = {n: getattr(value, "clip_norm", None) for n, value in able.items()}
    clips = {n: float(norm) for n, norm in norms.items() if norm is not None}
    named = {n: v for n, v in able.items() if isinstance(getattr(v, "optimizer", None), str)}
    options = {n: v.optimizer_params or {} for n, v in named.items()}
    return Trainers(trainers, clips, held, options), []


def _build(value: Any, parameters: list[Any], optimizer: Any) -> Any:
    if isinstance(value, mx.gluon.Trainer):
        return value
    return mx.gluon.Trainer(parameters, optimizer, kvstore="device", update_on_kvstore=False)


def _updates_on_kvstore(trainer: Any) -> bool:
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    return bool(trainer._kvstore and trainer._update_on_kvstore)


def _settle(trainer: Any, everywhere: bool) -> None:
    """Give a gradient that a batch did not reach its value, 0, where it would be used all the same.

    That is where another device has a fresh one: the sum over devices would hold an old gradient, and a
    replica that skips the update would diverge. A kvstore that updates by itself uses all (`everywhere`).
    """
    if len(trainer._contexts) == 1 and not everywhere:
        return
    for parameter in _moved(trainer):
        replicas = list(zip(parameter.list_data(), parameter.list_grad()))
        stale = [(data, grad) for data, grad in replicas if not data._fresh_grad]
        if stale and (everywhere or len(stale) < len(replicas)):
            for data, grad in stale:
                mx.nd.zeros_like(grad, out=grad)
                data._fresh_grad = True


def _mark_used(trainer: Any) -> None:
    """Mark all gradients as used, which a trainer forgets where its kvstore updates."""
    for parameter in _moved(trainer):
        for data in parameter.list_data():
            data._fresh_grad = False


def _clip(trainer: Any, norm: float) -> None:
    fresh = [p for p in _moved(trainer) if p.list_data()[0]._fresh_grad]
    for context in fresh[0].list_ctx() if fresh else ():
        # per device, as all hold the same reduced gradients; not looking at the norm spares a wait
        mx.gluon.utils.clip_global_norm([p.grad(context) for p in fresh], norm, check_isfinite=False)


def _moved(trainer: Any) -> list[Any]:
    return [p for p in trainer._params if p.grad_req != "null"]
