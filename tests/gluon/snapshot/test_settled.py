"""A metric whose sums left the device goes on where it was, whatever form the first batch after that has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, TrainerSpec
from multifit.gluon.snapshot import read, write

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

FORMS = {"flat": (8,), "column": (8, 1)}  # on the device F1 takes labels of the first form only


def make(make_engine: Any) -> Any:
    return make_engine(
        net=nn.Dense(2), trainers=TrainerSpec(".*"), inputs=["data"], outputs=["o"], labels=["l"],
        losses={"ce": LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), "o", "l")},
        metrics={"f1": MetricSpec(mx.metric.F1(), "o", "l")},
    )  # fmt: skip


@pytest.mark.parametrize(
    "forms", ["flat flat flat", "flat column flat flat", "flat column column", "column flat"]
)
@pytest.mark.parametrize("at", [1, 2])
def test_it_goes_on_where_it_was(tmp_path, make_engine, train, forms, at):
    batches = [
        (np.random.randn(8, 4).astype("float32"), np.random.randint(0, 2, FORMS[form]).astype("float32"))
        for form in forms.split()
    ]
    whole, other = make(make_engine), make(make_engine)
    train(whole, batches[:at])
    write(tmp_path, whole)
    train(whole, batches[at:], at)
    read(tmp_path, other)
    train(other, batches[at:], at)
    stages = [engine.stages["train"] for engine in (whole, other)]
    assert stages[0].figures.metrics[0].place == stages[1].figures.metrics[0].place
    assert stages[1].figures.read() == stages[0].figures.read()
