"""The diagnosis of a tumour and three measures of its largest cells, by experts with a gate for each task.

A multi-gate mixture of experts (J. Ma et al. 2018): each task weighs the shared experts by a gate of its own,
which looks at the input. ``--set gates=False`` trains a shared bottom of the same units instead.
``--set method=UPGrad`` lets a method of multifit.balance weigh the tasks, and ``multifit train --only
texture`` trains one task alone. The data are scikit-learn's 569 real tumours, of which the means of ten
measures of the cells are known. The figures are the share of right diagnoses, and R², the explained share of
the variance. Gates are worth one diagnosis in a hundred here, and no R².
"""

from __future__ import annotations

import numpy as np

from multifit import MetricSpec, TaskSpec, TrainerSpec
from multifit import balance as balances
from multifit.metrics import BinaryAccuracy

# isort: split
from mxnet import gluon, init
from mxnet.gluon import nn
from sklearn.datasets import load_breast_cancer

WORST = {"texture": 21, "smoothness": 24, "symmetry": 28}  # columns: the mean of the three largest values
TASKS = ("diagnosis", *WORST)
TRAINED = 400  # tumours to train on; the others are held out

epochs = 60
batch_size = 32
rate = 3e-3
experts = 4
units = 8  # of each expert
gates = True
method = ""


class Mixture(nn.HybridBlock):
    """Experts, and for each task a gate that weighs them and a head; or the experts side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Dense(experts * units, activation="tanh")
        self.gates, self.heads = nn.HybridSequential(), nn.HybridSequential()
        self.gates.add(*(nn.Dense(experts) for _ in TASKS if gates))
        self.heads.add(*(nn.Dense(1) for _ in TASKS))

    def hybrid_forward(self, F, measures):
        """Return each task's output, (N, 1), for measures (N, 10)."""
        features = [self.experts(measures)] * len(self.heads)
        if gates:
            each = features[0].reshape((0, experts, units))
            shares = [F.softmax(gate(measures)).expand_dims(axis=2) for gate in self.gates]
            features = [F.sum(F.broadcast_mul(each, share), axis=1) for share in shares]
        return [head(own) for head, own in zip(self.heads, features)]


def net():
    """Return the net; the estimator initialises it."""
    mixture = Mixture()
    mixture.hybridize()
    return mixture


def initializer():
    """Return the initializer of the weights."""
    return init.Xavier()


def explained(labels, outputs):
    """Return R² for all standardised labels."""
    return 1 - ((labels - outputs) ** 2).mean() / labels.var()


def spec():
    """Declare an output, a loss and a metric for each task."""
    losses = {task: gluon.loss.L2Loss() for task in TASKS}
    metrics = {task: MetricSpec(explained, task, task, mode="max", stage="evaluate") for task in TASKS}
    losses["diagnosis"] = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    metrics["diagnosis"] = MetricSpec(BinaryAccuracy(), "diagnosis", "diagnosis")
    names = {task: "accuracy" if task == "diagnosis" else "r2" for task in TASKS}
    return TaskSpec(
        inputs=["measures"],
        outputs=TASKS,
        labels=TASKS,
        losses=losses,
        metrics={f"{task}_{names[task]}": metrics[task] for task in TASKS},
    )


def trainers():
    """Return one trainer for all parameters."""
    return TrainerSpec(".*", "adam", {"learning_rate": rate})


def balance():
    """Return the method that weighs the tasks; None for the sum of their losses."""
    return getattr(balances, method)() if method else None


def data():
    """Return a loader of 400 training tumours, and one of the 169 others, in one batch."""
    measures, labels = tumours()
    columns = [measures, *np.split(labels, len(TASKS), axis=1)]
    train, val = (gluon.data.ArrayDataset(*(c[part] for c in columns)) for part in np.s_[:TRAINED, TRAINED:])
    # One batch of held-out tumours, as R² is that of all of them together.
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, len(val))


def tumours():
    """Return measures (569, 10) and labels (569, 4), all but the diagnosis (1 is benign) standardised."""
    values, benign = load_breast_cancer(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(values))  # the same split for every seed
    values = values[order]
    values = (values - values[:TRAINED].mean(axis=0)) / values[:TRAINED].std(axis=0)
    labels = np.column_stack([benign[order], values[:, list(WORST.values())]])
    return values[:, :10].astype("float32"), labels.astype("float32")
