"""Metrics of a pass: equal to their formulas, however the pass is cut into batches."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchmetrics import classification, regression

from multifit import DataError, LabelSpec, LossSpec, MetricSpec, SpecError, TaskSpec
from multifit.spec.terms import MetricTerm
from multifit.torch.figures import StageFigures
from multifit.torch.metrics import accuracy, binary_accuracy, named_metric, perplexity, top_k
from multifit.torch.stage_metric import as_metric
from tests.torch.native.results import measured, new_figures, result

N = 23
RANDOM = np.random.RandomState(0)


def floats(*shape: int) -> Tensor:
    return torch.tensor(RANDOM.randn(*shape), dtype=torch.float64)


SCORES, CLASSES = floats(N, 5), torch.tensor(RANDOM.randint(0, 5, N))
TWO, BINARY = floats(N, 2), torch.tensor(RANDOM.randint(0, 2, N))
PIXELS, MAP = floats(N, 3, 4, 2), torch.tensor(RANDOM.randint(0, 2, (N, 4, 2)))  # class 2 has no label
X, Y = floats(N, 3), floats(N, 3) + 2
TOKENS = SCORES.reshape(N, 1, 5).repeat(1, 2, 1)  # classes along the last axis

Function = Callable[[Any, Any], float]


def numpy(*tensors: Tensor) -> list[Any]:
    return [each.numpy() for each in tensors]


def iou(labels: Tensor, scores: Tensor) -> float:
    return float(sk.jaccard_score(labels.flatten(), scores.argmax(1).flatten(), average="macro"))


def predicted(scores: Tensor) -> Tensor:
    return scores.argmax(1)


CASES: dict[str, tuple[str, Tensor, Tensor, float]] = {
    "accuracy": ("accuracy", CLASSES, SCORES, sk.accuracy_score(CLASSES, predicted(SCORES))),
    "a column": ("acc", CLASSES[:, None], SCORES, sk.accuracy_score(CLASSES, predicted(SCORES))),
    "real labels": ("accuracy", CLASSES.double(), SCORES, sk.accuracy_score(CLASSES, predicted(SCORES))),
    "pixels": ("accuracy", MAP, PIXELS, float((PIXELS.argmax(1) == MAP).double().mean())),
    "tokens": (
        "accuracy",
        CLASSES[:, None].repeat(1, 2),
        TOKENS,
        sk.accuracy_score(CLASSES, predicted(SCORES)),
    ),
    "joined tokens": (
        "accuracy",
        torch.stack([CLASSES, CLASSES], 1),
        SCORES.repeat_interleave(2, 0),
        sk.accuracy_score(CLASSES, predicted(SCORES)),
    ),
    "one-hot": (
        "accuracy",
        nn.functional.one_hot(CLASSES, 5),
        SCORES,
        sk.accuracy_score(CLASSES, predicted(SCORES)),
    ),
    "classes": ("accuracy", CLASSES, predicted(SCORES), sk.accuracy_score(CLASSES, predicted(SCORES))),
    "binary": ("binary_accuracy", BINARY, TWO[:, :1], sk.accuracy_score(BINARY, TWO[:, 0] > 0)),
    "top 3": ("top_3", CLASSES, SCORES, sk.top_k_accuracy_score(CLASSES, SCORES, k=3)),
    "top 2": (
        "top_2_accuracy",
        MAP,
        PIXELS,
        float((PIXELS.topk(2, 1).indices == MAP[:, None]).double().sum() / MAP.numel()),
    ),
    "f1": ("f1", BINARY, TWO, sk.f1_score(BINARY, predicted(TWO))),
    "f1 of one score": ("f1", BINARY, TWO[:, 0], sk.f1_score(BINARY, TWO[:, 0] > 0)),
    "no f1": ("f1", BINARY * 0, TWO * 0, 0.0),
    "mcc": ("mcc", BINARY, TWO, sk.matthews_corrcoef(BINARY, predicted(TWO))),
    "no mcc": ("mcc", BINARY, TWO * 0, 0.0),
    "pcc": ("pcc", CLASSES, SCORES, sk.matthews_corrcoef(CLASSES, predicted(SCORES))),
    "pcc of a later class": (
        "pcc",
        CLASSES,
        SCORES[:, :4],
        sk.matthews_corrcoef(CLASSES, predicted(SCORES[:, :4])),
    ),
    "cross entropy": ("ce", CLASSES, SCORES.softmax(1), sk.log_loss(CLASSES, SCORES.softmax(1))),
    "of scores": ("nll_loss", CLASSES, SCORES, float(nn.functional.cross_entropy(SCORES, CLASSES))),
    "of log probabilities": (
        "ce",
        CLASSES,
        SCORES.log_softmax(1),
        float(nn.functional.cross_entropy(SCORES, CLASSES)),
    ),
    "of pixels": ("cross_entropy", MAP, PIXELS, float(nn.functional.cross_entropy(PIXELS, MAP))),
    "perplexity": ("perplexity", CLASSES, SCORES, math.exp(nn.functional.cross_entropy(SCORES, CLASSES))),
    "mae": ("mae", Y, X, sk.mean_absolute_error(Y, X)),
    "mse": ("mse", Y[:, 0], X[:, :1], sk.mean_squared_error(Y[:, 0], X[:, 0])),
    "rmse": ("rmse", Y, X, sk.mean_squared_error(Y, X) ** 0.5),
    "pearson": ("pearson", Y, X + Y, float(np.corrcoef(*numpy(Y.flatten(), (X + Y).flatten()))[0, 1])),
    "no pearson": ("pearsonr", Y * 0, X, math.nan),
    "pixel accuracy": ("pixel_accuracy", MAP, PIXELS, float((PIXELS.argmax(1) == MAP).double().mean())),
    "mean iou": ("mean_iou", MAP, PIXELS, iou(MAP, PIXELS)),
    "no class": ("ce", CLASSES + 1, SCORES, math.nan),
}


def spec_of(metric: Any, *labels: Any, **options: Any) -> TaskSpec:
    spec = metric if isinstance(metric, MetricSpec) else MetricSpec(metric, "o", "y", **options)
    return TaskSpec(inputs=["x"], outputs=["o"], labels=labels or ["y"], metrics={"m": spec})


def figure(spec: TaskSpec, label: Any, output: Any, sizes: list[int], **more: Any) -> float:
    slots = {"y": label, **more}
    return measured(spec, slots, {"o": output}, sizes).read()["m"]


@st.composite
def sizes(draw: Any) -> list[int]:
    """Batches of N samples; the first one has some."""
    cuts = sorted(draw(st.sets(st.integers(1, N - 1), max_size=6)))
    return [end - start for start, end in zip([0, *cuts], [*cuts, N])]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None)
@given(sizes())
def test_a_stock_metric_is_its_formula(name: str, cuts: list[int]) -> None:
    metric, label, output, expected = CASES[name]
    if name == "joined tokens":
        cuts = [N]  # the samples of outputs are others than those of labels
        figures = new_figures(spec_of(metric))
        figures.add(result(spec_of(metric), {"y": label}, {"o": output}))
        assert figures.read()["m"] == pytest.approx(expected)
        return
    assert figure(spec_of(metric), label, output, cuts) == pytest.approx(expected, nan_ok=True, rel=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "accuracy",
        "binary",
        "top 3",
        "mae",
        "rmse",
        "cross entropy",
        "mean iou",
        "f1",
        "pcc",
        "pearson",
        "perplexity",
        "pixels",
        "one-hot",
    ],
)
@settings(max_examples=5, deadline=None)
@given(sizes())
def test_missing_labels_do_not_count(name: str, cuts: list[int]) -> None:
    """Of labels with several values, single values or, if these are one-hot, whole samples."""
    metric, label, output, _ = CASES[name]
    there = torch.tensor(RANDOM.randint(0, 2, N if name == "one-hot" else label.shape), dtype=torch.bool)
    missing = label.double().clone()
    missing[~there] = math.nan
    spec = spec_of(metric, LabelSpec("y", missing="nan"))
    flat = output if output.dim() == label.dim() else output.movedim(1, -1)
    present = figure(spec_of(metric), label[there], flat[there], [len(label[there])])
    figures = measured(spec, {"y": missing}, {"o": output}, cuts).read()
    assert figures["m"] == pytest.approx(present, rel=1e-12)
    assert figures["coverage_y"] == pytest.approx(float(there.double().mean()))


def test_labels_that_are_ignored() -> None:
    label = MAP.clone()
    label[:, 0] = 255
    for name in ("pixel_accuracy", "mean_iou", "perplexity"):
        spec = spec_of(name, LabelSpec("y", classes=3, ignore=255))
        assert figure(spec, label, PIXELS, [N]) == pytest.approx(
            figure(spec, MAP[:, 1:], PIXELS[:, :, 1:], [9, 14])
        )
    assert figure(
        spec_of("pixel_accuracy"), torch.where(label == 255, -1, label), PIXELS, [N]
    ) == pytest.approx(figure(spec_of("pixel_accuracy"), MAP[:, 1:], PIXELS[:, :, 1:], [N]))
    spec = spec_of("perplexity", LabelSpec("y", missing="nan", ignore=1))
    kept = CLASSES != 1
    assert figure(spec, CLASSES.double(), SCORES, [N]) == pytest.approx(
        figure(spec_of("perplexity"), CLASSES[kept], SCORES[kept], [int(kept.sum())])
    )


def test_options_of_stock_metrics() -> None:
    for metric, label, output, expected in [
        (accuracy(-1), CLASSES[:, None].repeat(1, 2), TOKENS, sk.accuracy_score(CLASSES, predicted(SCORES))),
        (binary_accuracy(0.5), BINARY, TWO[:, 0].sigmoid(), sk.accuracy_score(BINARY, TWO[:, 0] > 0)),
        (top_k(3), CLASSES, SCORES, sk.top_k_accuracy_score(CLASSES, SCORES, k=3)),
        (perplexity(), CLASSES, SCORES, math.exp(nn.functional.cross_entropy(SCORES, CLASSES))),
    ]:
        assert as_metric(MetricTerm("m", MetricSpec(metric, "o", "y"), ()), spec_of("mae")) is metric
        sums, count = metric.sums(label, output, None)
        assert metric.figure([np.array([*map(float, sums), float(count)])]) == pytest.approx(expected)


def test_counts_are_exact_beyond_float32() -> None:
    spec = spec_of("accuracy")
    figures = new_figures(spec)
    right, wrong = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    many = 2**13
    label = torch.ones(many, many, dtype=torch.int64)[:1]
    for _ in range(2**12 + 40):
        figures.add(result(spec, {"y": label}, {"o": right[:, :, None].expand(1, 2, many)}))
    figures.add(result(spec, {"y": label[:, :1]}, {"o": wrong[:, :, None]}))
    total = many * (2**12 + 40) + 1
    assert total > 2**25 and figures.read()["m"] == (total - 1) / total


def test_several_outputs() -> None:
    """Errors are means over the pairs, as MXNet's; what is counted is counted together."""
    spec = TaskSpec(
        inputs=["x"],
        outputs=["a", "b"],
        labels=["c", "d"],
        metrics={
            "mse": MetricSpec("mse", ["a", "b"], ["c", "d"]),
            "f": MetricSpec(average, ["a", "b"], ["c", "d"]),
            "hits": MetricSpec("binary_accuracy", ["a", "b"], ["c", "d"]),
        },
    )
    slots, outputs = {"c": BINARY.double(), "d": Y}, {"a": TWO[:, 0], "b": X}
    figures = measured(spec, slots, outputs, [9, 14]).read()
    errors = [float(((TWO[:, 0] - BINARY) ** 2).mean()), float(((X - Y) ** 2).mean())]
    hits = ((TWO[:, 0] > 0) == (BINARY > 0.5)).sum() + ((X > 0) == (Y > 0.5)).sum()
    expected = {"mse": np.mean(errors), "f": errors[0] + errors[1], "hits": float(hits / (N + 3 * N))}
    assert figures == pytest.approx(expected)


