"""A resumed fit with all handlers that change batches, losses and gradients ends bit for bit the same."""

from pathlib import Path
from typing import Any

import pytest

from multifit import (
    EarlyStoppingHandler,
    Every,
    GradientNoise,
    LabelSmoothing,
    MixUp,
    SkipNonFinite,
    TerminateOnNaN,
    TrainerSpec,
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


@pytest.mark.parametrize(("kind", "step"), [("ema", 5), ("swa", 4)])
def test_a_resumed_fit_with_handlers_is_bit_for_bit_the_same(tmp_path: Path, kind: str, step: int) -> None:
    """Stopped after the last batch of an epoch, before its validation (4), and within an epoch."""

    def run(name: str, *more: Any, **options: Any) -> tuple[Any, WeightAveraging]:
        averaging = WeightAveraging(kind, decay=0.7, apply=False)
        checkpoints = CheckpointHandler(tmp_path / name, every=Every(1, "batch"), seed=5, keep_last=1)
        stopping = EarlyStoppingHandler("val_loss", patience=9, restore_best=True)
        handlers = [
            MixUp(random=3),
            LabelSmoothing(),
            GradientNoise(),
            SkipNonFinite(),
            TerminateOnNaN(),
            averaging,
        ]
        handlers += [stopping, checkpoints]
        trainers = TrainerSpec(".*", "adam", {"learning_rate": 0.1}, clip_norm=1.0)
        options = {"norm": True, "val_data": DATA, "trainers": trainers, "accumulate": 3, **options}
        return fit([*handlers, *more], **options), averaging

    whole, averaging = run("whole")
    run("stopped", stop_after(step))
    resumed, other = run("stopped", resume=tmp_path / "stopped")
    assert resumed.state.step == whole.state.step == 8
    assert_equal(resumed, whole)
    averages = [each.evaluated_parameters for each in (averaging, other)]
    assert averages[0].keys() == averages[1].keys()
    assert_equal(*([array.asnumpy() for array in each.values()] for each in averages))
    assert resumed.history.to_json() == whole.history.to_json()
