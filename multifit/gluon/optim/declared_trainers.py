"""Check what is given as ``trainers=``, before any parameter is looked at."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...errors import Problem, shown
from ...protocols import Context
from ...spec import TrainerSpec
from ..compat import mx


def is_trainer(value: object) -> bool:
    """Whether a value declares a trainer."""
    return isinstance(value, (TrainerSpec, mx.gluon.Trainer))


def declared_problems(declared: object, named: Mapping[Any, Any]) -> list[Problem]:
    """Check that trainers are trainers with names, and that no two share an optimizer object.

    `named` is `declared` as a mapping: a single trainer has the name "trainer".
    """
    messages = [
        f"trainers: {shown(name)} is not a name; name each trainer with a string"
        for name in named
        if not isinstance(name, str) or not name
    ]
    messages += [
        _not_a_trainer(name, value, declared) for name, value in named.items() if not is_trainer(value)
    ]
    if not named:
        messages.append("trainers: the dict is empty; name at least one trainer, or leave trainers= out")
    owners: dict[int, list[str]] = {}
    for name, value in named.items():
        is_built = isinstance(value, mx.gluon.Trainer)
        optimizer = value._optimizer if is_built else getattr(value, "optimizer", None)
        if isinstance(optimizer, mx.optimizer.Optimizer):
            owners.setdefault(id(optimizer), []).append(name)
    messages += [
        f"the trainers {' and '.join(names)} share one optimizer object, whose parameters and counters "
        "would mix; give each its own"
        for names in owners.values()
        if len(names) > 1
    ]
    return [Problem("trainer", message) for message in messages]


def _not_a_trainer(name: object, value: object, declared: object) -> str:
    where = f'trainers["{name}"]' if isinstance(declared, Mapping) else "trainers"
    way_out = 'give TrainerSpec(".*", "adam")'
    if isinstance(value, (list, tuple)):
        way_out = 'several trainers need names: give a dict, such as {"body": TrainerSpec("body.*"), ...}'
    return f"{where}: {shown(value)} is neither a TrainerSpec nor a gluon.Trainer; {way_out}"


def device_problems(
    where: str, value: TrainerSpec | mx.gluon.Trainer, contexts: Sequence[Context]
) -> list[Problem]:
    """Check that a gluon.Trainer is built for the devices of the run."""
    messages = []
    if isinstance(value, mx.gluon.Trainer):
        if len(contexts) > 1 and value._kvstore_params["kvstore"] is None:
            messages.append(
                f"{where}: kvstore=None on {len(contexts)} devices never adds up gradients, so replicas "
                'would diverge; use kvstore="device", or a TrainerSpec'
            )
        if len(contexts) == 1 and value._kvstore_params["update_on_kvstore"]:
            messages.append(
                f"{where}: update_on_kvstore=True on one device, where MXNet has no kvstore to update on; "
                "leave it out"
            )
        if list(value._contexts or []) != list(contexts):
            built, run = (
                ", ".join(map(str, devices or ["nowhere"])) for devices in (value._contexts, contexts)
            )
            messages.append(
                f"{where}: was built for {built}, but the run is on {run}; "
                "initialise the net there before building the gluon.Trainer, or give a TrainerSpec"
            )
    return [Problem("trainer", message) for message in messages]