def average(labels: Any, outputs: Any) -> float:
    pairs = zip(labels, outputs) if isinstance(labels, list) else [(labels, outputs)]
    return float(sum(((label - output) ** 2).mean() for label, output in pairs))


def test_values_of_losses() -> None:
    """A number is the loss of each sample."""
    spec = TaskSpec(
        inputs=["x"],
        outputs=["o"],
        labels=["y"],
        losses={
            "mean": LossSpec(nn.MSELoss(), "o", "y"),
            "each": LossSpec(lambda o, y: (abs(o - y).sum(1), o[:, 0]), "o", "y", returns=["a", "b"]),
        },
        metrics={"m": MetricSpec("loss", losses="mean"), "e": MetricSpec("loss", losses="each.b")},
    )
    figures = measured(spec, {"y": Y}, {"o": X}, [20, 3]).read()
    assert figures["m"] == pytest.approx(sk.mean_squared_error(Y, X))
    assert figures["e"] == pytest.approx(float(X[:, 0].mean())) == figures["each.b"]
    assert figures["each"] == figures["each.a"] == pytest.approx(sk.mean_absolute_error(Y, X) * 3)


def row_sum(output: Any, label: Any) -> Any:
    return (output - label).abs().sum(1)


@pytest.mark.parametrize("loss", [nn.L1Loss(reduction="none"), row_sum])
def test_values_of_losses_with_missing_labels(loss: Any) -> None:
    label = Y.clone()
    label[[0, 1, 2, 3, 12]] = math.nan
    if loss is not row_sum:
        label[7, 1] = math.nan
    spec = TaskSpec(
        inputs=["x"],
        outputs=["o"],
        labels=[LabelSpec("y", missing="nan")],
        losses={"l": LossSpec(loss, "o", "y")},
        metrics={"m": MetricSpec("loss", losses="l")},
    )
    there, errors = ~label.isnan(), (X - Y).abs()
    expected = errors.sum(1)[there.all(1)] if loss is row_sum else errors[there]
    assert measured(spec, {"y": label}, {"o": X}, [9, 14]).read()["m"] == pytest.approx(
        float(expected.mean())
    )


