"""``fit({"digit": …, "size": …})``: as a hand-written loop that takes batches of several loaders in turn."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest

from multifit import Every, LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec, handlers
from multifit.balance import RLW
from multifit.balance.protocol import measured_losses
from multifit.engines.loaders import iterate
from multifit.sampling import Proportional, Together
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import ONE, TWO, pairwise, plain_or_hybrid
from tests.common.handlers import handler
from tests.common.nets import TWO_HEADS, hybridized, normed_heads, two_heads
from tests.common.specs import CE, L2, two_head_spec

from .runs import MISSING, at_once, by_hand, estimator_of, fit, in_turn, parts, whole

import mxnet as mx  # isort: skip


def square(output: Any, label: Any) -> Any:
    """A loss that cannot be traced."""
    return mx.nd.square(output - label).mean(axis=1)


def smoothed(output: Any, label: Any) -> Any:
    return 0.8 * CE(output, label) - 0.2 * mx.nd.log_softmax(output).mean(axis=1)


def losses(size: Any) -> dict[str, Any]:
    return {"losses": {"digit": CE, "size": size}}


def some_missing(data: dict[str, list[Any]]) -> dict[str, list[Any]]:
    size = data["size"]
    return {
        **data,
        "size": [size[0], (size[1][0], np.r_[size[1][1][:2], np.full((6, 1), np.nan)]), *size[2:]],
    }


def present(data: dict[str, list[Any]]) -> dict[str, list[Any]]:
    size = data["size"]
    return {**data, "size": [size[0], tuple(each[:2] for each in size[1]), *size[2:]]}


def named(data: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [{"x": x, "y": y, "what": name} for x, y in batches] for name, batches in data.items()}


EVEN = parts(24, 24)
ADAM = {"learning_rate": 0.05, "wd": 0.1}
NAN = ["digit", LabelSpec("size", missing="nan")]
USUAL: dict[str, Any] = {
    "data": EVEN, "epochs": 1, "make": lambda: two_heads("hybrid"), "spec": {}, "options": {}, "handlers": [],
    "fed": dict, "by hand": {}, "taken": dict, "updates": None, "figures": {},
}  # fmt: skip
# What differs: of the estimator, of its data ("fed"), of the loop by hand, and of its data ("taken").
CASES: dict[str, dict[str, Any]] = {
    "two epochs": {"data": parts(), "epochs": 2},
    "a loss of a user's own": {"spec": losses(square), "by hand": {"losses": {"size": square}}},
    "a weight that is a function": {
        "spec": losses(LossSpec(L2, weight=lambda state: 0.5)), "by hand": {"weights": {"size": 0.5}}
    },
    "adam": {
        "options": {"trainers": TrainerSpec(".*", "adam", ADAM)}, "by hand": {"optimizer": "adam", **ADAM}
    },
    "accumulated": {"options": {"accumulate": 2}, "updates": at_once(EVEN, 3)},
    "smoothed": {
        "handlers": [handlers.LabelSmoothing(0.2, "digit")], "by hand": {"losses": {"digit": smoothed}}
    },
    "running statistics": {"make": lambda: normed_heads(dropout=0.0), "devices": ONE},
    "missing labels": {
        "spec": {"labels": NAN}, "fed": some_missing, "taken": present,
        "figures": {"train_coverage_size": [pytest.approx(18 / 24)]},
    },
    "a batch_fn, which gets batches as they are": {
        "spec": {"batch_fn": lambda batch: {"image": batch["x"], batch["what"]: batch["y"]}}, "fed": named
    },
}  # fmt: skip


@pairwise("case", CASES)
def test_a_fit_is_the_hand_written_loop(devices: Any, hybrid: bool, case: str) -> None:
    how = {**USUAL, "devices": devices, **CASES[case]}
    data, epochs = how["data"], how["epochs"]
    hand, net = twins(how["make"], data["digit"][0][0])
    turns = max(map(len, data.values()))
    by_hand(hand, (how["updates"] or in_turn(how["taken"](data), turns)) * epochs, **how["by hand"])
    spec = two_head_spec(**how["spec"])
    estimator = estimator_of(hybridized(net, hybrid), spec, context=how["devices"], **how["options"])
    history = fit(estimator, how["fed"](data), None, *how["handlers"], epochs=epochs)
    assert_same_parameters(net, hand)
    assert {name: history[name] for name in how["figures"]} == how["figures"]


class InOrder(Proportional):
    """A sampling of a user's own: one loader after the other."""

    def updates(self, counts: Any, random: Any) -> list[Any]:
        return [(name,) for name, count in counts.items() for _ in range(count)]


