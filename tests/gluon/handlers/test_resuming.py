"""Handlers with a state: a fit that is cut off and resumed ends bit for bit as one without a stop."""

from collections.abc import Callable
from math import gcd
from pathlib import Path
from typing import Any

import pytest

from multifit import CheckpointHandler, CutMix, EarlyStoppingHandler, Every, Freeze  # isort: skip
from multifit import GradientNoise, LabelSmoothing, MixUp, MultiEstimator, PlateauHandler  # isort: skip
from multifit import SkipNonFinite, StoppingHandler, TerminateOnNaN, TrainerSpec  # isort: skip
from multifit import ValidationHandler, WeightAveraging  # isort: skip
from tests.common.nets import mlp
from tests.common.resuming import assert_resumes_bit_for_bit

from .training import DATA, IMAGES, fit

ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.1}, clip_norm=1.0)
STOPPING = {"patience": 9, "restore_best": True}


def that_change_steps(kind: str) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        changing = [MixUp(random=3), LabelSmoothing(), GradientNoise(), SkipNonFinite(), TerminateOnNaN()]
        return [*changing, WeightAveraging(kind, decay=0.7), EarlyStoppingHandler("val_loss", **STOPPING)]

    return make


def that_watch() -> list[Any]:
    """Return handlers for which no epoch is good enough: they reduce, reduce again, and stop."""
    plateau = PlateauHandler("val_loss", 0.5, patience=1, cooldown=1, min_delta=10.0)
    early = EarlyStoppingHandler("train_loss", patience=3, min_delta=10.0)
    return [plateau, early, ValidationHandler(DATA, epoch_period=2), StoppingHandler(clock=float)]


# Handlers, options of the fit, and after which batches it is cut off, of four an epoch: within an epoch, or
# after its last batch and before its validation, or within a window.
ROWS: dict[str, tuple[Callable[[], list[Any]], dict[str, Any], tuple[int, ...]]] = {
    "changing steps, averages of updates": (that_change_steps("ema"), {"accumulate": 3, "norm": True}, (5,)),
    "changing steps, averages of epochs": (that_change_steps("swa"), {"accumulate": 3, "norm": True}, (4,)),
    "boxes by numpy's generator": (lambda: [CutMix()], {"images": True}, (3,)),
    "boxes by a seed": (lambda: [CutMix(random=3)], {"images": True}, (3,)),
    "frozen for an epoch": (lambda: [Freeze("[01].*", until=1)], {"norm": True}, (2, 4)),
    "frozen for batches": (
        lambda: [Freeze("[01].*", until=6, unit="batch"), Freeze("2.bias", until=1)],
        {"norm": True, "accumulate": 2}, (3, 6),
    ),
    "watching figures": (that_watch, {"epochs": 9, "val_data": None}, (9,)),
}  # fmt: skip


@pytest.mark.parametrize(("make", "options", "steps"), ROWS.values(), ids=ROWS)
def test_handlers_resume_bit_for_bit(make: Any, options: Any, steps: tuple[int, ...], tmp_path: Path) -> None:
    states: list[Any] = []

    def run(folder: Path, *more: Any, **resume: Any) -> MultiEstimator:
        handlers = [*make(), CheckpointHandler(folder, every=Every(gcd(*steps), "batch"), seed=5)]
        changes = {"val_data": DATA, "trainers": ADAM, **options, **resume}
        if changes.pop("images", False):
            changes.update(net=mlp(3, inputs=IMAGES[0][0][0].size), data=IMAGES, val_data=None)
        estimator = fit([*handlers, *more], **changes)
        states.append([repr(each.state_dict()) for each in handlers])
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, *steps)
    assert len(states) == 1 + len(steps) and all(state == states[0] for state in states)
