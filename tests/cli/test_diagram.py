"""The plan's diagram has a box for each name; losses and metrics stand beside what they take."""

import json
from dataclasses import replace
from typing import Any

import pytest

from multifit.cli.diagram import Box, Diagram, Task, diagrams
from multifit.spec.plan import Link, Plan, Row

from .runs import PLAN, STAGE


def drawn(plan: Plan) -> list[Diagram]:
    return diagrams(json.loads(json.dumps(plan.to_dict())))


def names(boxes: Any) -> list[str]:
    return [f"{box.kind} {box.name}" for box in boxes]


def named(task: Task) -> tuple[list[str], ...]:
    return tuple(map(names, task))


def test_every_name_has_a_box() -> None:
    (whole,) = drawn(PLAN)
    assert whole.title == "training, evaluating and predicting: batches of 8 on cpu(0), cpu(1)"
    assert names(whole.inputs) == ["input image"]
    assert names(whole.net) == ["trainer body", "trainer head", "frozen frozen"]
    assert [named(task) for task in whole.tasks] == [
        (["output digit"], ["loss digit"], ["label digit", "input image"]),
        (["output digit"], ["metric accuracy"], ["label digit"]),
        (["loss digit"], ["metric mean"], []),
        (["output spare"], [], []),
    ]


def test_boxes_describe_what_they_stand_for() -> None:
    (whole,) = drawn(PLAN)
    body, head, frozen = whole.net
    assert body.lines[0] == "2 parameters, 44 numbers" and "body.0.weight, body.0.bias" in body.lines[1]
    assert "clipped" in head.lines[1] and frozen.lines == ("1 parameter: frozen.weight",)
    loss, metric = whole.tasks[0].terms[0], whole.tasks[1].terms[0]
    call = "1 x CrossEntropy(outputs.digit, labels.digit) / image"
    assert loss.lines == (call, "digit.sum: minimised") and metric.lines[1] == "top1, top5"
    assert whole.tasks[0].labels[1] == Box("input", "image", ("(8, 4) float32", "normalizes"), True)
    assert whole.tasks[3].sources[0] == Box("output", "spare", ("(8, 2) float32", "unused"), True)


def test_losses_and_metrics_stand_together_in_the_order_of_what_they_take() -> None:
    rows = [Row("output", name, "", "") for name in "ab"] + [Row("label", "c", "", "")]
    rows += [Row(what, name, "", "") for what in ("loss", "metric") for name in "ba"]
    links = tuple(Link("output", name, what, name, "feeds") for what in ("loss", "metric") for name in "ab")
    (drawing,) = drawn(replace(PLAN, train=replace(STAGE, rows=tuple(rows), links=links), evaluate=None))
    assert [named(task) for task in drawing.tasks] == [
        (["output a"], ["loss a", "metric a"], []),
        (["output b"], ["loss b", "metric b"], []),
        ([], [], ["label c"]),
    ]


def test_evaluating_is_drawn_if_it_differs() -> None:
    other = replace(PLAN, evaluate=replace(STAGE, how="other"), precision="bfloat16")
    titles = ["training: batches of 8", "evaluating and predicting: batches of 8"]
    for drawing, title in zip(drawn(other), titles, strict=True):
        assert drawing.title == f"{title} on cpu(0), cpu(1), computed in bfloat16"
        assert bool(drawing.net) == title.startswith("training")


@pytest.mark.parametrize(
    "change", [{"devices": None}, {"train": {"rows": [["input", "image"]]}}, {"trainers": [{"name": 1}]}]
)
def test_anything_else_is_not_a_plan(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        diagrams({**PLAN.to_dict(), **change})
