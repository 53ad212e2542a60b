"""Optimizers, handlers and engines with a loader for each task."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest

import multifit
from multifit import (
    CheckpointHandler,
    EarlyStoppingHandler,
    Every,
    Freeze,
    LabelSmoothing,
    LogFile,
    LoggingHandler,
    LogTo,
    MetricSpec,
    MixUp,
    MultiEstimator,
    PlateauHandler,
    ProgressBar,
    Prune,
    StoppingHandler,
    TensorBoardHandler,
    TerminateOnNaN,
    TrainerSpec,
    ValidationHandler,
    handlers,
)
from multifit.balance import DWA, RLW, Uncertainty
from multifit.balance.protocol import measured_losses
from multifit.sampling import RoundRobin, Together
from tests.common.compare import assert_same_parameters, twins
from tests.common.grids import ONE, TWO, pairwise
from tests.common.hand_loop import SILENT
from tests.common.handlers import handler
from tests.common.nets import TWO_HEADS, hybridized, two_heads
from tests.common.specs import CE, L2, two_head_spec

from .runs import MOVING, SGD, at_once, by_hand, in_turn, parts
from .test_together import MISSING

import mxnet as mx  # isort: skip

ADAM = {"learning_rate": 0.05, "wd": 0.1}


def smoothed(output: Any, label: Any) -> Any:
    return 0.8 * CE(output, label) - 0.2 * mx.nd.log_softmax(output).mean(axis=1)


@pairwise("case", ["adam", "accumulation", "smoothing"])
def test_it_is_that_of_a_hand_written_loop(devices: Any, hybrid: bool, case: str) -> None:
    data = parts(24, 24)
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    turns, losses, changing, accumulate = in_turn(data, 3), {"digit": CE, "size": L2}, [], 1
    optimizer, options = ("adam", ADAM) if case == "adam" else ("sgd", MOVING)
    if case == "accumulation":
        turns, accumulate = at_once(data, 3), 2
    if case == "smoothing":
        losses["digit"], changing = smoothed, [LabelSmoothing(0.2, "digit")]
    by_hand(hand, turns, losses, optimizer=optimizer, **options)
    trainer = TrainerSpec(".*", optimizer, options)
    net = hybridized(net, hybrid)
    estimator = MultiEstimator(net, two_head_spec(), trainer, devices, accumulate=accumulate)
    estimator.fit(data, epochs=1, event_handlers=[*SILENT, *changing], sampling=RoundRobin())
    assert_same_parameters(net, hand)


@pytest.mark.parametrize(("hybrid", "joined"), [(False, True), (True, False)], ids=["joined", "in turn"])
def test_mixup_leaves_batches_without_its_label_alone(hybrid: bool, joined: bool) -> None:
    mixup, mixed = MixUp("image", "digit", "digit", random=3), {}
    watch = handler(
        "Watch", batch_end=lambda estimator, batch: mixed.update({batch.name: mixup._permutations})
    )
    net = hybridized(two_heads("hybrid"), hybrid)
    spec = two_head_spec(labels=MISSING) if joined else two_head_spec()
    estimator = MultiEstimator(net, spec, SGD, initializer=mx.init.Xavier())
    sampling = Together() if joined else RoundRobin()
    history = estimator.fit(parts(), epochs=2, event_handlers=[*SILENT, mixup, watch], sampling=sampling)
    assert math.isfinite(history["train_loss"][-1])
    counts = {name: len(permutations) for name, permutations in mixed.items()}
    assert counts == ({"digit + size": 1} if joined else {"digit": 1, "size": 0})


@pytest.mark.parametrize(
    ("method", "hybrid", "weight"),
    [(DWA(), False, 1.0), (DWA(every=2), True, 1.0), (Uncertainty(), True, 0.5)],
    ids=["DWA", "DWA, every other batch", "Uncertainty"],
)
def test_methods_of_losses_work_with_turns(method: Any, hybrid: bool, weight: float) -> None:
    """The mean of a task's weight is that of its own turns."""
    net = hybridized(two_heads("hybrid"), hybrid)
    estimator = MultiEstimator(net, two_head_spec(), SGD, initializer=mx.init.Xavier(), balance=method)
    history = estimator.fit(parts(), epochs=2, event_handlers=SILENT, sampling=RoundRobin())
    for name in TWO_HEADS:
        assert history[f"train_weight_{name}"] == pytest.approx([weight, weight], abs=0.05)


