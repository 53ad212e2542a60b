"""TaskSpec.combine: one spec of several."""

from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from multifit.spec.combine import merged_order
from multifit.spec.terms import changed

import mxnet as mx  # isort: skip
from mxnet import gluon

L2, CE = gluon.loss.L2Loss, gluon.loss.SoftmaxCrossEntropyLoss


def detection(**changes: Any) -> TaskSpec:
    fields: dict[str, Any] = {
        "inputs": ["image"],
        "outputs": ["scores", "boxes", ...],
        "labels": ["truth", "count"],
        "losses": {"box": LossSpec(L2(), "boxes", "truth", weight=2.0, normalize_by="count")},
        "metrics": {"mse": MetricSpec(mx.metric.MSE(), outputs="boxes", labels="truth")},
        "unused": ["scores"],
    }
    return TaskSpec(**{**fields, **changes})


def segmentation(**changes: Any) -> TaskSpec:
    fields: dict[str, Any] = {
        "inputs": ["image", "scale"],
        "outputs": "mask",
        "labels": [LabelSpec("mask", dtype="float32", classes=3), "truth"],
        "losses": {"mask": CE()},
        "metrics": {"mean": MetricSpec(mx.metric.Loss(), losses="mask")},
        "unused": ["labels.truth"],
    }
    return TaskSpec(**{**fields, **changes})


def args_of(spec: TaskSpec, key: str) -> list[str]:
    return next([str(ref) for ref in item.args] for item in spec.takers if item.key == key)


def test_names_get_the_parts_name_in_front() -> None:
    spec = TaskSpec.combine(detection=detection(), segmentation=segmentation(), shared=["image"])
    assert spec.inputs == ("image", "segmentation/scale")
    assert spec.outputs == (("detection/scores", "detection/boxes", ...), ("segmentation/mask",))
    assert spec.labels == ("detection/truth", "detection/count", "segmentation/mask", "segmentation/truth")
    assert spec.label_specs["segmentation/mask"].classes == 3
    assert list(spec.losses) == ["detection/box", "segmentation/mask"]
    assert args_of(spec, "detection/box") == ["outputs.detection/boxes", "labels.detection/truth"]
    assert spec.losses["detection/box"].weight == 2.0
    assert spec.losses["detection/box"].normalize_by == "detection/count"
    assert args_of(spec, "detection/mse") == ["outputs.detection/boxes", "labels.detection/truth"]
    assert spec.metric_terms[1].losses == ("segmentation/mask",)
    assert spec.unused == ("outputs.detection/scores", "labels.segmentation/truth")
    assert spec.name == "detection + segmentation"
    assert spec.evaluate is None


def test_shared_labels_stay_one_and_keep_their_details() -> None:
    first = segmentation(labels=[LabelSpec("mask", classes=3), "truth"])
    second = segmentation(labels=["mask", "truth"], inputs=["image"])
    for parts in ({"a": first, "b": second}, {"a": second, "b": first}):
        spec = TaskSpec.combine(shared=["image", "mask", "truth"], **parts)
        assert spec.labels == ("mask", "truth")
        assert spec.label_specs["mask"].classes == 3


def test_a_label_of_one_may_be_an_input_of_another() -> None:
    spec = TaskSpec.combine(
        a=detection(), b=segmentation(inputs=["image", "truth"], unused=[]), shared=["truth"]
    )
    assert spec.slot_names == ("a/image", "b/image", "truth", "a/count", "b/mask")


def test_without_shared_slots_everything_is_separate() -> None:
    spec = TaskSpec.combine(a=detection(), b=detection())
    assert spec.inputs == ("a/image", "b/image")
    assert TaskSpec.combine(only=detection(), shared="image").inputs == ("image",)


