"""Devices: contexts that do not exist, and a user's own trainers that do not serve them."""

from __future__ import annotations

from typing import Any

import pytest

from multifit import MultiEstimator, TaskSpec, TrainerError, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

TWO = [mx.cpu(0), mx.cpu(1)]
WAY = "give an mx.Context or a list of different ones, such as mx.cpu(0) or [mx.gpu(0), mx.gpu(1)]"
CONTEXTS = {
    "no GPU": (mx.gpu(97), "context: gpu(97) does not exist: this machine has"),
    "string": ("gpu", "context: 'gpu' is not a context"),
    "twice": ([mx.cpu(0), mx.cpu(0)], "context: cpu(0) is given twice"),
    "empty": ([], "context: the list is empty"),
    "several": ([mx.cpu(0), 3, mx.gpu(98)], "3 is not a context; gpu(98) does not exist"),
}


@pytest.mark.parametrize(("context", "text"), CONTEXTS.values(), ids=CONTEXTS)
def test_contexts_are_refused_on_construction(setup: Any, context: Any, text: str) -> None:
    before = setup.parameters()
    with pytest.raises(ValueError, match="context: ") as raised:
        MultiEstimator(setup.net, TaskSpec(**setup.spec), context=context)
    assert type(raised.value) is ValueError
    assert text in str(raised.value)
    assert WAY in str(raised.value)
    assert setup.parameters().keys() == before.keys()
    setup.trains()


def test_replicas_without_a_kvstore_would_diverge(setup: Any) -> None:
    """gluon.Trainer(kvstore=None) on two devices: they drift apart without a word (pitfall 4)."""
    setup.net.collect_params().reset_ctx(TWO)
    parameters = setup.net.collect_params()
    faulty = setup.with_trainers(gluon.Trainer(parameters, "sgd", kvstore=None), context=TWO)
    faulty.refused(
        TrainerError,
        "trainers: kvstore=None on 2 devices never adds up gradients, so replicas would diverge",
        'use kvstore="device", or a TrainerSpec',
    )
    setup.with_trainers(gluon.Trainer(parameters, "sgd", kvstore="device"), context=TWO).trains()
    setup.with_trainers(TrainerSpec(".*", "sgd"), context=TWO).trains()


def test_an_update_on_a_kvstore_that_there_is_not(setup: Any) -> None:
    """On one device MXNet makes no kvstore, and fails deep inside when it is to update there."""
    faulty = setup.with_trainers(gluon.Trainer(setup.net.collect_params(), "sgd", update_on_kvstore=True))
    faulty.refused(TrainerError, "update_on_kvstore=True on one device", "leave it out")
    setup.with_trainers(gluon.Trainer(setup.net.collect_params(), "sgd")).trains()


def test_without_a_kvstore_on_one_device(setup: Any) -> None:
    setup.with_trainers(gluon.Trainer(setup.net.collect_params(), "sgd", kvstore=None)).trains()


def test_a_trainer_that_was_built_elsewhere(setup: Any) -> None:
    trainer = gluon.Trainer(setup.net.collect_params(), "sgd")
    faulty = setup.with_trainers({"all": trainer}, context=TWO)
    message = faulty.refused(TrainerError)
    assert 'trainers["all"]: was built for cpu(0), but the run is on cpu(0), cpu(1)' in message
    assert "initialise the net there before building the gluon.Trainer, or give a TrainerSpec" in message
    setup.with_trainers(None, context=TWO).trains()
