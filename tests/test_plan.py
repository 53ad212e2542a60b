"""The plan as data: what feeds what, through JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multifit.plan import Plan, TrainerPlan, stage_plan
from multifit.spec import LossSpec, MetricSpec, TaskSpec


@pytest.fixture
def plan() -> Plan:
    def fn(*args: Any) -> Any:
        return args

    spec = TaskSpec(
        inputs=["source", "length"],
        outputs=["logits"],
        labels=["target"],
        losses={
            "ce": LossSpec(fn, outputs="logits", labels=["target", "length"], normalize_by="length"),
            "part": LossSpec(fn, outputs="logits", labels="target", returns=["a", "b"]),
        },
        metrics={"mean": MetricSpec(fn, losses="part.b", mode="min")},
    )
    stage = stage_plan(spec, {"logits": None}, {}, {}, [("mean", "mean", "batch by batch")], "one graph")
    trainer = TrainerPlan("body", "Adam", 0.001, ("a.weight",), 4, clip_norm=1.0)
    return Plan(("cpu(0)",), 8, stage, None, (trainer,), ("b.weight",), ("a notice",))


def test_links_say_what_feeds_what(plan: Plan) -> None:
    assert plan.train is not None
    assert plan.train.links == (
        ("output", "logits", "loss", "ce", "feeds"),
        ("label", "target", "loss", "ce", "feeds"),
        ("input", "length", "loss", "ce", "feeds"),
        ("input", "length", "loss", "ce", "normalises"),
        ("output", "logits", "loss", "part", "feeds"),
        ("label", "target", "loss", "part", "feeds"),
        ("loss", "part", "metric", "mean", "feeds"),
    )


def test_json_and_back(plan: Plan) -> None:
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan and str(again) == str(plan)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": None},
        {"devices": "cpu(0)"},
        {"devices": None},
        {"train": {"rows": [["input", "image"]], "links": [], "how": ""}},
        {"train": {"rows": [], "links": [["a", "b"]], "how": ""}},
        {"train": []},
        {"trainers": [{"parameters": []}]},
    ],
)
def test_what_is_no_plan_is_refused(plan: Plan, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a plan: "):
        Plan.from_dict({**plan.to_dict(), **change})
