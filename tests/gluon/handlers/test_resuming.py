"""A resumed fit with all handlers that change batches, losses and gradients ends bit for bit the same."""

from pathlib import Path
from typing import Any

import pytest

from multifit import EarlyStoppingHandler, Every, TrainerSpec
from multifit.gluon.handlers import (
    GradientNoise,
    LabelSmoothing,
    MixUp,
    SkipNonFinite,
    TerminateOnNaN,
    WeightAveraging,
)
from multifit.handlers import CheckpointHandler

from .training import DATA, On, assert_equal, fit


def stop_after(step: int) -> Any:
    """Return a handler that stops the fit after a number of batches, as a user would."""

    def batch_end(estimator: Any) -> None:
        if estimator.state.step == step:
            estimator.state.stop("enough")
            estimator.state.interrupted = True

    return On(batch_end=batch_end, priority=10.0)


@pytest.mark.parametrize(("kind", "stops"), [("ema", [2, 5]), ("swa", [4, 6])])
def test_a_resumed_fit_with_handlers_is_bit_for_bit_the_same(
    tmp_path: Path, kind: str, stops: list[int]
) -> None:
    """Stopped after the last batch of an epoch, before its validation (4), and within epochs."""

    def run(name: str, *more: Any, **options: Any) -> tuple[Any, WeightAveraging]:
        averaging = WeightAveraging(kind, decay=0.7, apply=False)
        handlers = [
            MixUp(random=3),
            LabelSmoothing(),
            GradientNoise(),
            SkipNonFinite(),
            TerminateOnNaN(),
            averaging,
            EarlyStoppingHandler("val_loss", patience=9, restore_best=True),
            CheckpointHandler(tmp_path / name, every=Every(1, "batch"), seed=5, keep_last=1),
        ]
        trainers = TrainerSpec(".*", "adam", {"learning_rate": 0.1}, clip_norm=1.0)
        options = {"norm": True, "val_data": DATA, "trainers": trainers, "accumulate": 3, **options}
        return fit([*handlers, *more], **options), averaging

    whole, averaging = run("whole")
    for step in stops:
        name = f"stopped at {step}"
        run(name, stop_after(step))
        resumed, other = run(name, resume=tmp_path / name)
        assert resumed.state.step == whole.state.step == 8
        assert_equal(resumed, whole)
        assert averaging.evaluated_parameters.keys() == other.evaluated_parameters.keys()
        assert_equal(
            *([a.asnumpy() for a in each.evaluated_parameters.values()] for each in (averaging, other))
        )
        assert resumed.history.to_json() == whole.history.to_json()
