"""Check what is given as ``trainers=``, before any parameter is looked at."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from ...errors import Problem, shown
from ...protocols import Context
from ...spec import TrainerSpec
from ..compat import mx
from .parameters import listing


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
        on_kvstore = value._kvstore_params["update_on_kvstore"]
        if len(contexts) == 1 and on_kvstore and not value._contains_sparse_weight:
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


def sparse_problems(
    where: str,
    value: TrainerSpec | mx.gluon.Trainer,
    parameters: Mapping[str, mx.gluon.Parameter],
    contexts: Sequence[Context],
) -> list[Problem]:
    """Check that a trainer can hold its row_sparse parameters, which MXNet keeps on one trainer's kvstore."""
    sparse = {name: p for name, p in parameters.items() if p._stype != "default"}
    messages = []
    if sparse and isinstance(value, mx.gluon.Trainer):
        config = value._kvstore_params
        if config["kvstore"] is None or config["update_on_kvstore"] is False:
            messages.append("MXNet moves them on a kvstore; leave kvstore= and update_on_kvstore= out")
    elif sparse:
        if any(p._trainer is not None for p in sparse.values()):
            messages.append("MXNet binds them to one trainer, and they have one; give that as trainers=")
        if value.clip_norm is not None and len(contexts) > 1:
            messages.append("their kvstore adds up and uses gradients at once; leave clip_norm out")
    held = listing(list(sparse))
    return [Problem("trainer", f"{where}: holds row_sparse parameters, {held}: {text}") for text in messages]


def unread_problems(parameters: Mapping[str, mx.gluon.Parameter], moved: Iterable[str]) -> list[Problem]:
    """Check that each row_sparse parameter has a trainer, without which MXNet cannot read it."""
    unread = [n for n, p in parameters.items() if p._stype != "default" and p._trainer is None]
    unread = [name for name in unread if name not in set(moved)]
    way_out = "leave them to a trainer, and set their lr_mult to 0"
    message = (
        f"frozen: MXNet reads row_sparse parameters through a trainer only: {listing(unread)}; {way_out}"
    )
    return [Problem("trainer", message)] if unread else []
