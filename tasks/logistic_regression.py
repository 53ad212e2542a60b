"""Logistic regression: whether a breast tumour is benign, by 30 measures of its cells.

One dense layer with two outputs and a softmax loss: the smallest net there is. The data are scikit-learn's
569 real cases, or a CSV file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from multifit import MetricSpec, TaskSpec, TrainerSpec

from mxnet import gluon, metric  # isort: skip

epochs = 20
batch_size = 32
rate = 0.1
data_: Literal["cancer", "csv"] = "cancer"
root = (
    ""  # for data=csv: a file with a line of titles, a column for each measure, and the class, 0 or 1, last
)

KINDS = ("malignant", "benign")


def _cases():
    """Return measures (N, M), classes (N,), the measures' names, and how many cases are to train on."""
    if data_ == "cancer":
        from sklearn.datasets import load_breast_cancer

        cases = load_breast_cancer()
        order = np.random.RandomState(0).permutation(len(cases.target))  # the same split whatever the seed
        return cases.data[order], cases.target[order], list(cases.feature_names), 400
    if not Path(root).is_file():
        raise FileNotFoundError(
            f"data=csv: there is no file {root or '(root is not set)'}; it must hold a line of titles, then "
            "a case in each line: measures, and last the class, 0 or 1: --set data=csv root=FILE"
        )
    titles = Path(root).read_text("utf-8").split("\n", 1)[0].strip().split(",")
    rows = np.loadtxt(root, delimiter=",", skiprows=1, ndmin=2)
    return rows[:, :-1], rows[:, -1], titles[:-1], round(0.7 * len(rows))


def _standardised(measures):
    """Return measures as multiples of what is usual among the cases to train on."""
    known, _, _, count = _cases()
    return ((measures - known[:count].mean(axis=0)) / (known[:count].std(axis=0) + 1e-9)).astype("float32")


def net():
    """Return the net; the estimator initialises it."""
    return gluon.nn.Dense(2)


def spec():
    """Say what the loss and the metrics take."""
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
    """Move both weights and biases by plain gradient descent, drawn a little towards zero."""
    return TrainerSpec(".*", "sgd", {"learning_rate": rate, "wd": 1e-3})


def data():
    """Return loaders of the cases to train on and of the others."""
    measures, kind, _, count = _cases()
    columns = _standardised(measures), kind.astype("int32")
    train, val = (gluon.data.ArrayDataset(*(c[part] for c in columns)) for part in np.s_[:count, count:])
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def pictures(net, estimator, data):
    """Draw what was said of what, and which measures speak for which kind."""
    from matplotlib.figure import Figure
    from parts.confusion import confusion

    truth = np.concatenate([kind.asnumpy() for _, kind in data[1]])
    said = estimator.predict(data[1])["kind"].argmax(axis=1)
    weight = net.weight.data(estimator.context[0]).asnumpy()
    lean, names = weight[1] - weight[0], _cases()[2]
    order = np.argsort(lean)
    sheet = Figure(figsize=(7, 1.5 + 0.2 * len(names)), layout="constrained")
    axes = sheet.add_subplot()
    colours = np.where(lean[order] < 0, "tab:red", "tab:blue")
    axes.barh([names[i] for i in order], lean[order], color=colours)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel(f"speaks for {KINDS[0]}  <  0  <  speaks for {KINDS[1]}")
    axes.set_title("weight of each measure, standardised", fontsize=11)
    return {"confusion": confusion(truth, said, KINDS, "held-out cases"), "weights": sheet}


def inputs(arguments):
    """Read rows of comma-separated measures."""
    return _standardised(np.array([row.split(",") for row in arguments], "float64"))


def show(outputs):
    """Say which kind each row is, and how sure that is."""
    sure = 1 / (1 + np.exp(outputs["kind"][:, 0] - outputs["kind"][:, 1]))  # of being benign
    return [f"{KINDS[int(p > 0.5)]} ({max(p, 1 - p):.2f})" for p in sure]