def test_labels_that_all_loaders_have_count_in_all_of_them() -> None:
    image, digit, size = two_head_arrays(24).values()
    digits = in_batches([image[8:], digit[8:]])
    hand, net = twins(lambda: two_heads("hybrid"), image)
    both = [("digit", (image[:8], digit[:8])), ("size", (image[:8], size[:8]))]
    by_hand(hand, [both, *([("digit", batch)] for batch in digits)])
    data = {"labelled": [{"image": image[:8], "digit": digit[:8], "size": size[:8]}], "digit": digits}
    history = fit(estimator_of(net), data, sampling=InOrder())
    assert_same_parameters(net, hand)
    assert history["train_batches_labelled"] == [1.0]


@pytest.mark.parametrize("kind", ["tuples", "an iterator with names"])
def test_batches_of_a_combined_spec_have_the_order_or_the_names_of_their_part(kind: str) -> None:
    data = parts()
    fields: dict[str, Any] = {"outputs": "class", "labels": ["class"], "losses": {"class": CE}}
    digit = TaskSpec(inputs=["image"], batch=["class", "image"], **fields)
    size = TaskSpec(outputs="size", labels=["size"], losses={"size": L2}, inputs=["image"])
    spec = TaskSpec.combine(shared=["image"], digits=digit, sizes=size)
    image, digits = whole(data)["digit"]
    turned = {
        "digits": [(label, image) for image, label in data["digit"]]
        if kind == "tuples"
        else list(iterate(mx.io.NDArrayIter({"image": image}, {"class": digits}, batch_size=8))),
        "sizes": [{"image": image, "size": label} for image, label in data["size"]],
    }
    hand, net = twins(lambda: two_heads("hybrid"), image)
    by_hand(hand, in_turn(data, 4))
    history = fit(estimator_of(net, spec), turned, turned)
    assert_same_parameters(net, hand)
    assert history["val_digits/class"][0] > 0


@pytest.mark.parametrize("kind", ["plain", "hybrid", "hybridized"])
def test_what_a_batch_does_not_reach_does_not_move(kind: str) -> None:
    """And by default, an epoch takes each batch once."""
    moved: list[tuple[str, set[str]]] = []
    before: dict[str, Any] = {}
    taken: list[tuple[str, int]] = []

    def read(estimator: Any) -> dict[str, bytes]:
        return {name: p.list_data()[0].asnumpy().tobytes() for name, p in estimator.parameters.items()}

    def batch_begin(estimator: Any, batch: Any) -> None:
        before.update(read(estimator) if estimator.state.step else {})
        taken.append((batch.name, id(batch.batches[batch.name])))

    def batch_end(estimator: Any, batch: Any, pred: Any, label: Any, loss: Any) -> None:
        after = read(estimator)
        changed = {name.split(".")[0] for name in before if after[name] != before[name]}
        moved.append((batch.name, changed))
        (other,) = {"digit", "size"} - {batch.name}
        assert loss[other] == label[other] == [None] and loss[batch.name][0] is not None

    watch, data = handler("Watch", batch_begin=batch_begin, batch_end=batch_end), parts()
    fit(estimator_of(two_heads(kind)), data, None, watch, epochs=2, sampling=None)
    assert len(moved) == 14 and all(changed == {"body", name} for name, changed in moved[1:])
    each = sorted((name, id(batch)) for name in data for batch in data[name])
    assert sorted(taken[:7]) == sorted(taken[7:]) == each


