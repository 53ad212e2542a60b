"""``Together``: a batch of each loader in one update, as a hand-written loop that adds up the losses."""

from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, MultiEstimator, SpecError, TaskSpec
from multifit.balance import DWA, Sum, UPGrad
from multifit.engines.splitter import TaskSplitter
from multifit.gluon.data.arrays import to_numpy
from multifit.gluon.data.splitter import BatchSplitter
from multifit.sampling import RoundRobin, Together
from tests.common.compare import assert_same_parameters, twins
from tests.common.grids import pairwise, plain_or_hybrid, two_settings
from tests.common.hand_loop import SILENT, trainer_of
from tests.common.nets import hybridized, two_heads
from tests.common.specs import CE, L2, two_head_spec

from .runs import MOVING, SGD, at_once, by_hand, parts

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

MISSING = [LabelSpec("digit", missing=-1), LabelSpec("size", missing="nan")]


@pairwise("kinds", ["numpy", "numpy and NDArrays"])
def test_batches_are_joined_and_losses_add_up(devices: Any, hybrid: bool, kinds: str) -> None:
    data = parts()
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    by_hand(hand, at_once(data, 4) * 2)
    if kinds != "numpy":
        data["size"] = [tuple(map(mx.nd.array, batch)) for batch in data["size"]]
    estimator = MultiEstimator(hybridized(net, hybrid), two_head_spec(labels=MISSING), SGD, devices)
    history = estimator.fit(data, epochs=2, event_handlers=SILENT, sampling=Together())
    assert_same_parameters(net, hand)
    assert history["train_batches_digit"] == [4.0] * 2
    assert history["train_passes_digit"] == pytest.approx([4 / 3] * 2)
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
    joined, problems = joined_batch(two_head_spec(labels=MISSING), parts)
    assert not problems
    np.testing.assert_array_equal(to_numpy(joined["image"]), expected)


def test_what_no_batch_has_stays_none() -> None:
    losses = {"out": LossSpec(CE, "out", "digit")}
    spec = TaskSpec(
        inputs=["extra", "image"], outputs=["out"], labels=[*MISSING], losses=losses, unused=["size"]
    )
    image, digit = parts()["digit"][0]
    size = np.zeros((3, 1), "float32")
    batches = {"digit": {"image": image, "digit": digit}, "size": {"image": image[:3], "size": size}}
    joined, problems = joined_batch(spec, {name: {"extra": None, **own} for name, own in batches.items()})
    assert not problems and joined["extra"] is None and len(joined["image"]) == 11
    assert joined["digit"][8:].tolist() == [-1] * 3 and np.isnan(joined["size"][:8]).all()


def test_the_shortest_ends_the_epoch() -> None:
    data = parts()
    estimator = MultiEstimator(two_heads(), two_head_spec(labels=MISSING), SGD, initializer=mx.init.Xavier())
    history = estimator.fit(data, data, epochs=1, event_handlers=SILENT, sampling=Together("shortest"))
    assert history["train_batches_size"] == [3.0] and estimator.state.step == 3
    assert history["val_digit"][0] > 0 and history["val_size"][0] > 0


def test_a_slot_may_say_what_is_present() -> None:
    data = parts(sizes=20)
    known = np.ones(8, "float32")
    data["size"] = [(image, size, known[: len(image)]) for image, size in data["size"]]
    labels = ["digit", LabelSpec("size", missing="known"), "known"]
    spec = two_head_spec(labels=[LabelSpec("digit", missing=-1), *labels[1:]], unused=["known"])
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    present = {name: [batch[:2] for batch in data[name]] for name in data}
    by_hand(hand, at_once(present, len(data["size"])))
    MultiEstimator(net, spec, SGD).fit(data, epochs=1, event_handlers=SILENT, sampling=Together())
    assert_same_parameters(net, hand)


@plain_or_hybrid
def test_methods_of_balancing_see_both_tasks(hybrid: bool) -> None:
    data = parts()
    net = hybridized(two_heads("hybrid"), hybrid)
    balance = UPGrad(on="parameters") if hybrid else DWA()
    estimator = MultiEstimator(
        net, two_head_spec(labels=MISSING), SGD, initializer=mx.init.Xavier(), balance=balance
    )
    history = estimator.fit(data, epochs=2, event_handlers=SILENT, sampling=Together())
    assert all(weight > 0 for name in ("digit", "size") for weight in history[f"train_weight_{name}"])