def test_returns_arguments_and_losses_without_function_keep_their_meaning() -> None:
    part = TaskSpec(
        outputs=["p", "own"], labels=["y"], inputs=["x"],
        losses={
            "parts": LossSpec(lambda y, p: (p, p), arguments=["y", "p"], returns=["s", "t"], minimize="t"),
            "own": LossSpec(),
        },
        metrics={
            "mean": MetricSpec(mx.metric.Loss(), losses=["parts.s"]),
            "turned": MetricSpec(lambda a, b: 0.0, arguments=["y", "p"], mode="min", transform=max),
        },
    )  # fmt: skip
    spec = TaskSpec.combine(q=part)
    assert args_of(spec, "q/parts") == ["labels.q/y", "outputs.q/p"]
    assert spec.terms[0].minimized == 1
    assert spec.terms[0].figures == ["q/parts", "q/parts.s", "q/parts.t"]
    assert args_of(spec, "q/own") == ["outputs.q/own"]
    assert spec.metric_terms[0].losses == ("q/parts.s",)
    assert args_of(spec, "q/turned") == ["labels.q/y", "outputs.q/p"]
    assert spec.metrics["q/turned"].mode == "min"


def test_a_normalizer_gets_the_slots_of_its_part() -> None:
    seen = []
    box = LossSpec(L2(), "boxes", "truth", normalize_by=lambda slots: seen.append(dict(slots)))
    part = detection(losses={"box": box}, unused=["scores", "count"])
    spec = TaskSpec.combine(a=part, b=segmentation(), shared=["image"])
    by: Any = spec.losses["a/box"].normalize_by
    by({"image": 1, "a/truth": 2, "a/count": 3, "b/mask": 4, "b/truth": 5, "b/scale": 6})
    assert seen == [{"image": 1, "truth": 2, "count": 3}]


def test_evaluate_specs_are_combined_too() -> None:
    evaluate = TaskSpec(
        outputs=["ids", "boxes"], labels=["truth"], inputs=["image"], unused=["ids"],
        metrics={"mse": MetricSpec(mx.metric.MSE(), outputs="boxes", labels="truth")},
    )  # fmt: skip
    spec = TaskSpec.combine(a=detection(evaluate=evaluate), b=segmentation(), shared=["image", "scale"])
    assert spec.evaluate is not None
    assert spec.evaluate.outputs == (("a/ids", "a/boxes"), ("b/mask",))
    assert spec.evaluate.inputs == ("image", "scale")
    assert list(spec.evaluate.losses) == ["b/mask"]
    assert spec.evaluate.unused == ("outputs.a/ids", "labels.b/truth")


def denoising(**changes: Any) -> TaskSpec:
    """The loader yields the clean image first."""
    fields: dict[str, Any] = {
        "outputs": "image",
        "labels": ["clean"],
        "inputs": ["noisy"],
        "losses": {"image": LossSpec(L2(), "image", "clean")},
        "batch": ["clean", "noisy"],
    }
    return TaskSpec(**{**fields, **changes})


BOTH = ["clean", "noisy"]
NUMBERED = {"batch": ["number", *BOTH], "unused": ["labels.number"]}
DEFAULT = {"batch": None}  # the inputs, then the labels
ORDERS = {
    "one part": ([{}], [], ["a/clean", "a/noisy"]),
    "shared": ([{}, {}], BOTH, BOTH),
    "one of them shared": ([{}, {}], ["noisy"], ["a/clean", "b/clean", "noisy"]),
    "declared by one": ([DEFAULT, {}], ["noisy"], ["b/clean", "noisy", "a/clean"]),
    "declared by none": ([DEFAULT, DEFAULT], [], ["a/noisy", "b/noisy", "a/clean", "b/clean"]),
    "a slot that nothing takes": ([NUMBERED, {}], BOTH, ["a/number", *BOTH]),
    "one of several parts": ([NUMBERED, NUMBERED], BOTH, ["a/number", "b/number", *BOTH]),
    "shared too": ([NUMBERED, {}, NUMBERED], ["number", *BOTH], ["number", *BOTH]),
}


@pytest.mark.parametrize(("parts", "shared", "order"), ORDERS.values(), ids=ORDERS)
def test_each_parts_slots_stay_in_the_order_of_its_batches(parts, shared, order):
    specs = {name: denoising(**changes) for name, changes in zip("abc", parts)}
    specs["a"] = changed(specs["a"], evaluate=specs["a"])
    spec = TaskSpec.combine(shared=shared, **specs)
    assert spec.evaluate is not None
    assert list(spec.batch) == list(spec.evaluate.batch) == order
    assert list(TaskSpec.combine(order, whole=spec).batch) == order


