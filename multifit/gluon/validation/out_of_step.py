"""Find what cannot be used with trainers that do not update after every batch."""

from __future__ import annotations

from typing import Iterator, Sequence

from ...errors import Problem, quoted
from ...events import BEFORE_UPDATE
from ...stages import TRAIN
from ..engine import Engine
from ..execution.result import StepResult


def out_of_step(engine: Engine) -> list[Problem]:
    """Return the handlers that hold back updates or read gradients, while trainers have their own rhythm."""
    return [Problem("trainer", message) for message in _messages(engine)]


def shared_out_of_step(engine: Engine, results: Sequence[StepResult]) -> list[Problem]:
    """Return a problem if tasks' gradients are compared, but their trainers add up those of other batches.

    `results` are those of first batches.
    """
    trainers = engine.trainers.get()
    features = [each for result in results for each in result.features[:1]]
    if not engine.stages[TRAIN].separation.repeats or not trainers.rhythms:
        return []
    owners = sorted({trainers.owner(parameter) for each in features for parameter in each.parameters})
    rhythms = {trainers.rhythms.get(name) for name in owners}
    if len(rhythms) < 2 or not any(rhythm and rhythm.accumulate for rhythm in rhythms):
        return []
    return [
        Problem(
            "trainer",
            f"balance: the trainers {quoted(owners)} update what tasks share, but do not add up the "
            "gradients of the same batches, so these gradients cannot be compared; give the trainers the "
            'same every= and accumulate=, or compare on="features"',
        )
    ]


def _messages(engine: Engine) -> Iterator[str]:
    hooks = engine.hooks
    for name, rhythm in engine.trainers.get().rhythms.items():
        if hooks.active("hold_update"):
            yield (
                f'trainers["{name}"]: updates every {rhythm.every} batches, but {hooks.names("hold_update")} '
                "holds back the updates of all trainers; leave out the handler, or every= (in place of "
                "GradientAccumulation, each TrainerSpec takes every= and accumulate=True)"
            )
        if rhythm.accumulate and hooks.active(BEFORE_UPDATE):
            yield (
                f'trainers["{name}"]: adds up the gradients of {rhythm.every} batches, but '
                f"{hooks.names(BEFORE_UPDATE)} sees those of each batch before its update; leave "
                "accumulate=True out, or implement change_gradients in place of batch_end"
            )
