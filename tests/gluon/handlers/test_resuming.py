"""A resumed fit with all handlers that change batches, losses and gradients ends bit for bit the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import EarlyStoppingHandler, Every, TrainerSpec
from multifit.gluon.handlers import (
    GradientAccumulation,
    GradientNoise,
    LabelSmoothing,
    MixUp,
    SkipNonFinite,
    TerminateOnNaN,
    WeightAveraging,
)
from multifit.handlers import CheckpointHandler

from .training import DATA, fit, values


class Stop:
    """Stops after a number of batches, as a user would."""

    priority = 10.0

    def __init__(self, step: int) -> None:
        self.step = step

    def batch_end(self, estimator: Any) -> None:
        if estimator.state.step == self.step:
            estimator.state.stop("enough")
            estimator.state.interrupted = True


def handlers(kind: str, folder: Path) -> list[Any]:
    return [
        MixUp(random=3),
        LabelSmoothing(),
        GradientNoise(),
        SkipNonFinite(),
        GradientAccumulation(3),
        TerminateOnNaN(),
        WeightAveraging(kind, decay=0.7, apply=False),
        EarlyStoppingHandler("val_loss", patience=9, restore_best=True),
        CheckpointHandler(folder, every=Every(1, "batch"), seed=5, keep_last=1),
    ]


@pytest.mark.parametrize(("kind", "stops"), [("ema", [2, 5]), ("swa", [4, 6])])
def test_a_resumed_fit_with_handlers_is_bit_for_bit_the_same(
    tmp_path: Path, kind: str, stops: list[int]
) -> None:
    """Stopped after the last batch of an epoch, before its validation (4), and within epochs."""

    def run(name: str, *more: Any, **options: Any) -> tuple[Any, WeightAveraging]:
        usual = handlers(kind, tmp_path / name)
        trainers = TrainerSpec(".*", "adam", {"learning_rate": 0.1}, clip_norm=1.0)
        options = {"norm": True, "val_data": DATA, "trainers": trainers, **options}
        return fit([*usual, *more], **options), usual[6]

    whole, averaging = run("whole")
    for step in stops:
        name = f"stopped at {step}"
        run(name, Stop(step))
        resumed, other = run(name, resume=tmp_path / name)
        assert resumed.state.step == whole.state.step == 8
        for one, two in zip(values(whole), values(resumed)):
            np.testing.assert_array_equal(one, two)
        assert averaging.averages.keys() == other.averages.keys()
        for key, average in averaging.averages.items():
            np.testing.assert_array_equal(average.asnumpy(), other.averages[key].asnumpy())
        assert resumed.history.to_json() == whole.history.to_json()
