"""A run with a loader for each task resumes bit for bit, also in the middle of an epoch.

Here are loaders that together have all that must be restored; nightly/test_kill.py resumes more.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    MetricSpec,
    MultiEstimator,
    SpecError,
    StoppingHandler,
    TrainerSpec,
    batches,
)
from multifit.sampling import Proportional, Ratios, RoundRobin
from multifit.utils.seeding import seed_everything
from tests.api.resume_runs import At, Crash, Noisy, Numbered, unequal, values
from tests.common.data import Scaling
from tests.common.hand_loop import SILENT
from tests.common.nets import TWO_HEADS, hybridized, normed_heads
from tests.common.specs import two_head_spec

from .runs import MOVING, parts

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip


def shuffled(kind=gluon.data.ArrayDataset, loader=gluon.data.DataLoader, **options):
    """Loaders of 3 and 4 batches that shuffle."""
    data = {name: [np.concatenate(column) for column in zip(*part)] for name, part in parts().items()}
    options = {"batch_size": 8, "shuffle": True, **options}
    return {name: loader(kind(*columns), **options) for name, columns in data.items()}


class NoisyPart(Noisy):
    """An iterable that shuffles, and augments with all generators, of known length, without one label."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __iter__(self) -> Any:
        return ({"image": image, self.name: {"digit": digit, "size": size}[self.name]}
                for image, digit, size in super().__iter__())  # fmt: skip

    def __len__(self) -> int:
        return 5


class AugmentedPart(gluon.data.ArrayDataset):
    """Samples augmented with NumPy's generator, in this process or in a worker."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image + np.random.rand(), label


DATA: dict[str, Callable[[], Any]] = {
    "lists": parts,
    "loaders": shuffled,
    "loaders with rollover": lambda: shuffled(last_batch="rollover"),
    "loaders that augment": lambda: shuffled(AugmentedPart),
    "loaders with workers": lambda: shuffled(num_workers=1),
    "loaders that iterate in their own way": lambda: shuffled(loader=Scaling),
    "arrays": lambda: shuffled(lambda *columns: columns, lambda columns, **how: batches(*columns, **how)),
    "noisy": lambda: {name: NoisyPart(name) for name in TWO_HEADS},
    "worker that augments, with rollover, and noisy": lambda: {
        "digit": shuffled(AugmentedPart, last_batch="rollover", num_workers=1)["digit"],
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
    spec = two_head_spec(
        metrics={
            "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
            "own": MetricSpec(own_metric, "size", "size", mode="min"),
        }
    )
    net = hybridized(normed_heads(), data != "lists")
    estimator = MultiEstimator(net, spec, trainers, initializer=mx.init.Xavier())
    if "resume" in options:
        seed_everything(99)
    loaders = DATA[data]()
    handlers = [*SILENT, CheckpointHandler(folder, Every(3, "batch"), seed=7), *more]
    estimator.fit(loaders, parts(8, 8), epochs=2, event_handlers=handlers, sampling=WAYS[way], **options)
    return estimator


def fail(folder: Path, data: str, way: str, step: int, **options: Any) -> None:
    with pytest.raises(Exception) as caught:
        fit(folder, data, way, At(step), **options)
    assert isinstance(caught.value, Crash)


def own_metric(labels: Any, outputs: Any) -> float:
    return float(abs(labels - outputs).mean())


def end(estimator: Any) -> dict[str, Any]:
    history = estimator.history.to_json()
    return {**values(estimator), "history": history, "state": estimator.state.to_dict()}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("data", ["worker that augments, with rollover, and noisy", "arrays"])
def test_a_resumed_run_ends_bit_for_bit(tmp_path: Path, data: str) -> None:
    """It fails in the middle of both epochs."""
    assert_resumes(tmp_path, data, "proportional", [4, 14])


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
    before, Numbered.loaded = len(Numbered.loaded), []
    fit(tmp_path, "numbered", "round robin", resume=tmp_path)
    first_batches = 16
    # the two runs check the first batch of each loader; of the 16 batches all are loaded once
    batches = {"digit": [8, 8, 4, 8] * 2, "size": [8, 8, 8, 4] * 2}
    samples = sum(map(sum, batches.values()))
    assert before + len(Numbered.loaded) == samples + 2 * first_batches


def test_a_resumed_run_must_have_the_same_loaders(tmp_path: Path) -> None:
    fail(tmp_path, "lists", "round robin", 3)
    with pytest.raises(SpecError) as caught:
        fit(tmp_path, "lists", "proportional", resume=tmp_path)
    assert "loaders.sampling" in str(caught.value) and "RoundRobin" in str(caught.value)
