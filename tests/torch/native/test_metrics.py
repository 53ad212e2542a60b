"""Metrics of a pass: equal to their formulas, however the pass is cut into batches."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torchmetrics import classification, regression

from multifit import (
    DataError,
    LabelSpec,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
    TrainerSpec,
)

from .nets import Given

N = 23
CUTS = [[N], [1, 3, 2, 17]]
RANDOM = np.random.RandomState(0)


def floats(*shape: int) -> Tensor:
    return torch.tensor(RANDOM.randn(*shape), dtype=torch.float64)


SCORES, CLASSES = floats(N, 5), torch.tensor(RANDOM.randint(0, 5, N))
TWO, BINARY = floats(N, 2), torch.tensor(RANDOM.randint(0, 2, N))
PIXELS, MAP = floats(N, 3, 4, 2), torch.tensor(RANDOM.randint(0, 2, (N, 4, 2)))  # class 2 has no label
X, Y = floats(N, 3), floats(N, 3) + 2
PREDICTED, PAIR, ONE = SCORES.argmax(1), TWO.argmax(1), (TWO[:, 0] > 0).long()
TOKENS, OF_TOKENS = SCORES[:, None].repeat(1, 2, 1), CLASSES[:, None].repeat(1, 2)  # classes lie last
HITS = sk.accuracy_score(CLASSES, PREDICTED)
RIGHT_PIXELS = float((PIXELS.argmax(1) == MAP).double().mean())
TOP_2 = float((PIXELS.topk(2, 1).indices == MAP[:, None]).double().sum() / MAP.numel())
ENTROPY, OF_PIXELS = float(cross_entropy(SCORES, CLASSES)), float(cross_entropy(PIXELS, MAP))
IOU = sk.jaccard_score(MAP.flatten(), PIXELS.argmax(1).flatten(), average="macro")
CORRELATION = np.corrcoef(Y.flatten().numpy(), (X + Y).flatten().numpy())[0, 1]


def spec_of(metric: Any, *labels: Any, **options: Any) -> TaskSpec:
    spec = metric if isinstance(metric, MetricSpec) else MetricSpec(metric, "o", "y", **options)
    return TaskSpec(inputs=["x"], outputs=["o"], labels=labels or ["y"], metrics={"m": spec})


def with_loss(metric: Any) -> TaskSpec:
    losses, metrics = {"l": LossSpec(nn.MSELoss(), "o", "y")}, {"m": MetricSpec(metric, "o", "y")}
    return TaskSpec(inputs=["x"], outputs=["o"], labels=["y"], losses=losses, metrics=metrics)


def evaluated(spec: TaskSpec, columns: Sequence[Tensor], cuts: list[int]) -> dict[str, float]:
    """Return the figures of outputs and labels, which are cut into batches."""
    return MultiEstimator(Given(), spec).evaluate(list(zip(*(each.split(cuts) for each in columns))))


def assert_figure(spec: TaskSpec, columns: Sequence[Tensor], expected: float, rel: float = 1e-12) -> None:
    """Check the figure "m" of a pass, however it is cut."""
    for cuts in CUTS:
        found = evaluated(spec, columns, cuts)
        assert found["m"] == pytest.approx(expected, nan_ok=True, rel=rel), cuts


# fmt: off
CASES: dict[str, tuple[Any, Tensor, Tensor, float]] = {
    "accuracy": ("accuracy", SCORES, CLASSES, HITS),
    "a column": ("acc", SCORES, CLASSES[:, None], HITS),
    "real labels": ("accuracy", SCORES, CLASSES.double(), HITS),
    "pixels": ("accuracy", PIXELS, MAP, RIGHT_PIXELS),
    "tokens": ("accuracy", TOKENS, OF_TOKENS, HITS),
    "one-hot": ("accuracy", SCORES, one_hot(CLASSES, 5), HITS),
    "classes": ("accuracy", PREDICTED, CLASSES, HITS),
    "binary": ("binary_accuracy", TWO[:, :1], BINARY, sk.accuracy_score(BINARY, ONE)),
    "top 3": ("top_3", SCORES, CLASSES, sk.top_k_accuracy_score(CLASSES, SCORES, k=3)),
    "top 2": ("top_2_accuracy", PIXELS, MAP, TOP_2),
    "f1": ("f1", TWO, BINARY, sk.f1_score(BINARY, PAIR)),
    "f1 of one score": ("f1", TWO[:, 0], BINARY, sk.f1_score(BINARY, ONE)),
    "no f1": ("f1", TWO * 0, BINARY * 0, 0.0),
    "mcc": ("mcc", TWO, BINARY, sk.matthews_corrcoef(BINARY, PAIR)),
    "no mcc": ("mcc", TWO * 0, BINARY, 0.0),
    "pcc": ("pcc", SCORES, CLASSES, sk.matthews_corrcoef(CLASSES, PREDICTED)),
    "pcc of a later class": ("pcc", SCORES[:, :4], CLASSES,
                             sk.matthews_corrcoef(CLASSES, SCORES[:, :4].argmax(1))),
    "cross entropy": ("ce", SCORES.softmax(1), CLASSES, sk.log_loss(CLASSES, SCORES.softmax(1))),
    "of scores": ("nll_loss", SCORES, CLASSES, ENTROPY),
    "of log probabilities": ("ce", SCORES.log_softmax(1), CLASSES, ENTROPY),
    "of pixels": ("cross_entropy", PIXELS, MAP, OF_PIXELS),
    "no class": ("ce", SCORES, CLASSES + 1, math.nan),
    "perplexity": ("perplexity", SCORES, CLASSES, math.exp(ENTROPY)),
    "mae": ("mae", X, Y, sk.mean_absolute_error(Y, X)),
    "mse": ("mse", X[:, :1], Y[:, 0], sk.mean_squared_error(Y[:, 0], X[:, 0])),
    "rmse": ("rmse", X, Y, sk.mean_squared_error(Y, X) ** 0.5),
    "pearson": ("pearson", X + Y, Y, CORRELATION),
    "no pearson": ("pearsonr", X, Y * 0, math.nan),
    "pixel accuracy": ("pixel_accuracy", PIXELS, MAP, RIGHT_PIXELS),
    "mean iou": ("mean_iou", PIXELS, MAP, IOU),
    # functions get the whole pass
    "of sklearn": ("sklearn.f1_score", TWO, BINARY, sk.f1_score(BINARY, PAIR)),
    "median": (lambda y, o: float(np.median(np.abs(y - o))), X, Y, float(np.median((Y - X).abs()))),
    "partial": (functools.partial(sk.f1_score, average="macro"), SCORES, CLASSES,
                sk.f1_score(CLASSES, PREDICTED, average="macro")),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_a_metric_is_its_formula(name: str) -> None:
    metric, output, label, expected = CASES[name]
    assert_figure(spec_of(metric), (output, label), expected)


OF_MISSING = ("accuracy", "binary", "top 3", "mae", "rmse", "cross entropy", "mean iou", "f1", "pcc")


@pytest.mark.parametrize("name", [*OF_MISSING, "pearson", "perplexity", "pixels", "one-hot"])
def test_missing_labels_do_not_count(name: str) -> None:
    """Of labels with several values, single values or, if these are one-hot, whole samples."""
    metric, output, label, _ = CASES[name]
    there = torch.tensor(RANDOM.randint(0, 2, N if name == "one-hot" else label.shape), dtype=torch.bool)
    missing = label.double().clone()
    missing[~there] = math.nan
    flat = output if output.dim() == label.dim() else output.movedim(1, -1)
    columns = flat[there], label[there]
    present = evaluated(spec_of(metric), columns, [len(columns[0])])["m"]
    spec = spec_of(metric, LabelSpec("y", missing="nan"))
    assert_figure(spec, (output, missing), present)
    coverage = evaluated(spec, (output, missing), [N])["coverage_y"]
    assert coverage == pytest.approx(float(there.double().mean()))


IGNORED = torch.cat([torch.full_like(MAP[:, :1], 255), MAP[:, 1:]], 1)


@pytest.mark.parametrize("name", ["pixel_accuracy", "mean_iou", "perplexity"])
def test_labels_that_are_ignored_do_not_count(name: str) -> None:
    expected = evaluated(spec_of(name), (PIXELS[:, :, 1:], MAP[:, 1:]), [N])["m"]
    assert_figure(spec_of(name, LabelSpec("y", classes=3, ignore=255)), (PIXELS, IGNORED), expected)
    if name == "pixel_accuracy":  # which counts what is no class nowhere
        assert_figure(spec_of(name), (PIXELS, torch.where(IGNORED == 255, -1, MAP)), expected)
    if name == "perplexity":
        kept, spec = CLASSES != 1, spec_of(name, LabelSpec("y", missing="nan", ignore=1))
        expected = evaluated(spec_of(name), (SCORES[kept], CLASSES[kept]), [int(kept.sum())])["m"]
        assert_figure(spec, (SCORES, CLASSES.double()), expected)


def test_sums_are_exact_beyond_float32() -> None:
    right, wrong, label = torch.ones(1, 1).long(), torch.zeros(1, 1).long(), torch.ones(1, 1).bool()
    batches = [(right.expand(1, 2**22), label.expand(1, 2**22))] * 4 + [(wrong, label), (right, label)]
    losses = {"l": LossSpec(lambda output: output.float(), "o")}
    metrics = {"m": MetricSpec("binary_accuracy", "o", "y")}
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=["y"], losses=losses, metrics=metrics)
    figures = MultiEstimator(Given(), spec).evaluate(batches)
    assert figures["m"] == (2**24 + 1) / (2**24 + 2) and figures["l"] == (2**24 + 1) / 6


def average(labels: Any, outputs: Any) -> float:
    pairs = zip(labels, outputs) if isinstance(labels, list) else [(labels, outputs)]
    return float(sum(((label - output) ** 2).mean() for label, output in pairs))


def test_several_outputs() -> None:
    """Errors are means over the pairs, as MXNet's; what is counted is counted together."""
    names = {"mse": "mse", "f": average, "hits": "binary_accuracy"}
    metrics = {name: MetricSpec(metric, ["a", "b"], ["c", "d"]) for name, metric in names.items()}
    spec = TaskSpec(inputs=["x", "z"], outputs=["a", "b"], labels=["c", "d"], metrics=metrics)
    errors = [float(((TWO[:, 0] - BINARY) ** 2).mean()), float(((X - Y) ** 2).mean())]
    hits = ((TWO[:, 0] > 0) == (BINARY > 0.5)).sum() + ((X > 0) == (Y > 0.5)).sum()
    expected = {"mse": np.mean(errors), "f": errors[0] + errors[1], "hits": float(hits / (N + 3 * N))}
    columns = TWO[:, 0], X, BINARY.double(), Y
    assert evaluated(spec, columns, [9, 14]) == pytest.approx(expected)