# ---- functions


FUNCTIONS: dict[str, tuple[Any, Tensor, Tensor, float]] = {
    "named": ("sklearn.f1_score", BINARY, TWO, sk.f1_score(BINARY, predicted(TWO))),
    "median": (lambda y, o: float(np.median(np.abs(y - o))), Y, X, float(np.median((Y - X).abs()))),
    "partial": (
        functools.partial(sk.f1_score, average="macro"),
        CLASSES,
        SCORES,
        sk.f1_score(CLASSES, predicted(SCORES), average="macro"),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=5, deadline=None)
@given(sizes())
def test_a_function_gets_the_whole_pass(name: str, cuts: list[int]) -> None:
    function, label, output, expected = FUNCTIONS[name]
    assert figure(spec_of(function), label, output, cuts) == pytest.approx(expected)


def test_a_function_gets_present_samples_and_weights() -> None:
    weights, label = torch.rand(N, dtype=torch.float64), Y[:, 0].clone()
    label[3:9] = math.nan
    spec = spec_of(
        MetricSpec("sklearn.mean_squared_error", "o", "y", sample_weight="w"),
        LabelSpec("y", missing="nan"),
        "w",
    )
    kept = ~label.isnan()
    expected = sk.mean_squared_error(label[kept], X[kept, 0], sample_weight=weights[kept])
    for cuts in ([N], [4, 2, 17]):  # the second batch has no label
        assert figure(spec, label, X[:, 0], cuts, w=weights) == pytest.approx(expected)


def test_a_function_that_needs_more_samples(caplog: pytest.LogCaptureFixture) -> None:
    def auc(labels: Any, outputs: Any) -> float:
        return float(sk.f1_score(labels, labels)) if len(labels) > 10 else float("x")

    spec = spec_of(auc)
    figures = measured(spec, {"y": BINARY}, {"o": TWO}, [6])
    figures.complete = False
    assert math.isnan(figures.read()["m"]) and math.isnan(figures.read()["m"])
    assert caplog.text.count("cannot be computed from the batches so far (could not convert") == 1
    assert "m" not in figures.read(quick=True)
    figures.complete = True
    with pytest.raises(ValueError, match="could not convert"):
        figures.read()


def test_what_a_function_returns_and_arrays_that_do_not_fit() -> None:
    with pytest.raises(
        SpecError, match=r'metrics\["m"\]: its function returned \[1, 2\]; it must return a number'
    ):
        figure(spec_of(lambda y, o: [1, 2]), BINARY, TWO, [N])
    figures = new_figures(spec_of(average))
    figures.add(result(figures._spec, {"y": Y}, {"o": X}))
    with pytest.raises(SpecError, match=r"batch 2 has \(23, 2\) .*, and batch 1 \(23, 3\)"):
        figures.add(result(figures._spec, {"y": Y[:, :2]}, {"o": X}))


# ---- objects


class Own:
    """A metric by the protocol."""

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
    "sums": (lambda: classification.MulticlassF1Score(5, average="macro"), CLASSES, SCORES),
    "kept": (lambda: classification.MulticlassAUROC(5), CLASSES, SCORES),
    "columns": (lambda: classification.MulticlassAccuracy(5), CLASSES[:, None].double(), SCORES),
    "by process": (lambda: regression.PearsonCorrCoef(), Y[:, 0], X[:, 0] + Y[:, 0]),
    "means": (lambda: torchmetrics.MeanMetric(), Y[:, 0], X[:, 0]),
    "numbers": (lambda: regression.MeanSquaredError(), Y.contiguous(), X.contiguous()),
}


