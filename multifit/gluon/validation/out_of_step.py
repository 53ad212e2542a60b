"""Handlers that do not go together with trainers that move less often than after every batch."""

from __future__ import annotations

from typing import Iterator

from ...errors import Problem
from ...events import BEFORE_UPDATE
from ..engine import Engine


def out_of_step(engine: Engine) -> list[Problem]:
    """Return the handlers that count updates, or wait for gradients, which trainers do by themselves."""
    return [Problem("trainer", message) for message in _messages(engine)]


def _messages(engine: Engine) -> Iterator[str]:
    hooks = engine.hooks
    if hooks is None:
        return
    for name, rhythm in engine.trainers.get().rhythms.items():
        if hooks.active("hold_update"):
            yield (
                f'trainers["{name}"]: moves every {rhythm.every} batches, but {hooks.names("hold_update")} '
                "holds back the updates of all trainers; leave the handler out, and give each TrainerSpec "
                "its every=, with accumulate=True where gradients add up"
            )
        if rhythm.accumulate and hooks.active(BEFORE_UPDATE):
            yield (
                f'trainers["{name}"]: adds up the gradients of {rhythm.every} batches, but '
                f"{hooks.names(BEFORE_UPDATE)} sees those of each batch before its update; leave "
                "accumulate=True out, or implement change_gradients in place of batch_end"
            )
