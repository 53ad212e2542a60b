"""``Together``: a batch of each loader in one update, as a hand-written loop that adds up the losses."""

from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, SpecError, TaskSpec
from multifit.balance import Sum, UPGrad
from multifit.engines.splitter import TaskSplitter
from multifit.gluon.data.arrays import to_numpy
from multifit.gluon.data.splitter import BatchSplitter
from multifit.sampling import RoundRobin, Together
from tests.common.compare import assert_same_parameters, twins
from tests.common.grids import pairwise, two_settings
from tests.common.hand_loop import trainer_of
from tests.common.nets import hybridized, two_heads
from tests.common.specs import CE, L2, two_head_spec

from .runs import MISSING, MOVING, at_once, by_hand, estimator_of, fit, parts

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

TOGETHER = {"sampling": Together()}


def spec_of(**changes: Any) -> TaskSpec:
    """Return the spec of two heads whose labels may be missing."""
    return two_head_spec(**{"labels": MISSING, **changes})


def masked(data: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Give the batches of one loader a slot that says what is present."""
    return {**data, "size": [(x, y, np.ones(len(x), "float32")) for x, y in data["size"]]}


CASES: dict[str, tuple[TaskSpec, Any]] = {
    "numpy": (spec_of(), dict),
    "numpy and NDArrays": (
        spec_of(),
        lambda data: {**data, "size": [tuple(map(mx.nd.array, batch)) for batch in data["size"]]},
    ),
    "a slot that says what is present": (
        spec_of(labels=[MISSING[0], LabelSpec("size", missing="known"), "known"], unused=["known"]), masked
    ),
}  # fmt: skip


@pairwise("case", CASES)
def test_batches_are_joined_and_losses_add_up(devices: Any, hybrid: bool, case: str) -> None:
    spec, changed = CASES[case]
    data = parts()
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    by_hand(hand, at_once(data, 4))
    estimator = estimator_of(hybridized(net, hybrid), spec, context=devices)
    history = fit(estimator, changed(data), **TOGETHER)
    assert_same_parameters(net, hand)
    assert history["train_batches_digit"] == [4.0] and history["train_passes_digit"] == [4 / 3]
    assert "Together" in str(estimator.plan)


def joined_batch(spec: TaskSpec, parts: Any) -> Any:
    return TaskSplitter(BatchSplitter(spec, [mx.cpu()], "float32", print), {}).join(parts)


DTYPES = [("int32", "float32"), ("int32", "int64"), ("uint8", "int8"), ("float16", "float32"), ("bool",) * 2]


@pytest.mark.parametrize("one, two", [*DTYPES, *((two, one) for one, two in DTYPES)])  # either comes first
@pytest.mark.parametrize("kinds", ["numpy", "NDArrays", "both"])
def test_joined_arrays_hold_the_numbers_of_all(kinds: str, one: str, two: str) -> None:
    images = np.full((4, 2), 1 if "bool" in one + two else 100.75), np.full((3, 2), 1)
    parts = {task: {"image": image.astype(dtype)} for task, image, dtype in zip("uv", images, (one, two))}
    expected = np.concatenate([part["image"] for part in parts.values()])
    for task in {"numpy": "", "NDArrays": "uv", "both": "u"}[kinds]:
        image = parts[task]["image"]
        parts[task] = {"image": mx.nd.array(image, dtype=image.dtype)}
    joined, problems = joined_batch(spec_of(), parts)
    assert not problems
    np.testing.assert_array_equal(to_numpy(joined["image"]), expected)


def test_what_no_batch_has_stays_none() -> None:
    losses = {"out": LossSpec(CE, "out", "digit")}
    spec = TaskSpec(
        inputs=["extra", "image"], outputs=["out"], labels=MISSING, losses=losses, unused=["size"]
    )
    image, digit = parts()["digit"][0]
    size = np.zeros((3, 1), "float32")
    batches = {"digit": {"image": image, "digit": digit}, "size": {"image": image[:3], "size": size}}
    joined, problems = joined_batch(spec, {name: {"extra": None, **own} for name, own in batches.items()})
    assert not problems and joined["extra"] is None and len(joined["image"]) == 11
    assert joined["digit"][8:].tolist() == [-1] * 3 and np.isnan(joined["size"][:8]).all()


def test_the_shortest_ends_the_epoch() -> None:
    estimator = estimator_of(spec=spec_of())
    history = fit(estimator, parts(), parts(), sampling=Together("shortest"))
    assert history["train_batches_size"] == [3.0] and estimator.state.step == 3
    assert history["val_digit"][0] > 0 and history["val_size"][0] > 0


class Pair(gluon.HybridBlock):
    """Two images through one body, each to a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Dense(8, activation="relu")
        self.digit, self.size = nn.Dense(3), nn.Dense(1)

    def hybrid_forward(self, F: Any, one: Any, other: Any) -> Any:
        return self.digit(self.body(one)), self.size(self.body(other))


def pair_spec() -> TaskSpec:
    one, other = (
        TaskSpec(outputs="out", labels=["y"], losses={"out": LossSpec(loss, "out", "y")}, inputs=["image"])
        for loss in (CE, L2)
    )
    return TaskSpec.combine(digit=one, size=other)


@two_settings
def test_parts_with_inputs_of_their_own_stand_side_by_side(devices: Any, hybrid: bool) -> None:
    data = parts(digits=16, sizes=24)
    hand, net = twins(Pair, data["digit"][0][0], data["size"][0][0])
    trainer = trainer_of(hand, "sgd", MOVING)
    for (_, (image, digit)), (_, (other, size)) in at_once(data, 3):
        with mx.autograd.record():
            digits, sizes = hand(mx.nd.array(image), mx.nd.array(other))
            loss = CE(digits, mx.nd.array(digit)).mean() + L2(sizes, mx.nd.array(size)).mean()
        loss.backward()
        trainer.step(1)
    fit(estimator_of(hybridized(net, hybrid), pair_spec(), context=devices), data, **TOGETHER)
    assert_same_parameters(net, hand)


# ---- what is refused


def changed(name: str, change: Any) -> dict[str, Any]:
    """Return the data of both tasks with other batches of one of them."""
    return {**EQUAL, name: [change(*batch) for batch in EQUAL[name]]}


EQUAL = parts(digits=16, sizes=16)
NAN = [LabelSpec(name, missing="nan") for name in ("digit", "size")]
UPGRAD = UPGrad(on="features")
REFUSED: dict[str, tuple[TaskSpec, Any, dict[str, Any], list[str]]] = {
    "labels that are not declared as missing": (
        two_head_spec(), EQUAL, {},
        ['labels["digit"]: with Together, samples of "size" lack it; declare LabelSpec("digit", mi',
         'labels["size"]: with Together, samples of "digit" lack it']),
    "another shape": (
        spec_of(), changed("size", lambda image, size: (image[:, :5], size)), {},
        ['the slot "image" cannot be joined in one batch: (8, 6) float32 of "digit", (8, 5) fl',
         "let the loaders take turns, as with Proportional()"]),
    "whole numbers, which are never NaN": (
        spec_of(labels=NAN), changed("digit", lambda image, digit: (image, digit.astype("int32"))), {},
        ['the label "digit" is int32, which has no NaN']),
    "samples along another axis": (spec_of(), EQUAL, {"batch_axis": 1}, ["need samples along axis 0"]),
    "all inputs in one loader": (
        pair_spec(), changed("size", lambda image, y: {"image": image, "y": y, "digit/image": image}), {},
        ["Together joins batches that each have all inputs"]),
    "a label in no loader": (
        pair_spec(), {"digit": EQUAL["digit"]}, {},
        ['losses["size/out"]: no loader has "size/y", which it takes']),
    "validation data without all inputs": (
        pair_spec(), EQUAL, {"val": EQUAL},
        ['val_data["digit"] has no "size/image", which the net is called']),
    "other numbers of samples": (
        pair_spec(), changed("size", lambda image, y: (image[:4], y[:4])), {},
        ["different numbers of samples along axis 0"]),
    "gradients of turns": (
        two_head_spec(), EQUAL, {"balance": UPGrad(), "sampling": RoundRobin()},
        ["balance: UPGrad compares the gradients of tasks in one batch, but with RoundRobin each b"]),
    "features of tasks without a common sample": (
        spec_of(), EQUAL, {"balance": UPGRAD},
        ["balance: UPGrad compares gradients of features, but with Together no sample has labels of both "
         '"digit" and "size", so that theirs never meet; give UPGrad(on="parameters")']),
    "each pair of such tasks": (  # groups of losses; a loss of weight 0 belongs to none
        spec_of(losses={
            "kind": LossSpec(CE, "digit", "digit"), "again": LossSpec(CE, "digit", "digit"),
            "size": LossSpec(L2, "size", "size"), "idle": LossSpec(L2, "size", "size", weight=0)}),
        {"kind": EQUAL["digit"], "size": EQUAL["size"]},
        {"balance": UPGrad(on="features", tasks={"all kinds": ["kind"], "sizes": ["size"]})},
        ['labels of both "all kinds" and "sizes",', 'labels of both "again" and "sizes",']),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_joined_is_named(name: str) -> None:
    spec, data, options, messages = REFUSED[name]
    of_fit = {**TOGETHER, **{key: options[key] for key in options.keys() & {"batch_axis", "val", "sampling"}}}
    of_estimator = {key: options[key] for key in options.keys() - of_fit.keys()}
    net = two_heads("hybridized") if "image" in spec.inputs else hybridized(Pair())
    estimator = estimator_of(net, spec, **of_estimator)
    with pytest.raises((SpecError, DataError)) as caught:
        fit(estimator, data, **of_fit)
    assert estimator.state.step == 0
    assert all(message in str(caught.value) for message in messages), caught.value
    assert "balance" not in options or len(caught.value.problems) == len(messages)


# ---- balancing


def balanced(spec: TaskSpec, data: Any, method: Any, **options: Any) -> Any:
    mx.random.seed(3)
    net = two_heads("hybridized") if "image" in spec.inputs else hybridized(Pair())
    return fit(estimator_of(net, spec, balance=method, **options), data, epochs=2, **TOGETHER)


def test_gradients_are_compared_as_those_of_whole_batches() -> None:
    data, joined = parts(), []
    for i, (other, size) in enumerate(data["size"]):
        image, digit = data["digit"][i % 3]
        filled = np.full(len(other), -1, "float32"), np.full((len(image), 1), np.nan, "float32")
        labels = [[digit, filled[0]], [filled[1], size]]
        joined.append((np.concatenate([image, other]), *map(np.concatenate, labels)))
    histories = []
    nets = twins(lambda: two_heads("hybridized"), data["digit"][0][0])
    for net, loader, sampling in zip(nets, (data, joined), (Together(), None)):
        estimator = estimator_of(net, spec_of(), balance=Sum(on="parameters"))
        history = fit(estimator, loader, epochs=2, sampling=sampling)
        histories.append({name: history[name] for name in history if "grad" in name or "cosine" in name})
    assert len(histories[0]) == 3 and np.isfinite([*histories[0].values()]).all()
    for name, values in histories[0].items():
        assert values == pytest.approx(histories[1][name], rel=1e-4), name


def test_features_are_compared_if_a_loader_has_the_labels_of_both_tasks() -> None:
    """The other loader adds samples with one label alone."""
    image, size = parts()["size"][0]
    both = [{"image": image, "size": size, "digit": np.zeros(len(image), "float32")}] * 4
    history = balanced(spec_of(), {"both": both, "size": parts()["size"]}, UPGRAD)
    assert np.isfinite(history["train_cosine_digit_size"]).all()


def test_features_are_compared_side_by_side() -> None:
    """The tasks share no array but the body's parameters, which then are what features are."""
    one, other = (balanced(pair_spec(), EQUAL, Sum(on=on)) for on in ("features", "parameters"))
    for figure in ("train_cosine_digit/out_size/out", "train_gradnorm_size/out"):
        assert one[figure] == pytest.approx(other[figure], rel=1e-4)
