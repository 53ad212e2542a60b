"""Trainers: built from their specs, checked to move every parameter exactly once, stepped together."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ..errors import Problem
from ..spec import TrainerSpec
from .compat import mx
from .optimizers import build_optimizer
from .parameters import selected, trainable

__all__ = ["DEFAULT", "Trainers", "bind_trainers"]

DEFAULT = TrainerSpec(".*", "adam", {"learning_rate": 1e-3})


class Trainers(Mapping[str, Any]):
    """The trainers by name; each is a ``gluon.Trainer``.

    Parameters
    ----------
    trainers : mapping of str to gluon.Trainer
        Who moves what.
    clip_norms : mapping of str to float
        The largest global gradient norm, for those that clip.
    """

    def __init__(
        self, trainers: Mapping[str, Any], clip_norms: Mapping[str, float], held: Mapping[str, list[str]]
    ) -> None:
        self._trainers, self.clip_norms, self.held = dict(trainers), dict(clip_norms), dict(held)
        self._accumulating = [p for t in self._trainers.values() for p in t._params if p.grad_req == "add"]

    def __getitem__(self, name: str) -> Any:
        return self._trainers[name]

    def __iter__(self) -> Any:
        return iter(self._trainers)

    def __len__(self) -> int:
        return len(self._trainers)

    def step(self) -> None:
        """Update all parameters from gradients that are normalised already.

        Gradients are reduced and clipped for every trainer before the first one moves a parameter.
        """
        reduced = {name for name in self._trainers if not _updates_on_kvstore(self._trainers[name])}
        for name in reduced:
            trainer = self._trainers[name]
            trainer.allreduce_grads()
            if name in self.clip_norms:
                _clip(trainer, self.clip_norms[name])
        for name, trainer in self._trainers.items():
            # parameters that this batch did not reach keep their stale gradient, and are left alone
            (trainer.update if name in reduced else trainer.step)(1, ignore_stale_grad=True)
        for parameter in self._accumulating:
            parameter.zero_grad()

    def settle(self, busy: Sequence[Any]) -> None:
        """Give the gradients of devices that had no sample, or took another branch, their value: 0.

        Otherwise the sum over devices would hold an old gradient, and replicas that skip an update diverge.
        `busy` are the contexts that had samples.
        """
        for parameter in (p for t in self._trainers.values() for p in t._params if p.grad_req != "null"):
            replicas = list(zip(parameter.list_ctx(), parameter.list_data(), parameter.list_grad()))
            fresh = [context in busy and data._fresh_grad for context, data, _ in replicas]
            if any(fresh) and not all(fresh):
                for is_fresh, (_, data, grad) in zip(fresh, replicas):
                    if not is_fresh:
                        grad[:] = 0
                        data._fresh_grad = True

    def stale(self) -> list[str]:
        """Return names of parameters that the last backward pass did not reach."""
        return [
            name
            for key, trainer in self._trainers.items()
            for name, parameter in zip(self.held[key], (p for p in trainer._params if p.grad_req != "null"))
            if not any(data._fresh_grad for data in parameter.list_data())
        ]

    def learning_rates(self) -> dict[str, float]:
        """Return the rates as figures: ``lr``, or ``lr_<trainer>`` where there are several."""
        if len(self) == 1:
            return {"lr": float(next(iter(self.values())).learning_rate)}
        return {f"lr_{name}": float(trainer.learning_rate) for name, trainer in self.items()}


def bind_trainers(
    declared: Any, parameters: Mapping[str, Any], frozen: Sequence[Any], contexts: Sequence[Any]
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
    """
    given = (
        declared if isinstance(declared, Mapping) else {"trainer": DEFAULT if declared is None else declared}
    )
    wanted = trainable(parameters)
    problems = [_not_a_trainer(name, value) for name, value in given.items() if not _is_trainer(value)]
    if not given:
        problems.append(
            Problem(
                "trainer", "trainers: the dict is empty; name at least one trainer, or leave trainers= out"
            )
        )
    cold: set[str] = set()
    for pattern in frozen if isinstance(frozen, (list, tuple, set)) else [frozen]:
        names, found = selected(
            f"frozen: {pattern if isinstance(pattern, str) else type(pattern).__name__}", pattern, parameters
        )
        cold.update(names)
        problems += found
    held: dict[str, list[str]] = {}
    for name, value in given.items():
        if _is_trainer(value):
            held[name], found = _held(f'trainers["{name}"]', value, wanted, cold)
            problems += found
    problems += _coverage(held, wanted, cold) if not problems else []
    problems += _shared_optimizers(given) + _without_kvstore(given, contexts)
    built = {}
    for name, value in given.items():
        if isinstance(value, TrainerSpec):
            optimizer, found = build_optimizer(f'trainers["{name}"]', value)
            problems += found
            built[name] = optimizer
    if problems:
        return None, problems
    trainers = {
        name: _build(value, [parameters[n] for n in held[name]], built.get(name))
        for name, value in given.items()
    }
    clips = {
        n: float(v.clip_norm)
        for n, v in given.items()
        if isinstance(v, TrainerSpec) and v.clip_norm is not None
    }
    return Trainers(trainers, clips, held), []