@pytest.mark.parametrize("name", [name for name in TORCH if name != "means"])
@settings(max_examples=4, deadline=None)
@given(sizes())
def test_metrics_of_torchmetrics(name: str, cuts: list[int]) -> None:
    make, label, output = TORCH[name]
    metric = make()
    metric.update(output, label.flatten().long() if name == "columns" else label)
    assert figure(spec_of(make()), label, output, cuts) == pytest.approx(float(metric.compute()), rel=1e-5)


def test_objects_that_are_updated_batch_by_batch() -> None:
    metric = Own()
    spec = spec_of(MetricSpec(metric, "o", "y", mode="min"))
    figures = measured(spec, {"y": Y}, {"o": X.requires_grad_()}, [9, 14])
    X.requires_grad_(False)
    total = float((Y - X).sum())
    assert figures.read() == pytest.approx({"m.sum": total, "m.mean": total / Y.numel()})
    assert figures.names() == ["m.sum", "m.mean"] and figures.direction("m.sum") == "min"
    figures.reset()
    assert metric.count == 0 and math.isnan(figures.metrics[0].figures()["m.sum"])
    got = measured(spec_of(Got()), {"y": Y}, {"o": X}, [N])
    assert got.read() == pytest.approx({"m": total}) and got.direction("m") == "max"


