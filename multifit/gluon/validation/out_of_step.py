"""Find what cannot be used with trainers that do not update after every batch."""

from __future__ import annotations

from typing import Iterator

from ...errors import Problem
from ...stages import TRAIN
from ..engine import Engine


def out_of_step(engine: Engine) -> list[Problem]:
    """Return what cannot be used while trainers accumulate gradients."""
    return [Problem("trainer", message) for message in _messages(engine)]


def _messages(engine: Engine) -> Iterator[str]:
    stage, trainers = engine.stages[TRAIN], engine.trainers.get()
    windows = {name: trainers.window(name) for name in trainers}
    for name, batches in windows.items():
        if batches == 1:
            continue
        adds = f'trainers["{name}"]: accumulates the gradients of {batches} batches'
        if stage.separation.repeats:
            yield (
                f"{adds}, but balance= compares the tasks' gradients of parameters, of one batch at a time; "
                'leave accumulate out, or compare on="features"'
            )
    for term in stage.spec.terms:
        different = {name: windows[name] for name in term.trainers or trainers}
        if not term.counts_samples and len(set(different.values())) > 1:
            by = "normalize_by" if term.spec.normalize_by is not None else "the samples that have its labels"
            numbers = ", ".join(f'{count} of "{name}"' for name, count in different.items())
            yield (
                f"{term.where}: is divided by {by}, in all batches of an update, but its trainers "
                f"accumulate different numbers of batches: {numbers}; let them accumulate alike, or bind the "
                "loss to one of them with trainers="
            )