def _is_trainer(value: Any) -> bool:
    return isinstance(value, (TrainerSpec, mx.gluon.Trainer))


def _not_a_trainer(name: str, value: Any) -> Problem:
    return Problem(
        "trainer",
        f'trainers["{name}"]: {value!r:.80} is neither a gluon.Trainer nor a TrainerSpec; give TrainerSpec(".*", "adam")',
    )


def _held(
    where: str, value: Any, wanted: Mapping[str, Any], cold: set[str]
) -> tuple[list[str], list[Problem]]:
    if isinstance(value, TrainerSpec):
        names, problems = selected(where, value.params, wanted)
        kept = [name for name in names if name not in cold]
        if names and not kept:
            problems = [
                Problem(
                    "trainer",
                    f"{where}: everything that it selects is frozen: {_shown(names)}; remove it, or narrow frozen=",
                )
            ]
        return kept, problems
    by_id = {id(parameter): name for name, parameter in wanted.items()}
    known = [by_id.get(id(p)) for p in value._params if p.grad_req != "null"]
    foreign = [p.name for p in value._params if p.grad_req != "null" and id(p) not in by_id]
    problems = []
    if foreign:
        problems.append(
            f"{where}: holds parameters that the net does not have: {_shown(foreign)}; build it from net.collect_params()"
        )
    met = [name for name in known if name in cold]
    if met:
        problems.append(
            f"{where}: moves parameters that frozen= names: {_shown(met)}; take them out of the gluon.Trainer, "
            "or give a TrainerSpec, from which frozen parameters are subtracted"
        )
    return [name for name in known if name is not None], [Problem("trainer", message) for message in problems]


def _coverage(held: Mapping[str, list[str]], wanted: Mapping[str, Any], cold: set[str]) -> list[Problem]:
    owners: dict[str, list[str]] = {name: [] for name in wanted}
    for trainer, names in held.items():
        for name in names:
            owners[name].append(trainer)
    twice: dict[tuple[str, ...], list[str]] = {}
    for name, several in owners.items():
        if len(several) > 1:
            twice.setdefault(tuple(several), []).append(name)
    messages = [
        f"{_shown(names)} would be moved by the trainers {' and '.join(several)}; each parameter belongs to exactly one: narrow a pattern"
        for several, names in twice.items()
    ]
    none = [name for name, several in owners.items() if not several and name not in cold]
    if none:
        example = none[0].split(".")[0] + ".*" if "." in none[0] else none[0]
        messages.append(
            f'no trainer moves {_shown(none)}, so they would stay as they are; add a TrainerSpec for them, or say frozen=["{example}"]'
        )
    return [Problem("trainer", message) for message in messages]


def _shared_optimizers(given: Mapping[str, Any]) -> list[Problem]:
    owners: dict[int, list[str]] = {}
    for name, value in given.items():
        optimizer = (
            value._optimizer if isinstance(value, mx.gluon.Trainer) else getattr(value, "optimizer", None)
        )
        if isinstance(optimizer, mx.optimizer.Optimizer):
            owners.setdefault(id(optimizer), []).append(name)
    return [
        Problem(
            "trainer",
            f"the trainers {' and '.join(names)} share one optimizer object, whose parameters and counters would mix; give each its own",
        )
        for names in owners.values()
        if len(names) > 1
    ]


def _without_kvstore(given: Mapping[str, Any], contexts: Sequence[Any]) -> list[Problem]:
    messages = []
    for name, value in given.items():
        if isinstance(value, mx.gluon.Trainer):
            if len(contexts) > 1 and value._kvstore_params["kvstore"] is None:
                messages.append(
                    f'trainers["{name}"]: kvstore=None on {len(contexts)} devices never adds up gradients, so replicas diverge; '
                    'use kvstore="device", or a TrainerSpec'
                )
            if list(value._contexts) != list(contexts):
                messages.append(
                    f'trainers["{name}"]: was built for {_contexts(value._contexts)}, but the run is on {_contexts(contexts)}; '
                    "initialise the net there before building the gluon.Trainer, or give a TrainerSpec"
                )
    return [Problem("trainer", message) for message in messages]


def _build(value: Any, parameters: list[Any], optimizer: Any) -> Any:
    if isinstance(value, mx.gluon.Trainer):
        return value
    return mx.gluon.Trainer(parameters, optimizer, kvstore="device", update_on_kvstore=False)


def _updates_on_kvstore(trainer: Any) -> bool:
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    return bool(trainer._kvstore and trainer._update_on_kvstore)


def _clip(trainer: Any, norm: float) -> None:
    parameters = [p for p in trainer._params if p.grad_req != "null"]
    for context in parameters[0].list_ctx():
        # per device, as all hold the same reduced gradients; not looking at the norm spares a wait
        mx.gluon.utils.clip_global_norm([p.grad(context) for p in parameters], norm, check_isfinite=False)


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(f'"{name}"' for name in names[:6]) + (
        f" and {len(names) - 6} more" if len(names) > 6 else ""
    )


def _contexts(contexts: Sequence[Any]) -> str:
    return ", ".join(map(str, contexts))
