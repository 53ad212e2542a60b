"""Devices: contexts that do not exist, and a user's own trainers that do not serve them."""

from typing import Any

import pytest

from multifit import TrainerError, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

from .setups import Setup, new_setup

TWO = [mx.cpu(0), mx.cpu(1)]
WAY = "give an mx.Context or a list of different ones, such as mx.cpu(0) or [mx.gpu(0), mx.gpu(1)]"
CONTEXTS = {
    "no GPU": (mx.gpu(97), "context: gpu(97) does not exist: this machine has"),
    "no GPUs": ("gpu:97,98", "context: gpu(97) does not exist: this machine has"),
    "twice": ([mx.cpu(0), mx.cpu(0)], "context: cpu(0) is given twice"),
    "empty": ([], "context: the list is empty"),
    "several": ([mx.cpu(0), 3, mx.gpu(98)], "3 is not a context; gpu(98) does not exist"),
}


def trainer(setup: Setup, **options: Any) -> gluon.Trainer:
    return gluon.Trainer(setup.net.collect_params(), "sgd", **options)


@pytest.mark.parametrize(("context", "text"), CONTEXTS.values(), ids=CONTEXTS)
def test_a_wrong_context_is_an_error_on_construction(setup: Setup, context: Any, text: str) -> None:
    setup.but(estimator={"context": context}).refused(ValueError, text, WAY, way="make")


def test_replicas_without_a_kvstore_would_diverge() -> None:
    """gluon.Trainer(kvstore=None) on two devices: they drift apart silently (pitfall 4)."""
    setup = new_setup()
    setup.net.collect_params().reset_ctx(TWO)
    setup.with_trainers(trainer(setup, kvstore=None), context=TWO).refused(
        TrainerError,
        "trainers: kvstore=None on 2 devices never adds up gradients, so replicas would diverge",
        'use kvstore="device", or a TrainerSpec',
    )
    setup.with_trainers(trainer(setup, kvstore="device"), context=TWO).trains()
    setup.with_trainers(TrainerSpec(".*", "sgd"), context=TWO).trains()


def test_no_kvstore_updates(setup: Setup) -> None:
    faulty = setup.with_trainers({"all": trainer(setup, update_on_kvstore=True)})
    faulty.refused(
        TrainerError, 'trainers["all"]: updates on its kvstore', "update_on_kvstore=False, or give"
    )


class Clipping(gluon.Trainer):
    """A user's trainer, which changes gradients in its step."""

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        raise NotImplementedError


def with_own_step(*args: Any) -> gluon.Trainer:
    """Return a trainer of which one method was replaced."""
    replaced = gluon.Trainer(*args)
    replaced.step = Clipping.step.__get__(replaced)
    return replaced


@pytest.mark.parametrize("make", [Clipping, with_own_step], ids=["a subclass", "a replaced method"])
def test_a_step_of_the_users(setup: Setup, make: Any) -> None:
    own = make(setup.net.collect_params(), "sgd")
    text = f"trainers: {type(own).__name__} overrides step(), which fit does not call"
    ways = "give a TrainerSpec, with clip_norm= to clip, and a handler with change_gradients()"
    setup.with_trainers(own).refused(TrainerError, text, ways)


def test_compressed_gradients() -> None:
    """A threshold that is meant for sums over samples would give other updates than by hand."""
    setup = new_setup()
    setup.net.collect_params().reset_ctx(TWO)
    compressing = trainer(setup, compression_params={"type": "2bit", "threshold": 0.5})
    setup.with_trainers(compressing, context=TWO).refused(
        TrainerError, "trainers: compression_params= has a threshold for sums", "leave it out"
    )


def test_a_trainer_that_was_built_for_other_devices() -> None:
    setup = new_setup()
    setup.with_trainers({"all": trainer(setup)}, context=TWO).refused(
        TrainerError,
        'trainers["all"]: was built for cpu(0), but the run is on cpu(0), cpu(1)',
        "initialise the net there before building the gluon.Trainer, or give a TrainerSpec",
    )
    setup.with_trainers(None, context=TWO).trains()
