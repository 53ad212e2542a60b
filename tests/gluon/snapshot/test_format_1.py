"""Identities of format 1, which hold the spec as printed text."""

from __future__ import annotations

from typing import Any

import pytest

from multifit import LossSpec, MetricSpec, TaskSpec
from multifit.gluon.snapshot.differences import differences
from multifit.gluon.snapshot.identity import spec_tree

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

# What TaskSpec.summary() returned for `declare()` at commit 25196a4.
PRINTED = """\
TaskSpec every kind of line
what    name      where it goes, what it takes
------  --------  -------------------------------------------------------------------------------------------
input   image     net
input   left eye  net
output  digit     losses["digit"], losses["left ear"], metrics["right"]
output  left eye  losses["left eye"]
output  aux       losses["aux"]
label   digit     losses["digit"], losses["left ear"], metrics["right"]
label   count     normalizer of losses["left eye"]
label   spare     unused
loss    digit     1 x SoftmaxCrossEntropyLoss(outputs.digit, labels.digit)
loss    left eye  0.125 x L2Loss(outputs.left eye, labels.left eye) / count
loss    left ear  up(state) x two(outputs.digit, labels.digit) / a function of the slots -> a, b; minimizes b
loss    aux       1e-07 x the output(outputs.aux)
metric  right     Accuracy(outputs.digit, labels.digit) (train)
metric  ears      Loss(left ear, left ear.b) (train, evaluate)

when evaluating and predicting:
TaskSpec later
what    name   where it goes, what it takes
------  -----  -------------------------------------------------------
input   image  net
output  digit  metrics["right"]
label   digit  metrics["right"]
metric  right  Accuracy(outputs.digit, labels.digit) (train, evaluate)"""


def up(state: Any) -> float:
    return 0.5


def total(slots: Any) -> Any:
    return slots["count"]


def two(pred: Any, label: Any) -> Any:
    return pred - label, label


def declare(weight: float = 0.125) -> TaskSpec:
    evaluate = TaskSpec(
        outputs=["digit"],
        labels=["digit"],
        losses=None,
        metrics={"right": MetricSpec(mx.metric.Accuracy(), "digit", "digit")},
        inputs=["image"],
        name="later",
    )
    return TaskSpec(
        outputs=["digit", ["left eye", "aux", ...]],
        labels=["digit", "count", "spare"],
        inputs=["image", "left eye"],
        losses={
            "digit": gluon.loss.SoftmaxCrossEntropyLoss(),
            "left eye": LossSpec(gluon.loss.L2Loss(), weight=weight, normalize_by="count"),
            "left ear": LossSpec(two, "digit", "digit", up, ["a", "b"], "b", total),
            "aux": LossSpec(None, weight=1e-7),
        },
        metrics={
            "right": MetricSpec(mx.metric.Accuracy(), "digit", "digit", stage="train"),
            "ears": MetricSpec(mx.metric.Loss(), losses=["left ear", "left ear.b"]),
        },
        unused=["spare"],
        evaluate=evaluate,
        name="every kind of line",
    )


def differ(printed: str, spec: TaskSpec, **old: Any) -> list[str]:
    rest = {"parameters": {}, "trainers": {}, "devices": 1}
    return differences(
        {"spec": printed.splitlines(), **rest, **old},
        {"spec": spec_tree(spec), **rest, "precision": "float32"},
    )


def test_what_was_printed_is_what_is_compared():
    assert differ(PRINTED, declare()) == []


def test_whole_lines_are_compared():
    """Not the lines' second words: of two losses "left eye" and "left ear" only one was."""
    old, new = differ(PRINTED, declare(weight=0.25))
    line = "loss  left eye  {} x L2Loss(outputs.left eye, labels.left eye) / count"
    assert old.startswith(f'summary["{line.format(0.125)}"]: in the checkpoint, not here')
    assert new.startswith(f'summary["{line.format(0.25)}"]: here, not in the checkpoint')


def test_a_changed_evaluation_is_a_difference():
    (line,) = differ(
        PRINTED.replace("Accuracy(outputs.digit, labels.digit) (train, evaluate)", "F1()"), declare()
    )[:1]
    assert "when evaluating and predicting: metric  right  F1()" in line


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_precision_was_float32_where_it_is_not_given(precision):
    lines = differ(PRINTED, declare(), precision=precision)
    assert lines == (
        [] if precision == "float32" else ['precision: "bfloat16" in the checkpoint, "float32" here']
    )
