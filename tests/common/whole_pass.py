"""Every stock metric, and functions, on a net whose outputs are its inputs, and their figures of a pass."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn import metrics as sk

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.metrics import BinaryAccuracy

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

M = mx.metric
SAMPLES = 42
UNMEASURED = -1  # of the label "some"


class Net(gluon.HybridBlock):
    """Scores of five classes, their chances, scores of two, three numbers and one, all of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = gluon.nn.Dense(1, in_units=5)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        five = F.broadcast_add(x, 0 * self.shift(x))
        return (
            five, F.softmax(five), F.slice_axis(five, axis=1, begin=0, end=2),
            F.slice_axis(five, axis=1, begin=1, end=4), F.slice_axis(five, axis=1, begin=4, end=5),
        )  # fmt: skip


class Renamed(M.MAE):
    """A subclass that is updated as its base is."""

    def __init__(self) -> None:
        super().__init__("renamed")


def arrays() -> list[np.ndarray]:
    """Return the inputs and labels of a pass; one class of two is rare, and errors are very unequal."""
    random = np.random.RandomState(4)
    x = random.randn(SAMPLES, 5)
    five, two = random.randint(0, 5, SAMPLES), random.rand(SAMPLES) < 0.2
    real, one = x[:, 1:4] + random.randn(SAMPLES, 3) ** 3, x[:, 4] + random.randn(SAMPLES) ** 3
    some = np.where(random.rand(SAMPLES) < 0.3, UNMEASURED, five)
    return [array.astype("float32") for array in (x, five, two, real, one, some)]


def cut(sizes: Sequence[int]) -> list[tuple[np.ndarray, ...]]:
    """Return the pass in batches of these sizes, then one with the rest."""
    ends = np.cumsum(sizes)
    return [
        batch
        for batch in zip(*(np.split(array, ends[ends < SAMPLES]) for array in arrays()))
        if len(batch[0])
    ]


def flat(output: Any, label: Any) -> Any:
    """A transform."""
    return label.reshape((-1,)), output.reshape((-1,)) * 2


def as_numpy(output: Any, label: Any) -> Any:
    """A transform that leaves MXNet."""
    return label.asnumpy(), [output.asnumpy()]


def median(label: np.ndarray, output: np.ndarray) -> float:
    """A function that is no mean."""
    return float(np.median(np.abs(label.ravel() - output.ravel())))


def both(labels: list[np.ndarray], outputs: list[np.ndarray]) -> float:
    """A function of several labels and outputs."""
    return float(np.median(labels[0].ravel() * outputs[1][:, 0]) + np.ptp(labels[1] - outputs[0]))


def rank(label: np.ndarray, score: np.ndarray) -> float:
    """The area under the ROC curve, which needs both classes."""
    return float(sk.roc_auc_score(label, score[:, 1] - score[:, 0]))


