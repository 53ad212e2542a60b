"""Functions of scikit-learn as metrics: they get what they take, and their direction is known."""

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from multifit.gluon.metrics import host
from multifit.spec.terms import MetricTerm
from tests.common.specs import CE, L2
from tests.common.weighted_losses import Shaped

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

RANDOM = np.random.RandomState(1)
N = 30
X = RANDOM.randn(N, 3).astype("float32")
WEIGHTS = RANDOM.uniform(0.1, 2, N).astype("float32")
TWO, THREE = RANDOM.randint(0, 2, N), np.arange(N) % 3
TOKENS = RANDOM.randint(0, 3, (N, 5))


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores.astype("float64"))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-scores.astype("float64")))


# function, shape of a sample's scores, labels, what the function gets for these scores
CASES: dict[str, tuple[Any, tuple[int, ...], np.ndarray, Callable[..., Any]]] = {
    "classes": (partial(sk.f1_score, average="macro"), (3,), THREE, lambda s: s.argmax(1)),
    "two classes": (sk.f1_score, (2,), TWO, lambda s: s.argmax(1)),
    "one score": (sk.f1_score, (1,), TWO[:, None], lambda s: s[:, 0] > 0),
    "labels of another shape": (sk.balanced_accuracy_score, (3,), THREE[:, None], lambda s: s.argmax(1)),
    "raters": (sk.cohen_kappa_score, (3,), THREE, lambda s: s.argmax(1)),
    "clusters": (sk.adjusted_rand_score, (3,), THREE, lambda s: s.argmax(1)),
    "several labels": (
        partial(sk.f1_score, average="micro"), (3,), np.eye(3, dtype=int)[THREE],
        lambda s: (s > 0).astype(int),
    ),
    "probabilities": (sk.log_loss, (3,), THREE, softmax),
    "probability of two classes": (sk.log_loss, (2,), TWO, softmax),
    "probability of one score": (sk.brier_score_loss, (1,), TWO[:, None], lambda s: sigmoid(s[:, 0])),
    "probability of the second class": (sk.brier_score_loss, (2,), TWO, lambda s: softmax(s)[:, 1]),
    "scores": (sk.roc_auc_score, (1,), TWO, lambda s: s[:, 0]),
    "scores of two classes": (sk.average_precision_score, (2,), TWO, lambda s: s[:, 1] - s[:, 0]),
    "scores of classes": (partial(sk.roc_auc_score, multi_class="ovr"), (3,), THREE, softmax),
    "decisions": (sk.hinge_loss, (3,), THREE, lambda s: s),
    "real values": (sk.mean_absolute_error, (2,), X[:, :2], lambda s: s),
    "one real value": (sk.r2_score, (1,), X[:, 0], lambda s: s[:, 0]),
    "tokens": (sk.accuracy_score, (5, 3), TOKENS, lambda s: s.argmax(2).ravel()),
    "maps": (sk.accuracy_score, (3, 5), TOKENS, lambda s: s.argmax(1).ravel()),
}  # fmt: skip


def estimator(metric: MetricSpec, shape: tuple[int, ...] = (1,), weighted: bool = False) -> MultiEstimator:
    net = Shaped(shape)
    net.initialize(mx.init.Normal(1.0))
    loss = LossSpec(lambda o: o.reshape((0, -1)).sum(axis=1), "o")
    spec = {"losses": {"l": loss}, "metrics": {"m": metric}, "unused": ["w"] * (not weighted)}
    return MultiEstimator(net, TaskSpec(outputs="o", labels=["y", "w"], **spec))


def in_batches(*columns: np.ndarray) -> list[Any]:
    arrays = [column.astype("float32") for column in columns]
    return [[array[i : i + 7] for array in arrays] for i in range(0, N, 7)]


@pytest.mark.parametrize("name", CASES)
def test_a_function_gets_what_it_takes(name: str) -> None:
    function, shape, labels, takes = CASES[name]
    flat = labels.ravel() if labels.shape[1:] in ((1,), (5,)) else labels
    for weight in (None, "w") if name != "clusters" else (None,):  # which take no weights
        ours = estimator(MetricSpec(function, "o", "y", sample_weight=weight), shape, weight is not None)
        figure = ours.evaluate(in_batches(X, labels, WEIGHTS))["m"]
        weights = np.repeat(WEIGHTS, 5) if labels is TOKENS else WEIGHTS
        options = {"sample_weight": weights} if weight else {}
        expected = function(flat, takes(ours.predict(X)["o"]), **options)
        np.testing.assert_allclose(figure, expected, rtol=1e-6)


def test_a_weight_for_each_value_and_a_function_of_ones_own() -> None:
    def mean(labels: Any, outputs: Any, sample_weight: Any) -> float:
        return float((outputs[:, 0, 0] * sample_weight.mean(axis=1)).sum())

    weights = RANDOM.uniform(size=(N, 5)).astype("float32")
    for function in ("sklearn.accuracy_score", mean):
        ours = estimator(MetricSpec(function, "o", "y", sample_weight="w"), (5, 3), True)
        outputs = ours.predict(X)["o"]
        right = (weights * (outputs.argmax(2) == TOKENS)).sum() / weights.sum()
        expected = mean(TOKENS, outputs, weights) if function is mean else right
        figure = ours.evaluate(in_batches(X, TOKENS, weights))["m"]
        np.testing.assert_allclose(figure, expected, rtol=1e-5)


