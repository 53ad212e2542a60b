"""Every stock metric, and functions, on a net whose outputs are its inputs, and their figures of a pass."""

from collections.abc import Sequence
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


def metrics() -> dict[str, MetricSpec]:
    """Return new metrics by name."""
    named = {
        "five": [
            M.Accuracy(), M.TopKAccuracy(2), M.PCC(),
            M.CompositeEvalMetric([M.Accuracy(), M.TopKAccuracy(3)]),
        ],
        "chance": [M.CrossEntropy(), M.NegativeLogLikelihood(), M.Perplexity(None),
            M.Perplexity(2, name="but 2"),
        ],
        "two": [
            M.F1(), M.F1(average="micro", name="f1 micro"), M.MCC(), M.MCC(average="micro", name="mcc micro"),
            M.CompositeEvalMetric([M.F1(), M.PCC()], "with pcc"),
        ],
        "real": [
            M.MAE(), M.MSE(), M.RMSE(), M.PearsonCorrelation(),
            M.PearsonCorrelation(average="micro", name="pearson micro"), M.CustomMetric(median, "custom"),
            M.np(lambda label, pred: (float(np.abs(label - pred).max()), 1), "largest"),
        ],
        "one": [M.MAE("mae of one"), BinaryAccuracy(), Renamed()],
    }  # fmt: skip
    labels = {"chance": "five"}
    specs = {
        metric.name: MetricSpec(metric, output, labels.get(output, output))
        for output, stock in named.items()
        for metric in stock
    }
    for metric in (M.Loss(), M.Torch(), M.Caffe()):
        specs[f"{metric.name} output"] = MetricSpec(metric, "real")
    two_pairs = {"outputs": ["real", "one"], "labels": ["real", "one"]}
    return {
        **specs,
        "loss of real": MetricSpec(M.Loss(), losses="real"),
        "rmse of two": MetricSpec(M.RMSE(), **two_pairs),
        "mae and mse of two": MetricSpec(M.CompositeEvalMetric([M.MAE(), M.MSE()]), **two_pairs),
        "rmse of twice": MetricSpec(M.RMSE(), "real", "real", transform=flat),
        "mae in numpy": MetricSpec(M.MAE(), "real", "real", transform=as_numpy),
        "pearson of twice": MetricSpec(M.PearsonCorrelation(), "real", "real", transform=flat),
        "some": MetricSpec(M.Accuracy(), "five", "some"),
        "entropy of some": MetricSpec(M.CrossEntropy(), "chance", "some"),
        "f1 of some": MetricSpec(lambda y, p: sk.f1_score(y, p.argmax(1), average="macro"), "five", "some"),
        "median": MetricSpec(median, "real", "real"),
        "median of twice": MetricSpec(median, "real", "real", transform=flat),
        "median of losses": MetricSpec(lambda _, loss: float(np.median(loss)), losses="real"),
        "both": MetricSpec(both, ["real", "five"], ["one", "real"]),
        "rank": MetricSpec(rank, "two", "two"),
        "f1 function": MetricSpec(lambda y, p: sk.f1_score(y, p.argmax(1)), "two", "two"),
    }


def expected() -> dict[str, float]:
    """Return the figures over the whole pass, by scikit-learn and NumPy."""
    x, five, two, real, one, some = (array.astype("float64") for array in arrays())
    chance = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    entropy = -np.log(chance[np.arange(SAMPLES), five.astype(int)])
    there = some != UNMEASURED
    error, error_of_one, answers = np.abs(x[:, 1:4] - real), np.abs(x[:, 4] - one), x[:, :2].argmax(1)
    pearson = np.corrcoef(x[:, 1:4].ravel(), real.ravel())[0, 1]
    f1, mcc = sk.f1_score(two, answers), sk.matthews_corrcoef(two, answers)
    mean, loss = x[:, 1:4].mean(), (error**2).mean() / 2
    twice = np.abs(2 * x[:, 1:4] - real)
    return {
        "accuracy": sk.accuracy_score(five, x.argmax(1)),
        "top_k_accuracy_2": sk.top_k_accuracy_score(five, x, k=2),
        "pcc": sk.matthews_corrcoef(five, x.argmax(1)),
        "composite.accuracy": sk.accuracy_score(five, x.argmax(1)),
        "composite.top_k_accuracy_3": sk.top_k_accuracy_score(five, x, k=3),
        "cross-entropy": entropy.mean(),
        "nll-loss": entropy.mean(),
        "perplexity": np.exp(entropy.mean()),
        "but 2": np.exp(entropy[five != 2].mean()),
        "f1": f1,
        "f1 micro": f1,
        "mcc": mcc,
        "mcc micro": mcc,
        "with pcc.f1": f1,
        "with pcc.pcc": mcc,
        "mae": error.mean(),
        "mse": (error**2).mean(),
        "rmse": np.sqrt((error**2).mean()),
        "pearsonr": pearson,
        "pearson micro": pearson,
        "custom": np.median(error),
        "largest": error.max(),
        "mae of one": error_of_one.mean(),
        "renamed": error_of_one.mean(),
        "binary_accuracy": ((one > 0.5) == (x[:, 4] > 0)).mean(),
        "loss output": mean,
        "torch output": mean,
        "caffe output": mean,
        "loss of real": loss,
        "rmse of two": (np.sqrt((error**2).mean()) + np.sqrt((error_of_one**2).mean())) / 2,
        "mae and mse of two.mae": (error.mean() + error_of_one.mean()) / 2,
        "mae and mse of two.mse": ((error**2).mean() + (error_of_one**2).mean()) / 2,
        "rmse of twice": np.sqrt((twice**2).mean()),
        "mae in numpy": error.mean(),
        "pearson of twice": pearson,
        "some": sk.accuracy_score(some[there], x[there].argmax(1)),
        "entropy of some": entropy[there].mean(),
        "f1 of some": sk.f1_score(some[there], x[there].argmax(1), average="macro"),
        "median": np.median(error),
        "median of twice": np.median(twice),
        "median of losses": np.median((error**2).mean(1) / 2),
        "both": np.median(one * x[:, 0]) + np.ptp(real - x[:, 1:4]),
        "rank": sk.roc_auc_score(two, x[:, 1] - x[:, 0]),
        "f1 function": f1,
    }


def estimator(devices: Any = None, hybrid: bool = True, **options: Any) -> MultiEstimator:
    """Return an estimator with all metrics, which does not learn."""
    names = ["five", "chance", "two", "real", "one"]
    labels = ["five", "two", "real", "one", LabelSpec("some", missing=UNMEASURED)]
    losses = {"real": LossSpec(gluon.loss.L2Loss(), "real", "real")}
    spec = TaskSpec(outputs=names, labels=labels, losses=losses, metrics=metrics(), inputs=["x"])
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
