"""TaskSpec.only: a spec of some of its tasks."""

import pickle
from typing import Any

import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, SpecError, TaskSpec
from multifit.spec.combine import restricted

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

CE, L2 = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss()


def three(**changes: Any) -> TaskSpec:
    """Return a spec of three tasks: two share the output "box", each has a label of its own."""
    fields: dict[str, Any] = {
        "inputs": ["image", "scale"],
        "outputs": ["digit", "box", "spare", "size"],
        "labels": [
            "digit",
            LabelSpec("box", missing="there"),
            "there",
            LabelSpec("size", missing="nan"),
            "id",
        ],
        "losses": {
            "digit": CE,
            "box": LossSpec(L2, "box", "box", returns=["sum", "far"], sample_weight="scale"),
            "size": LossSpec(L2, ["box", "size"], "size"),
        },
        "metrics": {
            "accuracy": MetricSpec("accuracy", "digit", "digit"),
            "far": MetricSpec(mx.metric.Loss(), losses="box.far"),
            "error": MetricSpec("mae", "box", "box"),
            "size_error": MetricSpec("mae", "size", "size"),
            "mixed": MetricSpec(max, ["digit", "size"], "digit"),
            "free": MetricSpec("mae", "spare", "id"),
        },
    }
    return TaskSpec(**{**fields, **changes})


@pytest.mark.parametrize(
    ("tasks", "metrics", "unused"),
    [
        (
            ["digit"],
            ["accuracy", "free"],
            ["outputs.box", "outputs.size", "labels.box", "labels.there", "labels.size"],
        ),
        (
            ["box"],
            ["far", "error", "free"],
            ["outputs.digit", "outputs.size", "labels.digit", "labels.size"],
        ),
        (["size", "digit"], ["accuracy", "size_error", "mixed", "free"], ["labels.box", "labels.there"]),
        (["digit", "box", "size"], ["accuracy", "far", "error", "size_error", "mixed", "free"], []),
    ],
)
def test_what_stays_is_what_no_other_task_alone_has(
    tasks: list[str], metrics: list[str], unused: list[str]
) -> None:
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


def test_what_is_left_can_be_declared_like_that() -> None:
    """All that is not taken is unused: the constructor accepts the same declarations."""
    spec = three().only("size")
    labels = [spec.label_specs[name] for name in spec.labels]
    again = TaskSpec(
        inputs=spec.inputs, outputs=spec.outputs, labels=labels, losses=spec.losses, metrics=spec.metrics,
        unused=spec.unused,
    )  # fmt: skip
    assert str(again) == str(spec)


def test_evaluate_is_restricted_too() -> None:
    evaluate = TaskSpec(
        inputs=["image"],
        outputs=["digit", "box", "ids"],
        labels=["digit", "truth", "id"],
        losses={"digit": CE, "late": LossSpec(L2, "ids", "id")},
        metrics={
            "accuracy": MetricSpec("accuracy", "digit", "digit"),
            "found": MetricSpec("mae", "box", "truth"),
        },
    )
    digit, box = three(evaluate=evaluate).only("digit"), three(evaluate=evaluate).only("box")
    assert [*digit.evaluation.losses, *digit.evaluation.metrics] == ["digit", "accuracy"]
    assert [*box.evaluation.losses, *box.evaluation.metrics] == ["found"]
    assert digit.evaluation.unused == ("outputs.box", "outputs.ids", "labels.truth", "labels.id")


def combined() -> TaskSpec:
    found = TaskSpec(
        inputs=["image"], outputs=["ids"], labels=["truth"], metrics={"map": MetricSpec(max, "ids", "truth")}
    )
    boxes = TaskSpec(
        inputs=["image"],
        outputs=["scores", "boxes"],
        labels=["target", "shared"],
        losses={"cls": LossSpec(CE, "scores", "target"), "box": LossSpec(L2, "boxes", "target")},
        metrics={
            "mean": MetricSpec(mx.metric.Loss(), losses="cls"),
            "of_b": MetricSpec("mae", "boxes", "shared"),
        },
        evaluate=found,
    )
    count = TaskSpec(
        inputs=["image"],
        outputs=["count"],
        labels=["shared"],
        losses={"count": LossSpec(CE, "count", "shared")},
        metrics={"accuracy": "accuracy"},
    )
    return TaskSpec.combine(boxes=boxes, count=count, shared=["image", "shared"])


@pytest.mark.parametrize(
    ("task", "losses", "metrics", "evaluated"),
    [
        ("boxes", ["boxes/cls", "boxes/box"], ["boxes/mean", "boxes/of_b"], ["boxes/map"]),
        ("boxes/box", ["boxes/box"], ["boxes/of_b"], ["boxes/map"]),
        ("count", ["count/count"], ["count/accuracy"], ["count/accuracy"]),
    ],
)
def test_of_a_combined_spec_the_metrics_of_the_part_stay(
    task: str, losses: list[str], metrics: list[str], evaluated: list[str]
) -> None:
    spec = combined().only(task)
    assert (list(spec.losses), list(spec.metrics)) == (losses, metrics)
    assert list(spec.evaluation.metrics) == evaluated and "labels.shared" not in spec.unused
    part = task.partition("/")[0]
    assert list(spec.parts) == list(spec.evaluation.parts) == [part]


def test_a_restricted_spec_can_be_a_part() -> None:
    spec = TaskSpec.combine(a=three().only("digit"), b=three())
    assert spec.restricted and "outputs.a/box" in spec.unused
    assert list(spec.losses) == ["a/digit", "b/digit", "b/box", "b/size"]


def test_groups_are_tasks_too() -> None:
    spec = restricted(three(), ["geometry"], {"geometry": ["box", "size"], "kind": ["digit"]})
    assert list(spec.losses) == ["box", "size"]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (
            ["diggit"],
            r'only: no task \'diggit\' \(did you mean "digit"\?\); tasks are "digit", "box", "size"',
        ),
        (["digit", ["box"]], r"only: no task \['box'\]; tasks are"),
        ([], r'only: no task is given; tasks are "digit", "box", "size"'),
    ],
)
def test_tasks_that_there_are_not(tasks: list[Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        three().only(*tasks)
    with pytest.raises(
        SpecError, match='tasks are "boxes/cls", "boxes/box", "count/count", "boxes", "count"'
    ):
        combined().only("cls")
