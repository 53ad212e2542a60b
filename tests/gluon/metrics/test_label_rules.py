"""Labels that break a rule are counted alike on arrays and in a graph, batch by batch."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, TaskSpec
from multifit.gluon.metrics.labels import LabelRule, count_wrong, label_rules, rows_first
from multifit.losses import SegmentationCELoss, SequenceCELoss
from multifit.spec.terms import Ref
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

NAN, INF = float("nan"), float("inf")
SEQUENCE = [[0, 4, 9], [-1, 2, 2.5]]  # of 5 classes: three are wrong, in two sequences of lengths 2 and 1
SOFTMAX = gluon.loss.SoftmaxCrossEntropyLoss


class Graph(gluon.HybridBlock):
    """The counts as a traced graph computes them."""

    def __init__(self, rules: list[LabelRule], refs: list[Ref]) -> None:
        super().__init__()
        self.rules, self.refs = rules, refs

    def hybrid_forward(self, F: Any, *arrays: Any) -> Any:
        return F.concat(*count_wrong(F, self.rules, dict(zip(self.refs, arrays))), dim=0)


def count(losses: Any, labels: dict[Any, Any], output: Any) -> dict[str, float]:
    """Return the wrong values by label, after rules were made for a batch of one sample and no wrong value.

    `labels` are a second batch's; `output` is its output, or the shape of that.
    """
    names = [label.name if isinstance(label, LabelSpec) else label for label in labels]
    spec = TaskSpec(outputs="y", labels=list(labels), losses=losses, inputs=["x"], unused=["y", *names])
    refs = [Ref("outputs", "y"), *(Ref("labels", name) for name in names)]
    output = mx.nd.zeros(output) if isinstance(output, tuple) else output
    second = [output, *(mx.nd.array(v, dtype=np.asarray(v).dtype) for v in labels.values())]
    rules = rows_first(label_rules(spec, dict(zip(refs, [array[:1] * 0 for array in second]))))
    graph = Graph(rules, refs)
    eager = graph(*second)
    graph.hybridize()
    np.testing.assert_equal(graph(*second).asnumpy(), eager.asnumpy())
    assert eager.dtype == np.float32
    return {rule.label.name: value for rule, value in zip(rules, eager.asnumpy()) if value}


def per_sample(values: Any, *more: Any) -> dict[Any, Any]:
    return {"a": np.array(values, "float32"), **dict(zip("bcd", more))}


# fmt: off
CASES = {
    "one label per sample": (CE, per_sample([0, 4, 5, -1, 1.5, NAN, INF, -INF]), (8, 5), {"a": 6}),
    "whole numbers": (CE, {"a": np.array([0, 4, 5, -1], "int32")}, (4, 5), {"a": 2}),
    "as many classes as the output has": (CE, per_sample([0, 4, 5, 6, 7, -1, 0.5, NAN]), (8, 7), {"a": 4}),
    "outputs of float16": (CE, per_sample([2049, 3000]), mx.nd.zeros((2, 3000), dtype="float16"), {"a": 1}),
    "of outputs of float64": (CE, per_sample([4, 5]), mx.nd.zeros((2, 5), dtype="float64"), {"a": 1}),
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
    """Those of labels with one class index a sample; each label once."""
    losses = {name: LossSpec(CE, "y", name) for name in "abc"}
    losses["d"], losses["e"] = LossSpec(L2, "y", "d"), LossSpec(lambda y, label: label, "y", "e")
    losses["f"] = LossSpec(CE, "y", "a")
    labels = per_sample([0, 9, 9], [[4], [4], [9]], [0, 0, 0.5], [1, NAN, NAN])
    labels[LabelSpec("e", classes=2)] = np.array([2, -1, NAN])
    assert count(losses, labels, (3, 5)) == {"a": 2, "b": 1, "c": 1, "d": 2, "e": 3}


def test_the_number_of_classes_of_each_batch() -> None:
    """Outputs with as many classes as samples, of which a graph was made for one sample."""
    losses = {name: LossSpec(CE, "y", name) for name in "ab"}
    assert count(losses, per_sample([0, 3, 4, 5], [3, 2, 1, 0]), (4, 4)) == {"a": 2}