def test_random_weights_are_those_of_a_tasks_own_turns() -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier(), balance=RLW())
    history = estimator.fit(parts(), epochs=1, event_handlers=SILENT, sampling=RoundRobin())
    ones, zeros = np.ones(2), np.zeros(2)
    drawn = [RLW().weights(measured_losses(np, 2, ones, zeros, step), {})[0] for step in range(8)]
    for turn, name in enumerate(TWO_HEADS):
        assert history[f"train_weight_{name}"] == pytest.approx([np.mean(drawn[turn::2], axis=0)[turn]])


NAMES = [name for name in handlers.__all__ if name[0].isupper()]
NAMES.remove("CutMix")  # mixes images; it is MixUp otherwise
MADE: dict[str, Callable[[Path], Any]] = {  # those that need arguments
    "CheckpointHandler": lambda folder: CheckpointHandler(folder, Every(1, "batch"), "train_size", seed=0),
    "EarlyStoppingHandler": lambda folder: EarlyStoppingHandler("train_size", patience=9, restore_best=True),
    "Freeze": lambda folder: Freeze("digit.*", until=2, unit="batch"),
    "LogFile": lambda folder: LogFile(folder / "log.txt"),
    "LogTo": lambda folder: LogTo(SimpleNamespace(log_figures=lambda *_: None), every=1),
    "LoggingHandler": lambda folder: LoggingHandler(1),
    "MixUp": lambda folder: MixUp("image", "digit", "digit"),
    "PlateauHandler": lambda folder: PlateauHandler("train_size"),
    "ProgressBar": lambda folder: ProgressBar(io.StringIO(), refresh=0.0, enabled=True),
    "Prune": lambda folder: Prune(optuna.trial.FixedTrial({}), "train_size"),
    "StoppingHandler": lambda folder: StoppingHandler(max_batch=5),
    "TensorBoardHandler": lambda folder: TensorBoardHandler(folder, every=1),
    "ValidationHandler": lambda folder: Every(1, "batch", ValidationHandler(parts())),
}


@pytest.mark.parametrize("name", NAMES)
def test_handlers_work_with_turns(tmp_path: Path, name: str) -> None:
    """Also where an epoch ends, or its figures are read, before a loader has had a turn."""
    hybrid = bool(NAMES.index(name) % 2)
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
        "error": MetricSpec(mx.metric.MAE(), "size", "size"),
    }
    net, spec = hybridized(two_heads("hybrid"), hybrid), two_head_spec(metrics=metrics)
    estimator = MultiEstimator(net, spec, SGD, TWO if hybrid else ONE, initializer=mx.init.Xavier())
    made = MADE[name](tmp_path) if name in MADE else getattr(multifit, name)()
    batches = 9 if name == "StoppingHandler" else 5
    history = estimator.fit(
        parts(16, 16), batches=batches, event_handlers=[*SILENT, made], sampling=RoundRobin()
    )
    assert estimator.state.step == 5 and history["train_batches_size"] == [2, 0]
    assert [math.isfinite(value) for value in history["train_digit"]] == [True, True]
    assert [math.isfinite(value) for value in history["train_error"]] == [True, False]


def test_a_loss_that_is_not_finite_ends_the_fit_in_its_turn() -> None:
    data = parts()
    data["size"][1][1][0] = np.inf
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
    estimator.fit(data, epochs=1, event_handlers=[*SILENT, TerminateOnNaN()], sampling=RoundRobin())
    assert estimator.state.stop_reason == "size is infinite (epoch 1, batch 4)"


def test_a_validation_handler_may_have_a_dict() -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
    whole = [(*batch, batch[1][:, None]) for batch in parts()["digit"]]
    history = estimator.fit(whole, epochs=1, event_handlers=[*SILENT, ValidationHandler(parts())])
    assert math.isfinite(history["val_accuracy"][0]) and math.isfinite(history["val_size"][0])
