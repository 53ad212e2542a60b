"""Initializers: unknown ones, patterns of nothing, and such as cannot fill a parameter."""

from typing import Any

import pytest

from multifit import MultiEstimator, SpecError, TaskSpec, TrainerError

import mxnet as mx  # isort: skip
from mxnet import gluon

from .setups import Setup, around, new_setup

# fmt: off
FAULTS = {
    "unknown": ("xavir",
        "initializer: 'xavir' is not an initializer (did you mean \"xavier\"?); give an instance of one"),
    "pattern of nothing": ({"encoder.*": mx.init.One()},
        'initializer["encoder.*"]: the pattern "encoder.*" selects none of the net\'s parameters'),
    "no pattern": ({3: mx.init.One()}, 'initializer["3"]: 3 selects no parameters; give a pattern'),
    "unknown by pattern": ({".*bias": "zro"},
        'initializer[".*bias"]: \'zro\' is not an initializer (did you mean "zero"'),
}
# fmt: on


class Broken(mx.init.Initializer):
    """Fails on whatever it is to fill."""

    def _init_weight(self, name: str, array: Any) -> None:
        raise KeyError("no such table")


@pytest.mark.parametrize(("initializer", "text"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_initializer_is_an_error(setup: Setup, initializer: Any, text: str) -> None:
    setup.with_trainers(None, initializer=initializer).refused(TrainerError, text)


def test_an_initializer_that_cannot_fill_a_parameter() -> None:
    fresh = new_setup(initialized=False)
    fresh.with_trainers(None, initializer=mx.init.Bilinear()).refused(
        TrainerError, 'initializer: Bilinear cannot fill "body.0.weight" (5, 6): '
    )
    fresh.with_trainers(None, initializer=Broken()).refused(
        KeyError, "no such table", 'raised in initializer: Broken, for "body.0.weight" (5, 6)'
    )
    MultiEstimator(fresh.net, TaskSpec(**fresh.spec), initializer=mx.init.Xavier()).fit(fresh.data, epochs=1)


def test_an_initializer_that_fails_when_the_first_batch_tells_the_shapes() -> None:
    fresh = around(lambda dense, x: dense(x))
    fresh.net.dense = gluon.nn.Dense(3)
    fresh.but(estimator={"initializer": Broken()}).refused(
        KeyError, "no such table", "raised in the net's forward pass (train), called with x (8, 6) float32"
    )


def test_an_initializer_may_be_named() -> None:
    new_setup(initialized=False).with_trainers(None, initializer={".*": "Xavier"}).check()


def test_a_negative_size_is_that_of_the_net() -> None:
    net = around(lambda dense, x: dense(x))
    net.net.dense = gluon.nn.Dense(-3)
    net.refused(SpecError, 'net: "dense.weight" has the shape (-3, 0); give its layer sizes above 0')
