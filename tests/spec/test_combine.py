"""Specs made of others: ``TaskSpec.combine``, one of several, and ``TaskSpec.only``, one of some tasks."""

import pickle
from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, SpecError, TaskSpec
from multifit.spec.combine import merged_order, restricted
from multifit.spec.terms import changed


def loss(*args: Any) -> float:
    return 0.0


def detection(**changes: Any) -> TaskSpec:
    fields: dict[str, Any] = {
        "inputs": ["image"],
        "outputs": ["scores", "boxes", ...],
        "labels": ["truth", "count"],
        "losses": {"box": LossSpec(loss, "boxes", "truth", weight=2.0, normalize_by="count")},
        "metrics": {"mse": MetricSpec("mse", outputs="boxes", labels="truth")},
        "unused": ["scores"],
    }
    return TaskSpec(**{**fields, **changes})


def segmentation(**changes: Any) -> TaskSpec:
    fields: dict[str, Any] = {
        "inputs": ["image", "scale"],
        "outputs": "mask",
        "labels": [LabelSpec("mask", dtype="float32", classes=3), "truth"],
        "losses": {"mask": loss},
        "metrics": {"mean": MetricSpec("loss", losses="mask")},
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
    assert spec.name == "detection + segmentation" and spec.evaluate is None


def test_shared_slots_stay_one_and_keep_their_details() -> None:
    first = segmentation(labels=[LabelSpec("mask", classes=3), "truth"])
    second = segmentation(labels=["mask", "truth"], inputs=["image"])
    for parts in ({"a": first, "b": second}, {"a": second, "b": first}):
        spec = TaskSpec.combine(shared=["image", "mask", "truth"], **parts)
        assert spec.labels == ("mask", "truth") and spec.label_specs["mask"].classes == 3
    label_and_input = segmentation(inputs=["image", "truth"], unused=[])
    spec = TaskSpec.combine(a=detection(), b=label_and_input, shared=["truth"])
    assert spec.slot_names == ("a/image", "b/image", "truth", "a/count", "b/mask")
    assert TaskSpec.combine(a=detection(), b=detection()).inputs == ("a/image", "b/image")
    assert TaskSpec.combine(only=detection(), shared="image").inputs == ("image",)


def test_returns_arguments_and_losses_without_function_keep_their_meaning() -> None:
    part = TaskSpec(
        outputs=["p", "own"], labels=["y"], inputs=["x"],
        losses={
            "parts": LossSpec(lambda y, p: (p, p), arguments=["y", "p"], returns=["s", "t"], minimize="t"),
            "own": LossSpec(),
        },
        metrics={
            "mean": MetricSpec("loss", losses=["parts.s"]),
            "turned": MetricSpec(lambda a, b: 0.0, arguments=["y", "p"], mode="min", transform=max),
        },
    )  # fmt: skip
    spec = TaskSpec.combine(q=part)
    assert args_of(spec, "q/parts") == args_of(spec, "q/turned") == ["labels.q/y", "outputs.q/p"]
    assert spec.terms[0].minimized == 1 and spec.terms[0].figures == ["q/parts", "q/parts.s", "q/parts.t"]
    assert args_of(spec, "q/own") == ["outputs.q/own"]
    assert spec.metric_terms[0].losses == ("q/parts.s",) and spec.metrics["q/turned"].mode == "min"


def test_a_normalizer_gets_the_slots_of_its_part() -> None:
    seen = []
    box = LossSpec(loss, "boxes", "truth", normalize_by=lambda slots: seen.append(dict(slots)))
    part = detection(losses={"box": box}, unused=["scores", "count"])
    spec = TaskSpec.combine(a=part, b=segmentation(), shared=["image"])
    by: Any = spec.losses["a/box"].normalize_by
    by({"image": 1, "a/truth": 2, "a/count": 3, "b/mask": 4, "b/truth": 5, "b/scale": 6})
    assert seen == [{"image": 1, "truth": 2, "count": 3}]


FOUND = TaskSpec(
    outputs=["ids", "boxes"], labels=["truth"], inputs=["image"], unused=["ids"],
    metrics={"map": MetricSpec("map", outputs="boxes", labels="truth")},
)  # fmt: skip


def test_evaluate_specs_are_combined_too() -> None:
    spec = TaskSpec.combine(a=detection(evaluate=FOUND), b=segmentation(), shared=["image", "scale"])
    assert spec.evaluate is not None
    assert spec.evaluate.outputs == (("a/ids", "a/boxes"), ("b/mask",))
    assert spec.evaluate.inputs == ("image", "scale")
    assert list(spec.evaluate.losses) == ["b/mask"]
    assert spec.evaluate.unused == ("outputs.a/ids", "labels.b/truth")


def denoising(**changes: Any) -> TaskSpec:
    """The loader yields the clean image first."""
    fields: dict[str, Any] = {"outputs": "image", "labels": ["clean"], "inputs": ["noisy"]}
    losses = {"image": LossSpec(loss, "image", "clean")}
    return TaskSpec(**{**fields, "losses": losses, "batch": ["clean", "noisy"], **changes})


BOTH = ["clean", "noisy"]
NUMBERED = {"batch": ["number", *BOTH], "unused": ["labels.number"]}
DEFAULT = {"batch": None}  # the inputs, then the labels
ORDERS = {
    "shared": ([{}, {}], BOTH, BOTH),
    "one of them shared": ([{}, {}], ["noisy"], ["a/clean", "b/clean", "noisy"]),
    "declared by one": ([DEFAULT, {}], ["noisy"], ["b/clean", "noisy", "a/clean"]),
    "declared by none": ([DEFAULT, DEFAULT], [], ["a/noisy", "b/noisy", "a/clean", "b/clean"]),
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

    def in_order(some: Sequence[str], whole: Sequence[str]) -> bool:
        return [slot for slot in whole if slot in some] == list(some)

    slots = "abc"
    every = [order for size in range(4) for order in permutations(slots, size)]
    for orders in product(every, repeat=pairs):
        merged = merged_order(dict(zip("xyz", orders)))
        agree = any(all(in_order(each, whole) for each in orders) for whole in permutations(slots))
        assert (merged is not None) == agree
        if merged is not None:
            assert sorted(merged) == sorted(set().union(*orders))
            assert all(in_order(each, merged) for each in orders)


OTHER_CLASSES = segmentation(labels=[LabelSpec("mask", classes=4), "truth"])
FAULTS: list[tuple[dict[str, Any], list[Any], str]] = [
    ({"a": denoising(), "b": denoising(batch=None), "c": segmentation(inputs=["noisy"])}, BOTH,
     'the slots that they share in different orders: a has "clean", "noisy"; b has "noisy", "clean"; give'),
    ({}, [], "combine: no part is given; name at least one: TaskSpec.combine(detection=spec)"),
    ({"a": detection(), "b": 3}, [], "combine: b is 3, which is not a TaskSpec"),
    ({"a": detection()}, ["imge"], 'shared: no part has a slot "imge" (did you mean "image"?); slots are'),
    ({"a": detection()}, [3], 'shared: no part has a slot "3"; slots are "image", "truth"'),
    ({"a": detection(forward=max)}, [],
     "combine: a has a forward= of its own, which cannot be combined; leave it out"),
    ({"a": detection(batch_fn=dict)}, [], "combine: a has a batch_fn= of its own"),
    ({"a": segmentation(), "b": OTHER_CLASSES}, ["mask"],
     'shared: the parts declare the label "mask" differently: LabelSpec('),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "shared", "text"), FAULTS)
def test_wrong_parts_are_an_error(parts: dict, shared: list, text: str) -> None:
    with pytest.raises(SpecError) as raised:
        TaskSpec.combine(shared=shared, **parts)
    assert text in str(raised.value)
    assert {problem.kind for problem in raised.value.problems} == {"spec"}


# ---- some of the tasks


def three(**changes: Any) -> TaskSpec:
    """Return a spec of three tasks: two share the output "box", each has a label of its own."""
    missable = [LabelSpec("box", missing="there"), "there", LabelSpec("size", missing="nan")]
    fields: dict[str, Any] = {
        "inputs": ["image", "scale"],
        "outputs": ["digit", "box", "spare", "size"],
        "labels": ["digit", *missable, "id"],
        "losses": {
            "digit": loss,
            "box": LossSpec(loss, "box", "box", returns=["sum", "far"], sample_weight="scale"),
            "size": LossSpec(loss, ["box", "size"], "size"),
        },
        "metrics": {
            "accuracy": MetricSpec("accuracy", "digit", "digit"),
            "far": MetricSpec("loss", losses="box.far"),
            "error": MetricSpec("mae", "box", "box"),
            "size_error": MetricSpec("mae", "size", "size"),
            "mixed": MetricSpec(max, ["digit", "size"], "digit"),
            "free": MetricSpec("mae", "spare", "id"),
        },
    }
    return TaskSpec(**{**fields, **changes})


ONLY: list[tuple[list[str], list[str], list[str]]] = [
    (["digit"], ["accuracy", "free"],
     ["outputs.box", "outputs.size", "labels.box", "labels.there", "labels.size"]),
    (["box"], ["far", "error", "free"], ["outputs.digit", "outputs.size", "labels.digit", "labels.size"]),
    (["size", "digit"], ["accuracy", "size_error", "mixed", "free"], ["labels.box", "labels.there"]),
    (["digit", "box", "size"], ["accuracy", "far", "error", "size_error", "mixed", "free"], []),
]  # fmt: skip


@pytest.mark.parametrize(("tasks", "metrics", "unused"), ONLY)
def test_what_stays_is_what_no_other_task_alone_has(tasks: Any, metrics: Any, unused: Any) -> None:
    """All else is unused: the constructor accepts the same declarations."""
    whole = three()
    spec = whole.only(*tasks)
    assert list(spec.losses) == [loss for loss in whole.losses if loss in tasks]
    assert [term.key for term in spec.terms] == list(spec.losses)
    assert list(spec.metrics) == [term.key for term in spec.metric_terms] == metrics
    assert (list(spec.unused), spec.outputs, spec.batch) == (unused, whole.outputs, whole.batch)
    assert spec.restricted and not whole.restricted and list(whole.losses) == ["digit", "box", "size"]
    missable = [name for name, label in spec.label_specs.items() if label.missing is not None]
    assert missable == [name for name in ("box", "size") if name in tasks]  # else it would be counted
    assert list(pickle.loads(pickle.dumps(spec.only(tasks[0]))).losses) == tasks[:1]
    fields = {name: getattr(spec, name) for name in ("inputs", "outputs", "losses", "metrics", "unused")}
    assert str(TaskSpec(labels=[spec.label_specs[name] for name in spec.labels], **fields)) == str(spec)


def test_evaluate_is_restricted_too() -> None:
    evaluate = TaskSpec(
        inputs=["image"], outputs=["digit", "box", "ids"], labels=["digit", "truth", "id"],
        losses={"digit": loss, "late": LossSpec(loss, "ids", "id")},
        metrics={
            "accuracy": MetricSpec("accuracy", "digit", "digit"), "found": MetricSpec("mae", "box", "truth")
        },
    )  # fmt: skip
    digit, box = three(evaluate=evaluate).only("digit"), three(evaluate=evaluate).only("box")
    assert [*digit.evaluation.losses, *digit.evaluation.metrics] == ["digit", "accuracy"]
    assert [*box.evaluation.losses, *box.evaluation.metrics] == ["found"]
    assert digit.evaluation.unused == ("outputs.box", "outputs.ids", "labels.truth", "labels.id")


def combined() -> TaskSpec:
    boxes = TaskSpec(
        inputs=["image"], outputs=["scores", "boxes"], labels=["target", "shared"],
        losses={"cls": LossSpec(loss, "scores", "target"), "box": LossSpec(loss, "boxes", "target")},
        metrics={
            "mean": MetricSpec("loss", losses="cls"), "of_b": MetricSpec("mae", "boxes", "shared")
        },
        evaluate=FOUND,
    )  # fmt: skip
    count = TaskSpec(
        inputs=["image"], outputs=["count"], labels=["shared"], metrics={"accuracy": "accuracy"},
        losses={"count": LossSpec(loss, "count", "shared")},
    )  # fmt: skip
    return TaskSpec.combine(boxes=boxes, count=count, shared=["image", "shared"])


PARTS: list[tuple[str, list[str], list[str], list[str]]] = [
    ("boxes", ["boxes/cls", "boxes/box"], ["boxes/mean", "boxes/of_b"], ["boxes/map"]),
    ("boxes/box", ["boxes/box"], ["boxes/of_b"], ["boxes/map"]),
    ("count", ["count/count"], ["count/accuracy"], ["count/accuracy"]),
]


@pytest.mark.parametrize(("task", "losses", "metrics", "evaluated"), PARTS)
def test_of_a_combined_spec_the_metrics_of_the_part_stay(task, losses, metrics, evaluated):
    spec = combined().only(task)
    assert (list(spec.losses), list(spec.metrics)) == (losses, metrics)
    assert list(spec.evaluation.metrics) == evaluated and "labels.shared" not in spec.unused
    assert list(spec.parts) == list(spec.evaluation.parts) == [task.partition("/")[0]]


def test_a_restricted_spec_can_be_a_part_and_groups_are_tasks_too() -> None:
    spec = TaskSpec.combine(a=three().only("digit"), b=three())
    assert spec.restricted and "outputs.a/box" in spec.unused
    assert list(spec.losses) == ["a/digit", "b/digit", "b/box", "b/size"]
    spec = restricted(three(), ["geometry"], {"geometry": ["box", "size"], "kind": ["digit"]})
    assert list(spec.losses) == ["box", "size"]


@pytest.mark.parametrize(
    ("spec", "tasks", "message"),
    [
        (three(), ["diggit"], "no task 'diggit' (did you mean \"digit\"?); tasks are \"digit\", \"box\", "),
        (three(), ["digit", ["box"]], "only: no task ['box']; tasks are"),
        (three(), [], 'only: no task is given; tasks are "digit", "box", "size"'),
        (combined(), ["cls"], 'tasks are "boxes/cls", "boxes/box", "count/count", "boxes", "count"'),
    ],
)  # fmt: skip
def test_tasks_that_there_are_not(spec: TaskSpec, tasks: list[Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec.only(*tasks)
    assert message in str(raised.value)
