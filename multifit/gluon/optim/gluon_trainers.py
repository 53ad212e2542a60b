"""Check that a run can train with a user's own gluon.Trainer."""

from __future__ import annotations

from typing import Sequence

from ...errors import Problem
from ...protocols import Context
from ..compat import mx

STEP = mx.gluon.Trainer.step


def gluon_trainer_problems(
    where: str, trainer: mx.gluon.Trainer, contexts: Sequence[Context]
) -> list[Problem]:
    """Check that a gluon.Trainer fits the devices of the run, and the phases of a training step.

    A training step reduces the gradients of all trainers, then clips them, then updates parameters. So a
    trainer's own ``step`` is not called, and an override of it would be ignored; gradients are means over the
    batch, not sums. `where` is the trainer's name in messages.
    """
    messages = [*_kvstore_messages(trainer, len(contexts)), *_context_messages(trainer, contexts)]
    if getattr(trainer.step, "__func__", None) is not STEP:
        messages.append(
            f"{type(trainer).__name__} overrides step(), which fit does not call: it reduces gradients, "
            "clips them and updates by itself; give a TrainerSpec, with clip_norm= to clip, and a handler "
            "with change_gradients() for other changes"
        )
    if trainer._compression_params:
        messages.append(
            "compression_params= has a threshold for sums over a batch's samples, but gradients are their "
            "means here, which it would distort; leave it out"
        )
    return [Problem("trainer", f"{where}: {message}") for message in messages]


def _kvstore_messages(trainer: mx.gluon.Trainer, devices: int) -> list[str]:
    messages = []
    kvstore = trainer._kvstore_params["kvstore"]
    kind = kvstore.type if isinstance(kvstore, mx.kv.KVStore) else kvstore
    if isinstance(kind, str) and "dist" in kind:
        messages.append(
            f'kvstore="{kind}" adds up what each process has divided by its own samples; leave '
            'kvstore= out, and give MultiEstimator(world=multifit.connect("horovod" or "torch"))'
        )
    if devices > 1 and kvstore is None:
        messages.append(
            f"kvstore=None on {devices} devices never adds up gradients, so replicas "
            'would diverge; use kvstore="device", or a TrainerSpec'
        )
    on_kvstore = trainer._kvstore_params["update_on_kvstore"]
    if devices == 1 and on_kvstore and not trainer._contains_sparse_weight:
        messages.append(
            "update_on_kvstore=True on one device, where MXNet has no kvstore to update on; leave it out"
        )
    return messages


def _context_messages(trainer: mx.gluon.Trainer, contexts: Sequence[Context]) -> list[str]:
    if list(trainer._contexts or []) == list(contexts):
        return []
    built, run = (", ".join(map(str, devices or ["nowhere"])) for devices in (trainer._contexts, contexts))
    return [
        f"was built for {built}, but the run is on {run}; "
        "initialise the net there before building the gluon.Trainer, or give a TrainerSpec"
    ]