def table() -> list[tuple[str, MetricSpec, Any]]:
    """Return names, new metrics and their figures over the whole pass, by scikit-learn and NumPy."""
    x, five, two, real, one, some = (array.astype("float64") for array in arrays())
    chance = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    entropy = -np.log(chance[np.arange(SAMPLES), five.astype(int)])
    there, best, answers = some != UNMEASURED, x.argmax(1), x[:, :2].argmax(1)
    error, error_of_one, twice = np.abs(x[:, 1:4] - real), np.abs(x[:, 4] - one), np.abs(2 * x[:, 1:4] - real)
    squares, squares_of_one = (error**2).mean(), (error_of_one**2).mean()
    pearson = np.corrcoef(x[:, 1:4].ravel(), real.ravel())[0, 1]
    f1, mcc = sk.f1_score(two, answers), sk.matthews_corrcoef(two, answers)
    accuracy, matthews = sk.accuracy_score(five, best), sk.matthews_corrcoef(five, best)
    top = [sk.top_k_accuracy_score(five, x, k=k) for k in (2, 3)]
    stock: dict[str, list[tuple[Any, Any]]] = {
        "five": [
            (M.Accuracy(), accuracy), (M.TopKAccuracy(2), top[0]), (M.PCC(), matthews),
            (M.CompositeEvalMetric([M.Accuracy(), M.TopKAccuracy(3)]),
             {"accuracy": accuracy, "top_k_accuracy_3": top[1]}),
        ],
        "chance": [
            (M.CrossEntropy(), entropy.mean()), (M.NegativeLogLikelihood(), entropy.mean()),
            (M.Perplexity(None), np.exp(entropy.mean())),
            (M.Perplexity(2, name="but 2"), np.exp(entropy[five != 2].mean())),
        ],
        "two": [
            (M.F1(), f1), (M.F1(average="micro", name="f1 micro"), f1),
            (M.MCC(), mcc), (M.MCC(average="micro", name="mcc micro"), mcc),
            (M.CompositeEvalMetric([M.F1(), M.PCC()], "with pcc"), {"f1": f1, "pcc": mcc}),
        ],
        "real": [
            (M.MAE(), error.mean()), (M.MSE(), squares), (M.RMSE(), np.sqrt(squares)),
            (M.PearsonCorrelation(), pearson),
            (M.PearsonCorrelation(average="micro", name="pearson micro"), pearson),
            (M.CustomMetric(median, "custom"), np.median(error)),
            (M.np(lambda label, pred: (float(np.abs(label - pred).max()), 1), "largest"), error.max()),
        ],
        "one": [
            (M.MAE("mae of one"), error_of_one.mean()), (Renamed(), error_of_one.mean()),
            (BinaryAccuracy(), ((one > 0.5) == (x[:, 4] > 0)).mean()),
        ],
    }  # fmt: skip
    of_real, of_two, label = ("real", "real"), (["real", "one"], ["real", "one"]), {"chance": "five"}
    half, f1_macro = (error**2).mean(1) / 2, partial(sk.f1_score, average="macro")
    return [
        *((metric.name, MetricSpec(metric, output, label.get(output, output)), value)
          for output, rows in stock.items() for metric, value in rows),
        *((f"{each.name} output", MetricSpec(each, "real"), x[:, 1:4].mean())
          for each in (M.Loss(), M.Torch(), M.Caffe())),
        ("loss of real", MetricSpec(M.Loss(), losses="real"), half.mean()),
        ("rmse of two", MetricSpec(M.RMSE(), *of_two), (np.sqrt(squares) + np.sqrt(squares_of_one)) / 2),
        ("mae and mse of two", MetricSpec(M.CompositeEvalMetric([M.MAE(), M.MSE()]), *of_two),
         {"mae": (error.mean() + error_of_one.mean()) / 2, "mse": (squares + squares_of_one) / 2}),
        ("rmse of twice", MetricSpec(M.RMSE(), *of_real, transform=flat), np.sqrt((twice**2).mean())),
        ("mae in numpy", MetricSpec(M.MAE(), *of_real, transform=as_numpy), error.mean()),
        ("pearson of twice", MetricSpec(M.PearsonCorrelation(), *of_real, transform=flat), pearson),
        ("some", MetricSpec(M.Accuracy(), "five", "some"), sk.accuracy_score(some[there], best[there])),
        ("entropy of some", MetricSpec(M.CrossEntropy(), "chance", "some"), entropy[there].mean()),
        ("f1 of some", MetricSpec(lambda y, p: f1_macro(y, p.argmax(1)), "five", "some"),
         f1_macro(some[there], best[there])),
        ("median", MetricSpec(median, *of_real), np.median(error)),
        ("median of twice", MetricSpec(median, *of_real, transform=flat), np.median(twice)),
        ("median of losses", MetricSpec(lambda _, loss: float(np.median(loss)), losses="real"),
         np.median(half)),
        ("both", MetricSpec(both, ["real", "five"], ["one", "real"]),
         np.median(one * x[:, 0]) + np.ptp(real - x[:, 1:4])),
        ("rank", MetricSpec(rank, "two", "two"), sk.roc_auc_score(two, x[:, 1] - x[:, 0])),
        ("f1 function", MetricSpec(lambda y, p: sk.f1_score(y, p.argmax(1)), "two", "two"), f1),
    ]  # fmt: skip


def expected() -> dict[str, float]:
    """Return the figures over the whole pass by name."""
    rows = [(name, value if isinstance(value, dict) else {"": value}) for name, _, value in table()]
    return {
        f"{name}.{part}" if part else name: value for name, parts in rows for part, value in parts.items()
    }


def estimator(devices: Any = None, hybrid: bool = True, **options: Any) -> MultiEstimator:
    """Return an estimator with all metrics, which does not learn."""
    names = ["five", "chance", "two", "real", "one"]
    labels = ["five", "two", "real", "one", LabelSpec("some", missing=UNMEASURED)]
    losses = {"real": LossSpec(gluon.loss.L2Loss(), "real", "real")}
    metrics = {name: metric for name, metric, _ in table()}
    spec = TaskSpec(outputs=names, labels=labels, losses=losses, metrics=metrics, inputs=["x"])
    net = Net()
    net.initialize(mx.init.One(), ctx=devices)
    if hybrid:
        net.hybridize()
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})
    return MultiEstimator(net, spec, trainer, context=devices, **options)


def assert_whole(figures: dict[str, float]) -> None:
    """Check that figures, without prefix, are those of the whole pass."""
    found = {name: figures[name] for name in expected()}
    np.testing.assert_allclose(list(found.values()), list(expected().values()), rtol=2e-5, err_msg=str(found))