@pytest.mark.parametrize("engine", ["mxnet", "torch"])
def test_gradients_are_compared_as_those_of_whole_batches(engine: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    data, whole = parts(), []
    for i, (other, size) in enumerate(data["size"]):
        image, digit = data["digit"][i % 3]
        filled = np.full(len(other), -1, "float32"), np.full((len(image), 1), np.nan, "float32")
        labels = [[digit, filled[0]], [filled[1], size]]
        whole.append((np.concatenate([image, other]), *map(np.concatenate, labels)))
    spec, histories = two_head_spec(labels=MISSING), []
    nets = twins(lambda: two_heads("hybridized"), data["digit"][0][0])
    for net, loader, sampling in zip(nets, (data, whole), (Together(), None)):
        estimator = MultiEstimator(net, spec, SGD, engine=engine, balance=Sum(on="parameters"))
        history = estimator.fit(loader, epochs=2, event_handlers=SILENT, sampling=sampling)
        histories.append({name: history[name] for name in history if "grad" in name or "cosine" in name})
    assert len(histories[0]) == 3 and np.isfinite([*histories[0].values()]).all()
    for name, values in histories[0].items():
        assert values == pytest.approx(histories[1][name], rel=1e-4), name


class Pair(gluon.HybridBlock):
    """Two images through one body, each to a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Dense(8, activation="relu")
        self.digit, self.size = nn.Dense(3), nn.Dense(1)

    def hybrid_forward(self, F: Any, one: Any, other: Any) -> Any:
        return self.digit(self.body(one)), self.size(self.body(other))


def pair_spec() -> TaskSpec:
    digit = TaskSpec(outputs="out", labels=["y"], losses={"out": LossSpec(CE, "out", "y")}, inputs=["image"])
    size = TaskSpec(outputs="out", labels=["y"], losses={"out": LossSpec(L2, "out", "y")}, inputs=["image"])
    return TaskSpec.combine(digit=digit, size=size)


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
    estimator = MultiEstimator(hybridized(net, hybrid), pair_spec(), SGD, devices)
    estimator.fit(data, epochs=1, event_handlers=SILENT, sampling=Together())
    assert_same_parameters(net, hand)


def changed(name: str, change: Any) -> dict[str, Any]:
    """Return the data of both tasks with other batches of one of them."""
    data = parts(digits=16, sizes=16)
    return {**data, name: [change(*batch) for batch in data[name]]}


DECLARED, NAN = two_head_spec(labels=MISSING), [LabelSpec(name, missing="nan") for name in ("digit", "size")]
EQUAL = parts(digits=16, sizes=16)
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], list[str]]] = {
    "labels that are not declared as missing": (
        two_head_spec(), EQUAL, {},
        ['labels["digit"]: with Together, samples of "size" lack it; declare LabelSpec("digit", mi',
         'labels["size"]: with Together, samples of "digit" lack it']),
    "another shape": (
        DECLARED, changed("size", lambda image, size: (image[:, :5], size)), {},
        ['the slot "image" cannot be joined in one batch: (8, 6) float32 of "digit", (8, 5) fl',
         "let the loaders take turns, as with Proportional()"]),
    "whole numbers, which are never NaN": (
        two_head_spec(labels=NAN), changed("digit", lambda image, digit: (image, digit.astype("int32"))), {},
        ['the label "digit" is int32, which has no NaN']),
    "samples along another axis": (
        DECLARED, EQUAL, {"batch_axis": 1}, ["need samples along axis 0"]),
    "all inputs in one loader": (
        pair_spec(), changed("size", lambda image, y: {"image": image, "y": y, "digit/image": image}), {},
        ["Together joins batches that each have all inputs"]),
    "a label in no loader": (
        pair_spec(), {"digit": EQUAL["digit"]}, {},
        ['losses["size/out"]: no loader has "size/y", which it takes']),
    "validation data without all inputs": (
        pair_spec(), EQUAL, {"val_data": EQUAL},
        ['val_data["digit"] has no "size/image", which the net is called']),
    "other numbers of samples": (
        pair_spec(), changed("size", lambda image, y: (image[:4], y[:4])), {},
        ["different numbers of samples along axis 0"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_joined_is_named(name: str) -> None:
    spec, data, options, messages = REFUSED[name]
    net = two_heads("hybrid") if "image" in spec.inputs else Pair()
    estimator = MultiEstimator(net, spec, SGD, initializer=mx.init.Xavier())
    with pytest.raises((SpecError, DataError)) as caught:
        estimator.fit(data, epochs=1, event_handlers=SILENT, sampling=Together(), **options)
    assert estimator.state.step == 0
    assert all(message in str(caught.value) for message in messages), caught.value


def test_methods_of_gradients_need_it() -> None:
    estimator = MultiEstimator(two_heads("hybridized"), two_head_spec(), SGD, balance=UPGrad())
    message = "balance: UPGrad compares the gradients of tasks in one batch, but with RoundRobin each b"
    with pytest.raises(DataError, match=message):
        estimator.fit(parts(), epochs=1, sampling=RoundRobin())


def fit_together(spec: Any, data: Any, balance: Any, **options: Any) -> Any:
    net = hybridized(two_heads("hybrid") if "image" in spec.inputs else Pair())
    estimator = MultiEstimator(net, spec, SGD, initializer=mx.init.Xavier(), balance=balance, **options)
    try:
        return estimator.fit(data, epochs=1, event_handlers=SILENT, sampling=Together())
    except SpecError:
        assert estimator.state.step == 0
        raise


@pytest.mark.parametrize("engine", ["mxnet", "torch"])
@pytest.mark.parametrize("method", [Sum, UPGrad])
def test_features_of_tasks_without_a_common_sample_are_not_compared(method: Any, engine: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    spec = two_head_spec(labels=MISSING)
    message = (
        f"balance: {method.__name__} compares gradients of features, but with Together no sample has labels "
        f'of both "digit" and "size", so that theirs never meet; give {method.__name__}(on="parameters")'
    )
    with pytest.raises(SpecError) as caught:
        fit_together(spec, parts(), method(on="features"), engine=engine)
    assert [problem.message for problem in caught.value.problems] == [message]


def test_each_pair_of_tasks_that_a_loader_lacks_is_named() -> None:
    """Tasks are groups of losses here; a loss of weight 0 belongs to none."""
    digit, size = LossSpec(CE, "digit", "digit"), LossSpec(L2, "size", "size")
    idle = LossSpec(L2, "size", "size", weight=0)
    losses = {"kind": digit, "again": digit, "size": size, "idle": idle}
    spec = two_head_spec(labels=MISSING, losses=losses)
    method = UPGrad(on="features", tasks={"all kinds": ["kind"], "sizes": ["size"]})
    with pytest.raises(SpecError) as caught:
        fit_together(spec, {"kind": parts()["digit"], "size": parts()["size"]}, method)
    pairs = [problem.message.split("labels of both ")[1][:24] for problem in caught.value.problems]
    assert [pair.split(",")[0] for pair in pairs] == ['"all kinds" and "sizes"', '"again" and "sizes"']


def test_features_are_compared_if_a_loader_has_the_labels_of_both_tasks() -> None:
    """The other loader adds samples with one label alone."""
    data = parts()
    image, size = data["size"][0]
    both = [{"image": image, "size": size, "digit": np.zeros(len(image), "float32")}] * 4
    labelled = {"both": both, "size": data["size"]}
    history = fit_together(two_head_spec(labels=MISSING), labelled, UPGrad(on="features"))
    assert np.isfinite(history["train_cosine_digit_size"]).all()


def test_features_are_compared_side_by_side() -> None:
    """The tasks share no array but the body's parameters, which then are what features are."""
    histories = []
    for on in ("features", "parameters"):
        mx.random.seed(3)
        histories.append(fit_together(pair_spec(), parts(digits=16, sizes=16), Sum(on=on)))
    for figure in ("train_cosine_digit/out_size/out", "train_gradnorm_size/out"):
        assert histories[0][figure] == pytest.approx(histories[1][figure], rel=1e-4)
