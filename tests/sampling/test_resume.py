"""A run with a loader for each task resumes bit for bit, also in the middle of an epoch.

Here are loaders that together have all that must be restored; nightly/test_kill.py resumes more.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from multifit import (
    CheckpointHandler,
    Every,
    MetricSpec,
    SpecError,
    StoppingHandler,
    TrainerSpec,
    batches,
)
from multifit.sampling import Proportional, Ratios, RoundRobin
from multifit.utils.seeding import seed_everything
from tests.api.resume_runs import At, Augmented, Crash, Noisy, Numbered, unequal, values
from tests.common.data import Scaling
from tests.common.nets import TWO_HEADS, hybridized, normed_heads
from tests.common.specs import two_head_spec

from .runs import MOVING, estimator_of, parts, whole
from .runs import fit as fitted

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip


def shuffled(kind=gluon.data.ArrayDataset, loader=gluon.data.DataLoader, **options):
    """Loaders of 3 and 4 batches that shuffle."""
    options = {"batch_size": 8, "shuffle": True, **options}
    return {name: loader(kind(*columns), **options) for name, columns in whole(parts()).items()}


class NoisyPart(Noisy):
    """An iterable that shuffles, and augments with all generators, of known length, without one label."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __iter__(self) -> Any:
        return ({"image": image, self.name: {"digit": digit, "size": size}[self.name]}
                for image, digit, size in super().__iter__())  # fmt: skip

    def __len__(self) -> int:
        return 5


DATA: dict[str, Callable[[], Any]] = {
    "lists": parts,
    "loaders": shuffled,
    "loaders with rollover": lambda: shuffled(last_batch="rollover"),
    "loaders that augment": lambda: shuffled(Augmented),
    "loaders with workers": lambda: shuffled(num_workers=1),
    "loaders that iterate in their own way": lambda: shuffled(loader=Scaling),
    "arrays": lambda: shuffled(lambda *columns: columns, lambda columns, **how: batches(*columns, **how)),
    "noisy": lambda: {name: NoisyPart(name) for name in TWO_HEADS},
    "worker that augments, with rollover, and noisy": lambda: {
        "digit": shuffled(Augmented, last_batch="rollover", num_workers=1)["digit"],
        "size": NoisyPart("size"),
    },
}
WAYS = {
    "proportional": Proportional(temperature=2, batches=9),
    "round robin": RoundRobin(),
    "ratios": Ratios(digit=5, size=1),
}


def fit(folder: Path, data: str, way: str, *more: Any, **options: Any) -> Any:
    seed_everything(0)
    trainers = {
        "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.02}),
        "heads": TrainerSpec("(digit|size).*", "sgd", MOVING),
    }
    accuracy = MetricSpec(mx.metric.Accuracy(), "digit", "digit")
    own = MetricSpec(own_metric, "size", "size", mode="min")
    spec = two_head_spec(metrics={"accuracy": accuracy, "own": own})
    estimator = estimator_of(hybridized(normed_heads(), data != "lists"), spec, trainers=trainers)
    if "resume" in options:
        seed_everything(99)
    saves = CheckpointHandler(folder, Every(3, "batch"), seed=7)
    fitted(estimator, DATA[data](), parts(8, 8), saves, *more, epochs=2, sampling=WAYS[way], **options)
    return estimator


def fail(folder: Path, data: str, way: str, step: int, **options: Any) -> None:
    with pytest.raises(Crash):
        fit(folder, data, way, At(step), **options)


def own_metric(labels: Any, outputs: Any) -> float:
    return float(abs(labels - outputs).mean())


def end(estimator: Any) -> dict[str, Any]:
    history = estimator.history.to_json()
    return {**values(estimator), "history": history, "state": estimator.state.to_dict()}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("data", "steps"), [("worker that augments, with rollover, and noisy", [14]), ("arrays", [4, 14])]
)
def test_a_resumed_run_ends_bit_for_bit(tmp_path: Path, data: str, steps: list[int]) -> None:
    """It fails in the middle of an epoch, or of both."""
    assert_resumes(tmp_path, data, "proportional", steps)


def assert_resumes(folder: Path, data: str, way: str, steps: Sequence[int]) -> None:
    """Check that a run that fails after each of some steps, and is resumed, ends as one that does not."""
    whole = fit(folder / "whole", data, way)
    resume: dict[str, Any] = {}
    for step in steps:
        fail(folder / "run", data, way, step, **resume)
        resume = {"resume": folder / "run"}
    assert unequal(end(fit(folder / "run", data, way, **resume)), end(whole)) == []


def test_a_run_that_is_finished_keeps_the_counts_of_its_loaders(tmp_path: Path) -> None:
    """It ended within an epoch, which ends again without a batch."""
    run = "lists", "round robin", StoppingHandler(max_batch=11)
    first = fit(tmp_path, *run)
    assert first.history["train_batches_digit"] == [4, 2]
    assert unequal(end(fit(tmp_path, *run, resume=tmp_path)), end(first)) == []


def test_a_resumed_run_loads_no_batch_again(tmp_path: Path) -> None:
    Numbered.loaded = []
    DATA["numbered"] = lambda: shuffled(Numbered)
    fail(tmp_path, "numbered", "round robin", 6)
    fit(tmp_path, "numbered", "round robin", resume=tmp_path)
    samples = 2 * (8 + 8 + 4 + 8) + 2 * (8 + 8 + 8 + 4)  # of two epochs
    first_batches = 2 * 16  # which both runs check
    assert len(Numbered.loaded) == samples + first_batches


def test_a_resumed_run_must_have_the_same_loaders(tmp_path: Path) -> None:
    fail(tmp_path, "lists", "round robin", 3)
    with pytest.raises(SpecError) as caught:
        fit(tmp_path, "lists", "proportional", resume=tmp_path)
    assert "loaders.sampling" in str(caught.value) and "RoundRobin" in str(caught.value)