def row_sum(output: Any, label: Any) -> Any:
    return (output - label).abs().sum(1)


MISSING = Y.clone()
MISSING[[0, 1, 2, 3, 12]] = math.nan
WITH_A_PART = MISSING.clone()
WITH_A_PART[7, 1] = math.nan
ERRORS, VALUES = (X - Y).abs(), nn.L1Loss(reduction="none")
TWO_PARTS = LossSpec(lambda o, y: (row_sum(o, y), o[:, 0]), "o", "y", returns=["a", "b"])
# the loss, which of its values are measured, the label, and the figure
LOSSES: dict[str, tuple[LossSpec, str, Tensor, Tensor]] = {
    "a number": (LossSpec(nn.MSELoss(), "o", "y"), "l", Y, (X - Y).square()),  # that of each sample
    "a part": (TWO_PARTS, "l.b", Y, X[:, 0]),
    "missing values": (LossSpec(VALUES, "o", "y"), "l", WITH_A_PART, ERRORS[~WITH_A_PART.isnan()]),
    "missing values of a mean": (
        LossSpec(nn.L1Loss(), "o", "y"),
        "l",
        WITH_A_PART,
        ERRORS[~WITH_A_PART.isnan()],
    ),
    "missing samples": (LossSpec(row_sum, "o", "y"), "l", MISSING, ERRORS.sum(1)[~MISSING[:, 0].isnan()]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_values_of_losses(name: str) -> None:
    loss, taken, label, expected = LOSSES[name]
    labels = ["y"] if label is Y else [LabelSpec("y", missing="nan")]
    metrics = {"m": MetricSpec("loss", losses=taken)}
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=labels, losses={"l": loss}, metrics=metrics)
    assert_figure(spec, (X, label), float(expected.mean()))


def test_a_function_gets_present_samples_and_weights() -> None:
    weights, label = torch.rand(N, dtype=torch.float64), Y[:, 0].clone()
    label[3:9] = math.nan  # of a batch, too
    metric, kept = MetricSpec("sklearn.mean_squared_error", "o", "y", sample_weight="w"), ~label.isnan()
    expected = sk.mean_squared_error(label[kept], X[kept, 0], sample_weight=weights[kept])
    assert_figure(spec_of(metric, LabelSpec("y", missing="nan"), "w"), (X[:, 0], label, weights), expected)


def test_a_function_that_needs_more_samples(caplog: pytest.LogCaptureFixture) -> None:
    """Its figure is NaN until it can be computed; at the end of a pass, it must be."""

    def enough(labels: Any, outputs: Any) -> float:
        return float(len(labels)) if len(labels) > 10 else float("x")

    class Reads:
        def batch_end(self, estimator: Any) -> None:
            seen.append(estimator.figures()["train_m"])

    seen: list[float] = []
    estimator = MultiEstimator(nn.Linear(3, 3).double(), with_loss(enough))
    estimator.fit(list(zip(X.split(6), Y.split(6))), epochs=1, event_handlers=[Reads()])
    assert math.isnan(seen[0]) and seen[1:] == [12, 18, N]
    assert caplog.text.count("cannot be computed from the batches so far (could not convert") == 1
    with pytest.raises(ValueError, match="could not convert"):
        evaluated(spec_of(enough), (TWO[:6], BINARY[:6]), [6])


# ---- objects


class Own:
    """A metric by the protocol, which adds up errors."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, labels: Tensor, outputs: Tensor) -> None:
        assert not outputs.requires_grad
        self.total, self.count = self.total + float((labels - outputs).sum()), self.count + labels.numel()

    def compute(self) -> Any:
        return {"sum": self.total, "mean": self.total / self.count}


class Got(Own):
    mode = "max"
    compute = None  # type: ignore[assignment]

    def get(self) -> Any:
        return "total", torch.tensor(self.total)


TORCH: dict[str, tuple[Callable[[], Any], Tensor, Tensor]] = {
    "sums": (lambda: classification.MulticlassF1Score(5, average="macro"), SCORES, CLASSES),
    "kept": (lambda: classification.MulticlassAUROC(5), SCORES, CLASSES),
    "columns": (lambda: classification.MulticlassAccuracy(5), SCORES, CLASSES[:, None].double()),
    "by process": (regression.PearsonCorrCoef, X[:, 0] + Y[:, 0], Y[:, 0]),
    "numbers": (regression.MeanSquaredError, X, Y),
}


@pytest.mark.parametrize("name", TORCH)
def test_metrics_of_torchmetrics(name: str) -> None:
    make, output, label = TORCH[name]
    metric = make()
    metric.update(output, label.flatten().long() if name == "columns" else label)
    assert_figure(spec_of(make()), (output, label), float(metric.compute()), 1e-5)


def test_objects_that_are_updated_batch_by_batch() -> None:
    total = float((Y - X).sum())
    for _ in range(2):  # an evaluation begins from zero
        figures = evaluated(spec_of(Own()), (X, Y), [9, 14])
        assert figures == pytest.approx({"m.sum": total, "m.mean": total / Y.numel()})
    assert evaluated(spec_of(Got()), (X, Y), [N]) == pytest.approx({"m": total})


def test_an_object_measures_both_stages_at_a_time() -> None:
    class Evaluates:
        def batch_end(self, estimator: Any) -> None:
            estimator.evaluate([(X[:9], Y[:9])], [])

    net = nn.Linear(3, 3).double()
    estimator = MultiEstimator(net, with_loss(Got()), TrainerSpec(".*", "sgd", {"lr": 0}))
    history = estimator.fit([(X[:9], Y[:9]), (X[9:], Y[9:])], epochs=1, event_handlers=[Evaluates()])
    assert history["train_m"] == [pytest.approx(float((Y - net(X)).sum().detach()))]


@pytest.mark.parametrize("metric", ["mae", "sklearn.mean_absolute_error", regression.MeanAbsoluteError()])
def test_a_transform_prepares_what_a_metric_gets(metric: Any) -> None:
    spec = spec_of(MetricSpec(metric, "o", "y", transform=lambda o, y: (y[:, 0], [o[:, 1]])))
    assert_figure(spec, (X, Y), sk.mean_absolute_error(Y[:, 0], X[:, 1]), 1e-6)  # torchmetrics has float32


def test_a_transform_may_return_numbers() -> None:
    spec = spec_of(MetricSpec(average, "o", "y", transform=lambda o, y: (float(y.sum()), [o.sum()])))
    errors = [float(y.sum() - x.sum()) ** 2 for x, y in zip(X.split([9, 14]), Y.split([9, 14]))]
    assert evaluated(spec, (X, Y), [9, 14])["m"] == pytest.approx(sum(errors) / 2)


# ---- names of figures

RECALL = classification.MulticlassRecall(5, average=None)


def test_figures_have_the_names_that_are_given_or_those_of_the_metric() -> None:
    expected = sk.recall_score(CLASSES, PREDICTED, average=None)
    given = MetricSpec(RECALL, "o", "y", names=list("abcde"))
    wrapped = torchmetrics.ClasswiseWrapper(RECALL)
    for metric, names in ((given, "abcde"), (wrapped, [f"multiclassrecall_{each}" for each in range(5)])):
        figures = evaluated(spec_of(metric), (SCORES, CLASSES), [N])
        assert [*figures] == [f"m.{name}" for name in names]
        np.testing.assert_allclose([*figures.values()], expected, rtol=1e-6)


# ---- mistakes

TWICE = type("Twice", (Got,), {"get": lambda self: (["a", "a"], [1, 2])})()
OF_MXNET = type("Accuracy", (Own,), {"__module__": "mxnet.metric"})()
# fmt: off
MISTAKES: dict[str, tuple[Any, Tensor, Tensor, str]] = {
    "name": ("accuracyy", X, Y, r'no metric \'accuracyy\' \(did you mean "accuracy"\?\); valid are "acc"'),
    "number": ("top_k_accuracy", X, Y, r"'top_k_accuracy' needs the number of classes; give \"top_5\""),
    "function": ("sklearn.f1_scor", X, Y, r"'sklearn.f1_scor' \(did you mean \"sklearn.f1_score\"\?\)"),
    "weight": (MetricSpec("mae", "o", "y", sample_weight="x"), X, Y,
               "sample_weight is passed to functions, and .* is none"),
    "collection": (torchmetrics.MetricCollection([regression.MeanSquaredError()]), X, Y,
                   "declare each of its metrics by"),
    "MXNet": (OF_MXNET, X, Y, "Accuracy takes MXNet's arrays; for a Py"),
    "sizes": ("mae", X, Y[:, :2], r"it compares value by value: labels \(23, 2\) .*, which differ"),
    "classes": ("accuracy", SCORES, Y, r"it takes a class for each label, and its scores along axis 1"),
    "one class": ("accuracy", SCORES[:, :1], CLASSES, "there is one score for each label, so that class 0"),
    "too few": ("top_7", SCORES, CLASSES, "there are no 7 classes"),
    "mixed": ("f1", SCORES, CLASSES, r"\d+ labels are neither 0 nor 1, and it is for two classes"),
    "mcc": ("mcc", SCORES, CLASSES, "neither 0 nor 1"),
    "unclear": ("accuracy", X, Y, "the outputs have the shape of the labels, but they hold no classes"),
    "one score": ("accuracy", TWO[:, 0], BINARY.double(), "the outputs have the shape of the labels"),
    "transform": (MetricSpec("mae", "o", "y", transform=lambda o, y: o), X, Y,
                  r"transform returned .*; it must return"),
    "no number": (lambda y, o: [1, 2], X, Y, r"its function returned \[1, 2\]; it must return a number"),
    "a value for each class": (classification.MulticlassConfusionMatrix(5), SCORES, CLASSES,
                               "a figure is a number"),
    "without names": (RECALL, SCORES, CLASSES, "returns 5 figures; give names="),
    "too few names": (MetricSpec(RECALL, "o", "y", names=["a"]), SCORES, CLASSES,
                      "returns 5 figures; names= gives 1"),
    "equal names": (TWICE, X, Y, 'returns two figures named "a"'),
}
# fmt: on


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    metric, output, label, message = MISTAKES[name]
    with pytest.raises(SpecError, match=r'metrics\["m"\]: .*' + message):
        evaluated(spec_of(metric), (output, label), [N])


def test_labels_must_be_as_many_as_outputs() -> None:
    metrics = {"m": MetricSpec("mae", "o", [])}
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=["y"], unused=["y"], metrics=metrics)
    with pytest.raises(SpecError, match="it compares labels with outputs one by one"):
        evaluated(spec, (X, Y), [N])


def test_arrays_of_later_batches_must_fit_those_of_the_first() -> None:
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=["y"], metrics={"m": MetricSpec(average, "o", "y")})
    with pytest.raises(SpecError, match=r"batch 2 has \(23, 2\) .*, and batch 1 \(23, 3\)"):
        MultiEstimator(Given(), spec).evaluate([(X, Y), (X, Y[:, :2])])


@pytest.mark.parametrize("metric", ["mae", Own(), average])
def test_labels_that_are_missing_in_part_where_whole_samples_are_needed(metric: Any) -> None:
    label = Y.clone()
    label[3, 1] = math.nan
    options = {"transform": lambda o, y: (y, o)} if metric == "mae" else {}
    spec = spec_of(MetricSpec(metric, "o", "y", **options), LabelSpec("y", missing="nan"))
    with pytest.raises(
        DataError, match=r'metrics\["m"\]: 1 value of "y" is missing in samples that have oth'
    ):
        evaluated(spec, (X, label), [N])
