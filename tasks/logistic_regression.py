"""Logistic regression tells benign from malignant breast tumours, by 30 measures of their cells.

One dense layer with two outputs and a softmax loss: the smallest possible net. The data are scikit-learn's
569 real cases, or a CSV file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from multifit import Interpretation, MetricSpec, TaskSpec, TrainerSpec

from mxnet import gluon, metric  # isort: skip

epochs = 20
batch_size = 32
rate = 0.1
dataset: Literal["cancer", "csv"] = "cancer"
root = ""  # for dataset=csv: a file with a line of titles, columns of measures, and last the class, 0 or 1

KINDS = ("malignant", "benign")


def _cases():
    """Return measures (N, M), classes (N,), the names of the measures, and the number of training cases."""
    if dataset == "cancer":
        from sklearn.datasets import load_breast_cancer

        cases = load_breast_cancer()
        order = np.random.RandomState(0).permutation(len(cases.target))  # the same split for every seed
        return cases.data[order], cases.target[order], list(cases.feature_names), 400
    if not Path(root).is_file():
        raise FileNotFoundError(
            f"dataset=csv: there is no file {root or '(root is not set)'}; it must hold a line of titles, "
            "then a case in each line: measures, and last the class, 0 or 1: --set dataset=csv root=FILE"
        )
    titles = Path(root).read_text("utf-8").split("\n", 1)[0].strip().split(",")
    rows = np.loadtxt(root, delimiter=",", skiprows=1, ndmin=2)
    return rows[:, :-1], rows[:, -1], titles[:-1], round(0.7 * len(rows))


def _standardised(measures):
    """Return measures scaled by mean and standard deviation of the training cases."""
    cases, _, _, count = _cases()
    train = cases[:count]
    return ((measures - train.mean(axis=0)) / (train.std(axis=0) + 1e-9)).astype("float32")


def net():
    """Return the net; the estimator initialises it."""
    dense = gluon.nn.Dense(2)
    dense.hybridize()
    return dense


def spec():
    """Declare the loss and the metrics."""
    return TaskSpec(
        inputs=["measures"],
        outputs=["kind"],
        labels=["kind"],
        losses={"kind": gluon.loss.SoftmaxCrossEntropyLoss()},
        metrics={
            "accuracy": MetricSpec(metric.Accuracy(), outputs="kind", labels="kind"),
            "f1": MetricSpec(metric.F1(), outputs="kind", labels="kind"),
        },
    )


def trainers():
    """Return plain gradient descent with a little weight decay."""
    return TrainerSpec(".*", "sgd", {"learning_rate": rate, "wd": 1e-3})


def data():
    """Return loaders of the training cases and of the held-out ones."""
    measures, kind, _, count = _cases()
    columns = _standardised(measures), kind.astype("int32")
    train, val = (gluon.data.ArrayDataset(*(c[part] for c in columns)) for part in np.s_[:count, count:])
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def pictures(net, estimator, data):
    """Draw the confusion matrix, and the weight of each measure."""
    from matplotlib.figure import Figure

    found = Interpretation()
    estimator.evaluate(data[1], event_handlers=[found])
    weight = net.weight.data(estimator.context[0]).asnumpy()
    difference, names = weight[1] - weight[0], _cases()[2]
    order = np.argsort(difference)
    sheet = Figure(figsize=(7, 1.5 + 0.2 * len(names)), layout="constrained")
    axes = sheet.add_subplot()
    colours = np.where(difference[order] < 0, "tab:red", "tab:blue")
    axes.barh([names[i] for i in order], difference[order], color=colours)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel(f"speaks for {KINDS[0]}  <  0  <  speaks for {KINDS[1]}")
    axes.set_title("weight of each measure, standardised", fontsize=11)
    return {**found.plots({"kind": KINDS}), "weights": sheet}


def inputs(arguments):
    """Read rows of comma-separated measures."""
    return _standardised(np.array([row.split(",") for row in arguments], "float64"))


def show(outputs):
    """Return the kind of each row, with the probability."""
    benign = 1 / (1 + np.exp(outputs["kind"][:, 0] - outputs["kind"][:, 1]))  # the probability of that kind
    return [f"{KINDS[int(p > 0.5)]} ({max(p, 1 - p):.2f})" for p in benign]