@pytest.mark.parametrize(("hybrid", "joined"), [(False, True), (True, False)], ids=["joined", "in turn"])
def test_mixup_leaves_batches_without_its_label_alone(hybrid: bool, joined: bool) -> None:
    mixup, mixed = handlers.MixUp("image", "digit", "digit", random=3), {}

    def batch_end(estimator: Any, batch: Any) -> None:
        mixed[batch.name] = len(mixup._permutations)

    spec = two_head_spec(labels=MISSING) if joined else two_head_spec()
    options = {"sampling": Together()} if joined else {}
    estimator = estimator_of(hybridized(two_heads("hybrid"), hybrid), spec)
    history = fit(estimator, None, None, mixup, handler("Watch", batch_end=batch_end), epochs=2, **options)
    assert math.isfinite(history["train_loss"][-1])
    assert mixed == ({"digit + size": 1} if joined else {"digit": 1, "size": 0})


def test_random_weights_are_those_of_a_tasks_own_turns() -> None:
    history = fit(estimator_of(balance=RLW()))
    ones, zeros = np.ones(2), np.zeros(2)
    drawn = [RLW().weights(measured_losses(np, 2, ones, zeros, step), {})[0] for step in range(8)]
    for turn, name in enumerate(TWO_HEADS):
        assert history[f"train_weight_{name}"] == pytest.approx([np.mean(drawn[turn::2], axis=0)[turn]])


# ---- handlers

NAMES = [name for name in handlers.__all__ if name[0].isupper()]
NAMES.remove("CutMix")  # mixes images; it is MixUp otherwise
MADE: dict[str, Callable[[Path], Any]] = {  # those that need arguments
    "CheckpointHandler": lambda folder: handlers.CheckpointHandler(
        folder, Every(1, "batch"), "train_size", seed=0
    ),
    "EarlyStoppingHandler": lambda folder: handlers.EarlyStoppingHandler(
        "train_size", patience=9, restore_best=True
    ),
    "Freeze": lambda folder: handlers.Freeze("digit.*", until=2, unit="batch"),
    "LogFile": lambda folder: handlers.LogFile(folder / "log.txt"),
    "LogTo": lambda folder: handlers.LogTo(SimpleNamespace(log_figures=lambda *_: None), every=1),
    "LoggingHandler": lambda folder: handlers.LoggingHandler(1),
    "MixUp": lambda folder: handlers.MixUp("image", "digit", "digit"),
    "PlateauHandler": lambda folder: handlers.PlateauHandler("train_size"),
    "ProgressBar": lambda folder: handlers.ProgressBar(io.StringIO(), refresh=0.0, enabled=True),
    "Prune": lambda folder: handlers.Prune(optuna.trial.FixedTrial({}), "train_size"),
    "StoppingHandler": lambda folder: handlers.StoppingHandler(max_batch=5),
    "TensorBoardHandler": lambda folder: handlers.TensorBoardHandler(folder, every=1),
    "ValidationHandler": lambda folder: Every(1, "batch", handlers.ValidationHandler(parts())),
}


@plain_or_hybrid
def test_handlers_work_with_turns(tmp_path: Path, hybrid: bool) -> None:
    """Also where an epoch ends, or its figures are read, before a loader has had a turn."""
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
        "error": MetricSpec(mx.metric.MAE(), "size", "size"),
    }
    net = hybridized(two_heads("hybrid"), hybrid)
    estimator = estimator_of(net, two_head_spec(metrics=metrics), context=TWO if hybrid else ONE)
    made = [MADE[name](tmp_path) if name in MADE else getattr(handlers, name)() for name in NAMES]
    history = fit(estimator, parts(16, 16), None, *made, batches=9)
    assert estimator.state.step == 5 and history["train_batches_size"] == [2, 0]
    assert [math.isfinite(value) for value in history["train_digit"]] == [True, True]
    assert [math.isfinite(value) for value in history["train_error"]] == [True, False]


def test_a_loss_that_is_not_finite_ends_the_fit_in_its_turn() -> None:
    data, estimator = parts(), estimator_of()
    data["size"][1][1][0] = np.inf
    fit(estimator, data, None, handlers.TerminateOnNaN())
    assert estimator.state.stop_reason == "size is infinite (epoch 1, batch 4)"


def test_a_validation_handler_may_have_a_dict() -> None:
    both = [(*batch, batch[1][:, None]) for batch in parts()["digit"]]
    history = fit(estimator_of(), both, None, handlers.ValidationHandler(parts()), sampling=None)
    assert math.isfinite(history["val_accuracy"][0]) and math.isfinite(history["val_size"][0])
