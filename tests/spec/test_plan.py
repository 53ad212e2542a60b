"""The plan as data and as text: what feeds what, and within a terminal."""

import json
from dataclasses import replace
from typing import Any

import pytest

from multifit.spec import LossSpec, MetricSpec, TaskSpec
from multifit.spec.plan import Plan, TrainerPlan, stage_plan


def fn(*args: Any) -> Any:
    return args


SPEC = TaskSpec(
    inputs=["source", "length"],
    outputs=["logits", "more"],
    labels=["target"],
    losses={
        "ce": LossSpec(fn, outputs="logits", labels=["target", "length"], normalize_by="length"),
        "part": LossSpec(fn, "logits", "target", 0.5, returns=["a", "b"], normalize_by=lambda slots: 1.0),
        "whole": LossSpec(fn, outputs="logits", weight=lambda state: 1.0),
    },
    metrics={
        "mean": MetricSpec(fn, losses="part.b", mode="min"),
        "several": MetricSpec(fn, outputs="logits", mode="max", names=["first", "second"]),
        "left_out": MetricSpec(fn, outputs="logits", stage="evaluate"),
    },
    unused=["more"],
)
ARRAY = "(8, 4) float32"
STAGE = stage_plan(
    SPEC,
    {"logits": ARRAY, "more": ARRAY},
    {"source": ARRAY, "target": ARRAY},
    {"ce": ARRAY},
    [("mean", ["mean"], "batch by batch"), ("several", ["several.first", "several.second"], "on the device")],
    "one graph",
)
TRAINER = TrainerPlan("body", "Adam", 0.001, ("a.weight",), 4, clip_norm=1.0, losses=("ce", "part"))
NOTICES = ("a default was used", "many words " * 20)
PLAN = Plan(("cpu(0)",), 8, STAGE, None, (TRAINER,), ("b.weight",), NOTICES)


def test_a_row_for_every_name() -> None:
    assert STAGE.rows == (
        ("input", "source", "(8, 4) float32", "net"),
        ("input", "length", "", "net, ce, normalizes ce"),
        ("output", "logits", "(8, 4) float32", "ce, part, whole, several"),
        ("output", "more", "(8, 4) float32", "unused"),
        ("label", "target", "(8, 4) float32", "ce, part"),
        ("loss", "ce", "(8, 4) float32", "1 x fn(outputs.logits, labels.target, labels.length) / length"),
        ("loss", "part", "", "0.5 x fn(outputs.logits, labels.target) / a function of the slots"),
        ("part", "part.a", "", "minimized"),
        ("part", "part.b", "", "measured"),
        ("loss", "whole", "", "<lambda>(state) x fn(outputs.logits) / samples"),
        ("metric", "mean", "mean", "fn(part.b), batch by batch"),
        ("metric", "several", "first, second", "fn(outputs.logits), on the device"),
    )


def test_links_say_what_feeds_what() -> None:
    assert STAGE.links == (
        ("output", "logits", "loss", "ce", "feeds"), ("label", "target", "loss", "ce", "feeds"),
        ("input", "length", "loss", "ce", "feeds"), ("input", "length", "loss", "ce", "normalises"),
        ("output", "logits", "loss", "part", "feeds"), ("label", "target", "loss", "part", "feeds"),
        ("output", "logits", "loss", "whole", "feeds"), ("loss", "part", "metric", "mean", "feeds"),
        ("output", "logits", "metric", "several", "feeds"),
    )  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_text_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(PLAN).split("\n")
    assert max(map(len, lines)) <= width
    assert "note: a default was used" in lines and "batches of 8 on cpu(0)" in lines
    assert "by the losses ce, part" in " ".join(str(PLAN).split())
    assert ["frozen", "1", "parameter", "b.weight"] in [line.split() for line in lines]


def test_training_and_evaluation_are_one_if_they_are_alike() -> None:
    text = str(replace(PLAN, evaluate=STAGE))
    assert text.count("part.a") == str(PLAN).count("part.a") == 1
    assert "training, evaluating and predicting\nwhat" in text and "\n\ntraining\nwhat" in str(PLAN)
    lines = str(replace(PLAN, evaluate=replace(STAGE, how="other"))).splitlines()
    titles = [line for line in lines if line in ("training", "parameters", "evaluating and predicting")]
    assert titles == ["training", "parameters", "evaluating and predicting"]
    assert str(replace(PLAN, train=None, evaluate=STAGE)).split("\n\n")[1].startswith("parameters")


def test_a_plan_says_where_and_is_held_by_json() -> None:
    assert PLAN.where == "batches of 8 on cpu(0)"
    assert replace(PLAN, precision="bfloat16").where == "batches of 8 on cpu(0), computed in bfloat16"
    saved = json.loads(json.dumps(PLAN.to_dict()))
    assert (
        saved["train"]["rows"] == [list(row) for row in STAGE.rows] and saved["trainers"][0]["name"] == "body"
    )
