"""Metrics: what they are, what they are fed, what they return."""

from typing import Any

import pytest

from multifit import MetricSpec, SpecError

import mxnet as mx  # isort: skip

from .setups import BOTH, Setup, fault


class Figures(mx.metric.EvalMetric):
    """Returns the values that it was made with."""

    def __init__(self, got: Any) -> None:
        super().__init__("figures")
        self.got = got

    def update(self, labels: Any, preds: Any) -> None:
        pass

    def get(self) -> Any:
        return self.got


class Three(mx.metric.EvalMetric):
    """Takes outputs, then labels, three in all."""

    def update(self, boxes: Any, scores: Any, truth: Any) -> None:
        pass


class MSELoss:
    """A loss of PyTorch, whose tests need PyTorch."""

    __module__ = "torch.nn.modules.loss"
    __call__ = Three.update


# fmt: off
FAULTS = [
    fault("number", lambda s: s.with_metric(5, **BOTH),
        'metrics["figure"]: 5 is not a metric; give a name, such as "accuracy", an EvalMetric, such as mx'),
    fault("unknown names", lambda s: s.but(metrics={
            name: MetricSpec(name, **BOTH) for name in ("acuracy", "top_k_accuracy")}),
        'metrics["acuracy"]: there is no metric \'acuracy\' (did you mean "accuracy"?); valid are "acc", ',
        'metrics["top_k_accuracy"]: \'top_k_accuracy\' needs options', "; give mx.metric.TopKAccuracy(...)"),
    *(fault(f"a loss of {kind.__module__}", lambda s, kind=kind: s.with_metric(kind(), **BOTH),
        'metrics["figure"]: ', " is not a metric; give", "(labels, outputs) -> float of NumPy arrays")
      for kind in (mx.gluon.loss.L2Loss, MSELoss)),
    fault("class", lambda s: s.with_metric(mx.metric.Accuracy, **BOTH),
        'metrics["figure"]: Accuracy is a class; give an instance: Accuracy()'),
    fault("mode", lambda s: s.with_metric(mx.metric.Accuracy(), **BOTH, mode="mx"),
        'metrics["figure"]: mode is \'mx\' (did you mean "max"?); valid are "min", "max"'),
    fault("stage", lambda s: s.with_metric(mx.metric.Accuracy(), **BOTH, stage="val"),
        'metrics["figure"]: stage is \'val\'; valid are "train", "evaluate"'),
    fault("transform", lambda s: s.with_metric(mx.metric.Accuracy(), **BOTH, transform="argmax"),
        "transform: 'argmax' cannot be called; give a function"),
    fault("transform of one", lambda s: s.with_metric(mx.metric.Accuracy(), **BOTH, transform=lambda a: a),
        'metrics["figure"].transform: is called with 2 arguments', '"labels.digit"), but takes ('),
    fault("transform that returns one",
        lambda s: s.with_metric(mx.metric.Accuracy(), **BOTH, transform=lambda a, b: a),
        'metrics["figure"].update: is called with 1 argument ("value 1"), but takes (labels, preds): mis',
        "transform return its arguments, in their order"),
    fault("no number", lambda s: s.with_metric(lambda labels, outputs: None, **BOTH),
        'metrics["figure"]: its function returned None; it must return a number'),
    fault("function of one", lambda s: s.with_metric(lambda a: 0.0, **BOTH),
        'metrics["figure"]: is called with 2 arguments ("labels", "outputs")', "; take both, in that"),
    fault("name twice", lambda s: s.with_metric(Figures([1, 2]), **BOTH, names=["a", "a"]),
        'names "a" 2 times'),
    fault("update of three", lambda s: s.with_metric(Three("three"), **BOTH),
        'metrics["figure"].update: is called with 2 arguments', "but takes (boxes, scores, truth)"),
    fault("fewer labels",
        lambda s: s.with_metric(mx.metric.Accuracy(), outputs=["digit", "amount"], labels="digit"),
        "takes 2 outputs and 1 label, but Accuracy compares each output with a label; name as many"),
    fault("losses in place of outputs", lambda s: s.with_metric(mx.metric.Accuracy(), losses="digit"),
        "takes 1 output and 0 labels, but Accuracy compares"),
    fault("sizes", lambda s: s.with_metric(mx.metric.MSE(), **BOTH),
        'metrics["figure"]: output "digit" (8, 3) float32 and label "digit" (8,) float32 differ in size'),
    fault("accuracy of one class",
        lambda s: s.with_metric(mx.metric.Accuracy(), outputs="amount", labels="digit"),
        "the output (8, 1) float32 has one class along axis 1, so every prediction is 0",
        "multifit.metrics.BinaryAccuracy"),
    *(fault(f"{metric.name} of one class",
        lambda s, metric=metric: s.with_metric(metric, outputs="amount", labels="digit"),
        "the output (8, 1) float32 has one class along axis 1, so every prediction is 0; give",
        "a score for each class, for logits by transform=lambda")
      for metric in (mx.metric.F1(), mx.metric.PCC())),
    *(fault(f"{kind.__name__} of logits and labels of one shape",
        lambda s, kind=kind: s.with_metric(kind(), outputs="amount", labels="amount"),
        'metrics["figure"]: for (8, 1) float32, the outputs have the shape of the labels, but they hold no',
        "to compare value by value, give multifit.metrics.BinaryAccuracy; to compare the largest ones,")
      for kind in (mx.metric.Accuracy, mx.metric.PCC)),
    *(fault(f"{metric.name} of scores and labels of one shape",
        lambda s, metric=metric: s.with_metric(metric, outputs="amount", labels="amount"),
        'metrics["figure"]: output "amount" and label "amount" are both (8, 1) float32, and',
        "takes one class index for the scores of each sample; if labels are one-hot, give",
        "transform=lambda scores, label: (label.argmax(axis=1), scores)")
      for metric in (mx.metric.TopKAccuracy(2), mx.metric.Perplexity(None))),
    fault("axis", lambda s: s.with_metric(mx.metric.Accuracy(axis=7), **BOTH),
        'metrics["figure"]: the output "digit" (8, 3) float32 has no axis 7, where Accuracy looks for the',
        "classes; valid are -2 … 1"),
    fault("more than there are", lambda s: s.with_metric(mx.metric.TopKAccuracy(7), **BOTH),
        'metrics["figure"]: TopKAccuracy cannot', "compare (8, 3) float32 with (8,) float32: kth(=-4) out"),
    fault("figures without names", lambda s: s.with_metric(Figures([1.0, 2.0, 3.0]), **BOTH),
        'metrics["figure"]: Figures returns 3 figures; give names=[...], one for each'),
    fault("too few names", lambda s: s.with_metric(Figures([1.0, 2.0, 3.0]), **BOTH, names=["a", "b"]),
        "Figures returns 3 figures; names= gives 2"),
]
# fmt: on


@pytest.mark.parametrize(("change", "texts"), FAULTS)
def test_a_wrong_metric_is_an_error(setup: Setup, change: Any, texts: tuple) -> None:
    change(setup).refused(SpecError, *texts)


def test_a_metric_that_only_evaluates_is_checked_too(setup: Setup) -> None:
    faulty = setup.with_metric(mx.metric.MSE(), **BOTH, stage="evaluate")
    faulty.but(val_data=faulty.data).refused(SpecError, "differ in size")


def test_a_metric_by_name_is_that_of_mxnet(setup: Setup, caplog: Any) -> None:
    """And is doubted like it."""
    softmax = {"transform": lambda scores, label: (label, mx.nd.softmax(scores)), **BOTH}
    metrics = {"by_name": MetricSpec("ce", **softmax), "own": MetricSpec(mx.metric.CrossEntropy(), **softmax)}
    figures = setup.but(metrics=metrics).make().evaluate(setup.data)
    assert figures["by_name"] == figures["own"]
    setup.but(metrics={"figure": MetricSpec("ce", **BOTH)}).make().check(setup.data)
    assert "but CrossEntropy takes probabilities" in caplog.text