def test_an_object_in_both_stages_is_copied() -> None:
    spec = spec_of(Own())
    train, evaluate = new_figures(spec), new_figures(spec, "evaluate")
    train.add(result(spec, {"y": Y}, {"o": X}))
    assert not evaluate.metrics[0].metric.count and train.metrics[0].metric.count
    assert not train.metrics[0].fork().metric.count


@pytest.mark.parametrize(
    "metric", ["mae", "sklearn.mean_absolute_error", Own(), regression.MeanAbsoluteError()]
)
def test_transform(metric: Any) -> None:
    spec = spec_of(MetricSpec(metric, "o", "y", transform=lambda o, y: (y[:, 0], [o[:, 1]])))
    figures = measured(spec, {"y": Y}, {"o": X}, [9, 14]).read()
    expected = {"m": sk.mean_absolute_error(Y[:, 0], X[:, 1])}
    if isinstance(metric, Own):
        total = float((Y[:, 0] - X[:, 1]).sum())
        expected = {"m.sum": total, "m.mean": total / N}
    assert figures == pytest.approx(expected)


def test_a_transform_returns_numbers() -> None:
    spec = spec_of(MetricSpec(average, "o", "y", transform=lambda o, y: (float(y.sum()), [o.sum()])))
    figures = measured(spec, {"y": Y}, {"o": X}, [9, 14])
    errors = [(float(Y[part].sum()) - float(X[part].sum())) ** 2 for part in (slice(0, 9), slice(9, N))]
    assert figures.read()["m"] == pytest.approx(sum(errors) / 2)