def test_several_labels_are_passed_as_lists() -> None:
    both = MetricSpec("sklearn.mean_squared_error", "o", ["a", "b"])
    spec = TaskSpec(outputs="o", labels=["a", "b"], losses={"a": LossSpec(L2, "o", "a")}, metrics={"m": both})
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        MultiEstimator(gluon.nn.Dense(1), spec).evaluate([[X, X[:, 0], X[:, 1]]])


DIRECTIONS: list[tuple[Any, str | None]] = [
    ("sklearn.f1_score", "max"), ("sklearn.matthews_corrcoef", "max"), ("sklearn.mean_squared_error", "min"),
    ("sklearn.log_loss", "min"), (sk.mean_poisson_deviance, "min"), (partial(sk.fbeta_score, beta=2), "max"),
    (sk.auc, None), (lambda labels, outputs: 1.0, None),
]  # fmt: skip


def test_the_direction_is_known_by_the_name() -> None:
    for metric, direction in DIRECTIONS:
        assert estimator(MetricSpec(metric, "o", "y")).direction("val_m") == direction
        assert estimator(MetricSpec(metric, "o", "y", mode="min")).direction("val_m") == "min"


W = {"outputs": "o", "labels": "y", "sample_weight": "w"}
AVERAGE = 'give functools.*average="macro"'
# function, labels, options, and the message; the net returns three scores
REFUSED: list[tuple[Any, np.ndarray, dict[str, Any], str]] = [
    ("sklearn.f1_scor", THREE, {}, "metric 'sklearn.f1_scor' .did you mean \"sklearn.f1_score\""),
    ("accuracy", THREE, W, "sample_weight is passed to functions, and accuracy is none; give one"),
    (mx.metric.MSE(), THREE, W, "and MSE is none; give one that takes it, such as"),
    (lambda labels, outputs: 1.0, THREE, W, "unexpected keyword argument 'sample_weight'; take both, in"),
    (sk.r2_score, THREE, {**W, "transform": max}, "sample_weight cannot be combined with transform="),
    (sk.r2_score, THREE, {**W, "sample_weight": "u"}, 'sample_weight: there is no label "u"'),
    ("sklearn.f1_score", THREE, {}, 'takes two classes, and the output "o" is .7, 3. float32; ' + AVERAGE),
    ("sklearn.f1_score", THREE, W, AVERAGE),
    (partial(sk.jaccard_score, pos_label=2), THREE, {}, 'give functools.*jaccard_score, average="macro"'),
    ("sklearn.f1_score", np.eye(3)[THREE], {}, "is .7, 3. float32; " + AVERAGE),
    ("sklearn.roc_auc_score", THREE, W, r'partial\(sklearn.metrics.roc_auc_score, multi_class="ovr"'),
    ("sklearn.r2_score", X[:, 0], {}, 'output "o" .7, 3. float32 and label "y" .7,. float32 differ in size'),
]  # fmt: skip


@pytest.mark.parametrize(("function", "labels", "options", "match"), REFUSED)
def test_what_is_refused_before_the_first_update(
    function: Any, labels: np.ndarray, options: dict[str, Any], match: str
) -> None:
    metric = MetricSpec(function, **{"outputs": "o", "labels": "y", **options})
    with pytest.raises(SpecError, match=match):
        ours = estimator(metric, (3,), metric.sample_weight == "w")
        ours.fit(in_batches(X, labels, WEIGHTS), epochs=1)


def test_scikit_learn_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ImportError, match="m.*: 'sklearn.f1_score' needs scikit-learn: pip install scikit"):
        estimator(MetricSpec("sklearn.f1_score", "o", "y"))


def test_a_metric_of_torchmetrics_is_adapted_by_its_own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose tests need torch."""
    kind = type("Metric", (), {"__module__": "torchmetrics.metric", "update": None, "__call__": None})
    adapters: dict[str, Any] = {"multifit.torch.metrics": SimpleNamespace(TorchMetric=lambda *each: each)}
    monkeypatch.setattr(host, "import_module", adapters.__getitem__)
    metric = type("Recall", (kind,), {})()
    term = MetricTerm("m", MetricSpec(metric, "o", "y"), ())
    assert host.as_metric(term) == (metric, 'metrics["m"]')


def test_a_combined_spec_weighs_by_its_own_slots() -> None:
    metrics = {
        "m": MetricSpec(sk.r2_score, "o", "y", sample_weight="w"),
        "n": MetricSpec(sk.r2_score, arguments=["o", "y"], sample_weight="w"),
    }
    part = TaskSpec(outputs="o", labels=["y", "w"], losses={"l": LossSpec(CE, "o", "y")}, metrics=metrics)
    combined = TaskSpec.combine(one=part, other=part)
    names = [[ref.name for ref in term.args] for term in combined.metric_terms]
    assert names == [["one/o", "one/y", "one/w"]] * 2 + [["other/o", "other/y", "other/w"]] * 2
