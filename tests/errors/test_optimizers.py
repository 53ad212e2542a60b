"""Optimizers: unknown ones, bad options, and options that would fail amid the first update."""

import threading
from typing import Any

import pytest

from multifit import TrainerError, TrainerSpec

import mxnet as mx  # isort: skip

from tests.common.noted import with_notes

from .setups import Setup

ALL = ".*"
RATE, SHARE = "valid is a finite number of at least 0", "valid is a finite number of at least 0 and below 1"
SCHEDULER = mx.lr_scheduler.PolyScheduler(9)
# fmt: off
FAULTS = {
    "unknown": (TrainerSpec(ALL, "adm"),
        "trainers: there is no optimizer 'adm' (did you mean \"adam\"?); valid are"),
    "unknown, near one of ours": (TrainerSpec(ALL, "AdmW"),
        "there is no optimizer 'AdmW' (did you mean \"adamw\"?)"),
    "rate twice": (TrainerSpec(ALL, "sgd", {"lr": 0.1, "learning_rate": 0.1}),
        'trainers: optimizer_params has both "learning_rate" and "lr", which are the same; leave one out'),
    "negative rate by its alias": (TrainerSpec(ALL, "lion", {"lr": -1}), f"learning_rate is -1; {RATE}"),
    "class": (TrainerSpec(ALL, mx.optimizer.SGD), '(did you mean "sgd"?)'),
    "unknown option": (TrainerSpec(ALL, "adam", {"learning_rat": 0.1}),
        "unknown option 'learning_rat' (did you mean \"learning_rate\"?); adam has \"begin_num_update\", "),
    "unknown option, near an alias": (TrainerSpec(ALL, "adamw", {"weigth_decay": 0.1}),
        "trainers: unknown option 'weigth_decay' (did you mean \"weight_decay\"?); adamw has"),
    "options are a list": (TrainerSpec(ALL, "adam", [0.1]),
        'trainers: optimizer_params is [0.1]; give a dict, such as {"learning_rate": 1e-3}'),
    "negative rate": (TrainerSpec(ALL, "sgd", {"learning_rate": -1}), f"learning_rate is -1; {RATE}"),
    "beta is NaN": (TrainerSpec(ALL, "adam", {"beta1": float("nan")}),
        "trainers: beta1 is nan; valid is a finite number of at least 0 and below 1"),
    "scheduler is a class": (TrainerSpec(ALL, "sgd", lr_scheduler=mx.lr_scheduler.FactorScheduler),
        "lr_scheduler is <class 'mxnet.lr_scheduler.FactorScheduler'>; give an instance"),
    "scheduler twice": (TrainerSpec(ALL, "sgd", {"lr_scheduler": SCHEDULER}, SCHEDULER),
        "lr_scheduler is given twice; leave it out of optimizer_params"),
    "options of an object": (TrainerSpec(ALL, mx.optimizer.SGD(), {"learning_rate": 0.1}),
        "an optimizer object has its options already; give its name to set optimizer_params or "
        "lr_scheduler"),
    "norm of 0": (TrainerSpec(ALL, clip_norm=0),
        "clip_norm is 0; it must be a finite number above 0, or None"),}
# fmt: on


@pytest.mark.parametrize(("spec", "text"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_optimizer_is_an_error(setup: Setup, spec: Any, text: str) -> None:
    setup.with_trainers(spec).refused(TrainerError, text)


def test_an_own_optimizer_takes_what_it_likes(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.optimizer.Optimizer, "opt_registry", dict(mx.optimizer.Optimizer.opt_registry))

    class Waving(mx.optimizer.SGD):
        def __init__(self, momentum: Any = 0.0, **options: Any) -> None:
            super().__init__(momentum=momentum(0) if callable(momentum) else momentum, **options)

    mx.optimizer.Optimizer.register(Waving)
    setup.with_trainers(TrainerSpec(ALL, "waving", {"momentum": lambda step: 0.5})).trains()


def test_the_message_names_the_trainer(setup: Setup) -> None:
    trainers = {"body": TrainerSpec("body.*", "sdg"), "heads": TrainerSpec("(digit|amount).*", clip_norm=-1)}
    setup.with_trainers(trainers).refused(
        TrainerError,
        "2 problems found:",
        '1. trainers["body"]: there is no optimizer \'sdg\' (did you mean "sgd"?)',
        '2. trainers["heads"]: clip_norm is -1',
    )


@pytest.mark.parametrize("name", sorted(set(mx.optimizer.Optimizer.opt_registry) - {"test"}))
def test_every_optimizer_of_mxnet_can_be_named(setup: Setup, name: str) -> None:
    vectors = [".*(bias|beta|gamma)"] if name == "groupadagrad" else []  # it updates matrices only
    setup.with_trainers(TrainerSpec(ALL, name), frozen=vectors).fit()


def test_an_error_of_an_update_names_the_trainer(setup: Setup) -> None:
    class Own(mx.optimizer.SGD):
        def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
            raise LookupError("lost")

        update_multi_precision = update

    estimator = setup.with_trainers({"mine": TrainerSpec(ALL, Own())}).make()
    with pytest.raises(LookupError) as caught:
        estimator.fit(setup.data, epochs=1)
    assert 'raised in trainers["mine"]' in with_notes(caught.value)


def test_a_scheduler_keeps_its_base_rate_and_is_copied(setup: Setup) -> None:
    """MXNet's Adam puts its own default in the place of base_lr."""
    scheduler = mx.lr_scheduler.FactorScheduler(1, factor=0.5, base_lr=0.04)
    for spec in (
        TrainerSpec(ALL, lr_scheduler=scheduler),
        TrainerSpec(ALL, "adam", {"lr_scheduler": scheduler}),
    ):
        estimator = setup.with_trainers(spec).make()
        assert estimator.learning_rates() == {"lr": 0.04}
        estimator.fit(setup.data * 3, epochs=1)
        assert estimator.learning_rates()["lr"] < 0.04
        assert scheduler.base_lr == 0.04


def test_a_scheduler_that_cannot_be_copied(setup: Setup) -> None:
    class Locked(mx.lr_scheduler.LRScheduler):
        def __init__(self) -> None:
            super().__init__(0.1)
            self.lock = threading.Lock()

    faulty = setup.with_trainers(TrainerSpec(ALL, "sgd", lr_scheduler=Locked()))
    faulty.refused(TrainerError, "trainers: sgd does not take", "TypeError: cannot pickle")


def test_an_optimizer_that_cannot_be_copied(setup: Setup) -> None:
    own = mx.optimizer.SGD()
    own.lock = threading.Lock()
    setup.with_trainers(TrainerSpec(ALL, own)).refused(
        TrainerError, "trainers: SGD cannot be copied: TypeError: cannot pickle '_thread.lock' object"
    )