def test_a_restart_forgets_names() -> None:
    figures = measured(spec_of(Own()), {"y": Y}, {"o": X}, [N])
    assert figures.names() == ["m.sum", "m.mean"]
    figures.metrics[0].restart()
    assert figures.names() == ["m"]


@pytest.mark.parametrize("metric", ["mae", Own(), lambda y, o: 0.0])
def test_whole_samples_that_are_missing_in_part(metric: Any) -> None:
    label = Y.clone()
    label[3, 1] = math.nan
    options = {} if metric != "mae" else {"transform": lambda o, y: (y, o)}
    spec = spec_of(MetricSpec(metric, "o", "y", **options), LabelSpec("y", missing="nan"))
    with pytest.raises(
        DataError, match=r'metrics\["m"\]: 1 value of "y" is missing in samples that have others, and'
    ):
        measured(spec, {"y": label}, {"o": X}, [N])


# ---- mistakes

MISTAKES: dict[str, tuple[Any, str]] = {
    "name": (
        "accuracyy",
        r'there is no metric \'accuracyy\' \(did you mean "accuracy"\?\); valid are "acc", "acc',
    ),
    "number": ("top_k_accuracy", r"'top_k_accuracy' needs the number of classes; give \"top_5\""),
    "function": (
        "sklearn.f1_scor",
        r'there is no metric \'sklearn.f1_scor\' \(did you mean "sklearn.f1_score"\?\)',
    ),
    "weight": (
        MetricSpec("mae", "o", "y", sample_weight="x"),
        "sample_weight is passed to functions, and .* is none",
    ),
    "collection": (
        torchmetrics.MetricCollection([regression.MeanSquaredError()]),
        "declare each of its metrics by",
    ),
    "MXNet": (
        type("Accuracy", (Own,), {"__module__": "mxnet.metric"})(),
        "Accuracy takes MXNet's arrays; for a Py",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_metrics_that_cannot_be(name: str) -> None:
    metric, message = MISTAKES[name]
    with pytest.raises(SpecError, match=r'metrics\["m"\]: .*' + message):
        new_figures(spec_of(metric))


UNFIT: dict[str, tuple[Any, Tensor, Tensor, str]] = {
    "sizes": ("mae", Y[:, :2], X, r"it compares value by value: labels \(23, 2\) .*, which differ"),
    "samples": ("mae", Y[:, :1].T, X[:, :1], "which differ"),
    "classes": ("accuracy", Y, SCORES, r"it takes a class for each label, and its scores along axis 1"),
    "too few": ("top_7", CLASSES, SCORES, "there are no 7 classes"),
    "mixed": ("f1", CLASSES, SCORES, r"\d+ labels are neither 0 nor 1, and it is for two classes"),
    "mcc": ("mcc", CLASSES, SCORES, "neither 0 nor 1"),
    "unclear": ("accuracy", Y, X, "the outputs have the shape of the labels, but they hold no classes"),
    "one score": ("accuracy", BINARY.double(), TWO[:, 0], "the outputs have the shape of the labels"),
    "transform": (
        MetricSpec("mae", "o", "y", transform=lambda o, y: o),
        Y,
        X,
        r"transform returned .*; it must return",
    ),
    "pairs": (MetricSpec("mae", "o", []), Y, X, "it compares labels with outputs one by one"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_arrays_that_a_metric_cannot_take(name: str) -> None:
    metric, label, output, message = UNFIT[name]
    labels = ["y"] if name == "pairs" else []
    spec = (
        spec_of(metric)
        if not labels
        else TaskSpec(inputs=["x"], outputs=["o"], labels=["y"], unused=["y"], metrics={"m": metric})
    )
    with pytest.raises(SpecError, match=r'metrics\["m"\]: .*' + message):
        figure(spec, label, output, [N])


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (classification.MulticlassRecall(5, average=None), "returns 5 figures; give names="),
        (
            MetricSpec(classification.MulticlassRecall(5, average=None), "o", "y", names=["a"]),
            "returns 5 figures; names= gives 1",
        ),
        (
            type("Twice", (Got,), {"get": lambda self: (["a", "a"], [1, 2])})(),
            'returns two figures named "a"',
        ),
    ],
)
def test_figures_without_names(metric: Any, message: str) -> None:
    figures = measured(
        spec_of(metric), {"y": CLASSES}, {"o": SCORES[:, 0] if isinstance(metric, Own) else SCORES}, [N]
    )
    (problem,) = figures.name_problems()
    assert message in problem.message and problem.message.startswith('metrics["m"]: ')


def test_shared_names_and_named_figures() -> None:
    recall = classification.MulticlassRecall(5, average=None)
    named = MetricSpec(recall, "o", "y", names=list("abcde"))
    figures = measured(spec_of(named), {"y": CLASSES}, {"o": SCORES}, [N])
    assert not figures.name_problems() and figures.names() == [f"m.{each}" for each in "abcde"]
    np.testing.assert_allclose(
        list(figures.read().values()), sk.recall_score(CLASSES, predicted(SCORES), average=None), rtol=1e-6
    )
    wrapped = torchmetrics.ClasswiseWrapper(recall)
    spec = TaskSpec(
        inputs=["x"],
        outputs=["o"],
        labels=["y"],
        metrics={
            "m": MetricSpec(wrapped, "o", "y"),
            "m.multiclassrecall_0": MetricSpec("accuracy", "o", "y"),
        },
    )
    figures = measured(spec, {"y": CLASSES}, {"o": SCORES}, [N])
    assert "is produced by metrics" in str(figures.name_problems()[0])


def test_a_value_for_each_class_is_no_figure() -> None:
    with pytest.raises(SpecError, match="a figure is a number"):
        figure(spec_of(classification.MulticlassConfusionMatrix(5)), CLASSES, SCORES, [N])


def test_places_and_names() -> None:
    places = {
        "summed on the device": "mae",
        "computed from the whole pass": "sklearn.mean_absolute_error",
        "updated batch by batch": Own(),
    }
    for place, metric in places.items():
        assert new_figures(spec_of(metric)).metrics[0].where_computed == place
    assert {named_metric("m", name).mode for name in ("mae", "rmse", "loss", "ce", "perplexity")} == {"min"}
    assert isinstance(new_figures(spec_of("mae")), StageFigures)