@pytest.mark.parametrize("pairs", [2, 3])
def test_orders_are_merged_unless_they_contradict_each_other(pairs: int) -> None:
    """Several orders agree if there is one of all slots that has each of them in it."""
    slots = "abc"
    every = [order for size in range(4) for order in permutations(slots, size)]
    for orders in product(every, repeat=pairs):
        given = dict(zip("xyz", orders))
        merged = merged_order(given)
        agree = any(all(in_order(each, whole) for each in orders) for whole in permutations(slots))
        assert (merged is not None) == agree
        if merged is not None:
            assert sorted(merged) == sorted(set().union(*orders))
            assert all(in_order(each, merged) for each in orders)


def in_order(some: Sequence[str], whole: Sequence[str]) -> bool:
    return [slot for slot in whole if slot in some] == list(some)


FAULTS = {
    "orders that contradict each other": (
        {"a": denoising(), "b": denoising(batch=None), "c": segmentation(inputs=["noisy"])},
        BOTH,
        'the slots that they share in different orders: a has "clean", "noisy"; b has "noisy", "clean"; give',
    ),
    "no part": ({}, [], "combine: no part is given; name at least one: TaskSpec.combine(detection=spec)"),
    "not a spec": ({"a": detection(), "b": 3}, [], "combine: b is 3, which is not a TaskSpec"),
    "unknown": (
        {"a": detection()},
        ["imge"],
        'shared: no part has a slot "imge" (did you mean "image"?); slots are',
    ),
    "not a name": ({"a": detection()}, [3], 'shared: no part has a slot "3"; slots are "image", "truth"'),
    "forward": (
        {"a": detection(forward=max)},
        [],
        "combine: a has a forward= of its own, which cannot be combined; leave it out",
    ),
    "batch_fn": ({"a": detection(batch_fn=dict)}, [], "combine: a has a batch_fn= of its own"),
    "labels that differ": (
        {"a": segmentation(), "b": segmentation(labels=[LabelSpec("mask", classes=4), "truth"])},
        ["mask"],
        'shared: the parts declare the label "mask" differently: LabelSpec(',
    ),
}


@pytest.mark.parametrize(("parts", "shared", "text"), FAULTS.values(), ids=FAULTS)
def test_wrong_parts_are_an_error(parts: dict, shared: list, text: str) -> None:
    with pytest.raises(SpecError) as raised:
        TaskSpec.combine(shared=shared, **parts)
    assert text in str(raised.value)
    assert {problem.kind for problem in raised.value.problems} == {"spec"}


class Both(gluon.HybridBlock):
    """Returns (scores, boxes, more) and mask."""

    def __init__(self) -> None:
        super().__init__()
        self.box, self.mask = gluon.nn.Dense(4, in_units=6), gluon.nn.Dense(3, in_units=6)

    def hybrid_forward(self, F: Any, image: Any, scale: Any) -> Any:
        boxes = self.box(image)
        return (F.sum(boxes, axis=1), boxes, boxes), self.mask(F.broadcast_mul(image, scale))


@pytest.mark.parametrize("hybridized", [False, True])
def test_a_combined_spec_trains(hybridized: bool) -> None:
    """Also where a part has one output, which the net returns as it is and not in a tuple of one."""
    spec = TaskSpec.combine(detection=detection(), segmentation=segmentation(), shared=["image"])
    net = Both()
    if hybridized:
        net.hybridize()
    ones = np.ones((8, 1), "float32")
    data = [(ones.repeat(6, 1), ones, ones.repeat(4, 1), ones[:, 0], ones[:, 0], ones)]
    estimator = MultiEstimator(net, spec)
    history = estimator.fit(data, data, epochs=2)
    box, mask = history["train_detection/box"], history["train_segmentation/mask"]
    assert np.isclose(history["train_loss"], 2 * np.array(box) + np.array(mask), rtol=1e-5).all()
    assert history["val_segmentation/mean"][1] < history["val_segmentation/mean"][0]
    assert "detection/boxes" in str(estimator.plan)
    assert estimator.predict(data)["segmentation/mask"].shape == (8, 3)
