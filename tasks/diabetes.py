"""The progression of diabetes, and three measures of a patient, learnt although labels are missing.

The share ``missing`` of the training data's labels is removed at random; the four tasks learn from the labels
that are there. ``--set keep=complete`` instead drops each patient who lacks a label, as one must without
support for missing labels. ``--set method=UPGrad`` lets a method of multifit.balance weigh the tasks, and
``multifit train --only pressure`` trains one task alone. The data are scikit-learn's 442 real patients. The
figures are R², the explained share of the variance.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from mxnet import gluon, init
from mxnet.gluon import nn
from sklearn.datasets import load_diabetes

from multifit import LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit import balance as balances

COLUMNS = {"progression": 10, "mass": 2, "pressure": 3, "lipid": 8, "glucose": 9}
TRAINED = 332  # patients to train on; the others are held out

epochs = 30
batch_size = 32
rate = 3e-3
units = 32
missing = 0.4  # the share of the training data's labels that is removed
keep: Literal["all", "complete"] = "all"
blood: Literal["lipid", "glucose"] = "lipid"  # the fourth task
method = ""


def tasks():
    """Return the names of all four tasks."""
    return ("progression", "mass", "pressure", blood)


class Patient(nn.HybridBlock):
    """A dense body, and a head with one output for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Dense(units, activation="tanh"), nn.HybridSequential()
        self.heads.add(*(nn.Dense(1) for _ in tasks()))

    def hybrid_forward(self, F, measures):
        """Return each task's output, (N, 1), for measures (N, 7)."""
        features = self.body(measures)
        return [head(features) for head in self.heads]


def net():
    """Return the net; the estimator initialises it."""
    patient = Patient()
    patient.hybridize()
    return patient


def initializer():
    """Return the initializer of the weights."""
    return init.Xavier()


def explained(labels, outputs):
    """Return R² for all standardised labels."""
    return 1 - ((labels - outputs) ** 2).mean() / labels.var()


def spec():
    """Declare which labels may be missing, and an output, a loss and a metric for each task."""
    return TaskSpec(
        inputs=["measures"],
        outputs=[f"{task}_out" for task in tasks()],
        labels=[LabelSpec(task, missing="nan") for task in tasks()],
        losses={task: LossSpec(gluon.loss.L2Loss(), f"{task}_out", task) for task in tasks()},
        metrics={
            f"{task}_r2": MetricSpec(explained, f"{task}_out", task, mode="max", stage="evaluate")
            for task in tasks()
        },
    )


def trainers():
    """Return one trainer for all parameters."""
    return TrainerSpec(".*", "adam", {"learning_rate": rate})


def balance():
    """Return the method that weighs the tasks; None for the sum of their losses."""
    return getattr(balances, method)() if method else None


def data():
    """Return a loader of training patients, who lack some labels, and one of the 110 others, in one batch."""
    measures, labels = patients()
    if keep == "complete":
        complete = ~np.isnan(labels).any(axis=1)
        measures, labels = measures[complete], labels[complete]
    columns = [measures, *np.split(labels, len(tasks()), axis=1)]
    train, val = (gluon.data.ArrayDataset(*(c[part] for c in columns)) for part in np.s_[:-110, -110:])
    # One batch of held-out patients, as R² is that of all of them together.
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, len(val))


def patients():
    """Return measures (442, 7) and labels (442, 4), standardised; NaN where a label is missing."""
    values, target = load_diabetes(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(values))  # the same split for every seed
    table = np.column_stack([values, target])[order]
    table = ((table - table[:TRAINED].mean(axis=0)) / table[:TRAINED].std(axis=0)).astype("float32")
    columns = [COLUMNS[task] for task in tasks()]
    measures, labels = np.delete(table, columns, axis=1), table[:, columns]
    lacks = np.random.RandomState(1).rand(TRAINED, len(tasks())) < missing
    labels[:TRAINED][lacks] = np.nan
    return measures, labels
