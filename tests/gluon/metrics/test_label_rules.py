"""Labels that break a rule are counted alike on arrays and in a graph, batch by batch."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, TaskSpec
from multifit.gluon.metrics.labels import LabelChecks, label_checks, label_rules
from multifit.losses import SegmentationCELoss, SequenceCELoss
from multifit.spec.names import Ref
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

NAN, INF = float("nan"), float("inf")
SEQUENCE = [[0, 4, 9], [-1, 2, 2.5]]  # of 5 classes: three are wrong, in two sequences of lengths 2 and 1
SOFTMAX = gluon.loss.SoftmaxCrossEntropyLoss


class Graph(gluon.HybridBlock):
    """The counts as a traced graph computes them."""

    def __init__(self, checks: LabelChecks, refs: list[Ref]) -> None:
        super().__init__()
        self.checks, self.refs = checks, refs

    def hybrid_forward(self, F: Any, *arrays: Any) -> Any:
        return F.concat(*self.checks(F, dict(zip(self.refs, arrays))), dim=0)


def count(losses: Any, labels: dict[str, Any], output: tuple[int, ...], classes: int = 5) -> dict[str, float]:
    """Return the wrong values by label, after rules were made for a batch of one sample and no wrong value.

    `labels` are a second batch's; `output` is the shape of its output.
    """
    names = [label.name if isinstance(label, LabelSpec) else label for label in labels]
    spec = TaskSpec(outputs="y", labels=list(labels), losses=losses, inputs=["x"], unused=["y", *names])
    refs = [Ref("outputs", "y"), *(Ref("labels", name) for name in names)]
    second = [mx.nd.zeros(output), *(mx.nd.array(v, dtype=np.asarray(v).dtype) for v in labels.values())]
    first = dict(zip(refs, [array[:1] * 0 for array in second]))
    rules = label_rules(spec, first)
    rows, checks = label_checks(rules, first, 1, {rule.key for rule in rules if rule.classes == classes})
    counts = {}
    if rows is not None:
        labels = [second[refs.index(Ref("labels", name))] for name in rows.names]
        right, wrong = rows.count([[mx.nd.zeros_like(label) for label in labels], labels]).asnumpy()
        assert not right.any()
        counts.update(zip(rows.keys, wrong))
    if checks is not None:
        graph = Graph(checks, refs)
        eager = graph(*second)
        graph.hybridize()
        np.testing.assert_equal(graph(*second).asnumpy(), eager.asnumpy())
        counts.update(zip(checks.keys, eager.asnumpy()))
    return {key.rpartition(".")[2]: value for key, value in counts.items() if value}


def per_sample(values: Any, *more: Any) -> dict[Any, Any]:
    return {"a": np.array(values, "float32"), **dict(zip("bcd", more))}


# fmt: off
CASES = {
    "one label per sample": (CE, per_sample([0, 4, 5, -1, 1.5, NAN, INF, -INF]), (8, 5), {"a": 6}),
    "whole numbers": (CE, {"a": np.array([0, 4, 5, -1], "int32")}, (4, 5), {"a": 2}),
    "as many classes as the output has": (CE, per_sample([0, 4, 5, 6, 7, -1, 0.5, NAN]), (8, 7), {"a": 4}),
    "maps": (SegmentationCELoss(ignore_label=3), {"a": [[[0, 5], [3, -1]]]}, (1, 5, 2, 2), {"a": 2}),
    "an ignored value that is no class": (
        SegmentationCELoss(ignore_label=-1), {"a": [[[0, 5], [3, -1]]]}, (1, 5, 2, 2), {"a": 1}),
    "sequences": (SOFTMAX(), {"a": SEQUENCE}, (2, 3, 5), {"a": 3}),
    "lengths": (SequenceCELoss(), {"a": SEQUENCE, "b": [2.0, 1.0]}, (2, 3, 5), {"a": 1}),
    "weights": (SOFTMAX(), {"a": SEQUENCE, "b": [[[1], [1], [0]], [[1], [0], [2]]]}, (2, 3, 5), {"a": 2}),
    "weights of other axes": (SOFTMAX(), per_sample([7, 7, 7], [[1], [0], [1]]), (3, 5), {"a": 2}),
    "an array that hides nothing": (SOFTMAX(), per_sample([7, 7], [[1, 0, 1]]), (2, 5), {"a": 2}),
    "masked, with a value for no label": (
        SOFTMAX(), {LabelSpec("a", ignore=-1): [7.0, -1.0], "b": [1.0, 1.0]}, (2, 5), {"a": 1}),
    "finite numbers": (L2, {"a": [[0.5, NAN], [INF, -7]]}, (2, 2), {"a": 2}),
    "rows with several": (L2, {"a": [[-INF, NAN], [3e38, -3e38], [0, 0]]}, (3, 2), {"a": 1}),
    "of a loss of one's own": (lambda y, a: y, {"a": [[[0.5, NAN]], [[INF, -7]]]}, (2, 2), {"a": 2}),
    "of float64": (lambda y, a: y, {"a": np.array([[1e300, 0], [INF, 0]])}, (2, 2), {"a": 1}),
    "of float16": (lambda y, a: y, {"a": np.array([[65504, 0], [INF, 0]], "float16")}, (2, 2), {"a": 1}),
    "a mask of numbers": (SOFTMAX(), {**per_sample([0.0, 1.0], [[1], [NAN]])}, (2, 5), {"b": 1}),
    "a declared number of classes": (
        None, {LabelSpec("a", classes=2, ignore=9): [0, 1, 2, 9]}, (4, 7), {"a": 1}),
    "the same, of a loss too": (CE, {LabelSpec("a", classes=5): [0, 1, 5, 9]}, (4, 5), {"a": 2}),
}
# fmt: on


@pytest.mark.parametrize(("loss", "labels", "output", "expected"), CASES.values(), ids=CASES)
def test_values_that_break_a_rule(loss: Any, labels: Any, output: Any, expected: Any) -> None:
    names = [label.name if isinstance(label, LabelSpec) else label for label in labels]
    losses = {"l": LossSpec(loss or (lambda y, a: y), "y", names)}
    assert count(losses, labels, output) == expected


def test_rules_are_counted_together() -> None:
    """Those of labels that are equal, and those that differ in their classes."""
    losses = {name: LossSpec(CE, "y", name) for name in "abc"}
    losses["d"], losses["e"] = LossSpec(L2, "y", "d"), LossSpec(lambda y, label: label, "y", "e")
    labels = per_sample([0, 9, 9], [[4], [4], [9]], [0, 0, 0.5], [1, NAN, NAN])
    labels[LabelSpec("e", classes=2)] = np.array([2, -1, NAN])
    assert count(losses, labels, (3, 5)) == {"a": 2, "b": 1, "c": 1, "d": 2, "e": 3}
