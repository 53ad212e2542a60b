"""Initializers: unknown ones, patterns of nothing, and such as cannot fill a parameter."""

from typing import Any

import pytest

from multifit import DataError, MultiEstimator, SpecError, TaskSpec, TrainerError, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

from .setups import Setup, around, new_setup

# fmt: off
FAULTS = {
    "unknown": ("xavir",
        "initializer: 'xavir' is not an initializer (did you mean \"xavier\"?); give an instance of one"),
    "class": (mx.init.Xavier,
        "initializer: <class 'mxnet.initializer.Xavier'> is not an initializer; give an instance"),
    "number": (0.1, "initializer: 0.1 is not an initializer; give an instance of one of bilinear, "),
    "pattern of nothing": ({"encoder.*": mx.init.One()},
        'initializer["encoder.*"]: the pattern "encoder.*" selects none of the net\'s parameters'),
    "no pattern": ({3: mx.init.One()}, "initializer: 3 is not a pattern; give a string"),
    "no expression": ({"(": mx.init.One()}, 'initializer["("]: "(" is not a regular expression'),
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


@pytest.mark.parametrize("hybridized", [False, True])
def test_an_initializer_that_fails_when_the_first_batch_tells_the_shapes(hybridized: bool) -> None:
    fresh = around(lambda dense, x: dense(x))
    fresh.net.dense = gluon.nn.Dense(3)
    fresh.net.hybridize(hybridized)
    fresh.but(estimator={"initializer": Broken()}).refused(
        KeyError, "no such table", "raised in the net's forward pass (train), called with x (8, 6) float32"
    )


@pytest.mark.parametrize("initializer", [None, mx.init.Xavier()], ids=["default", "Xavier"])
@pytest.mark.parametrize("size", [-1, -3])
def test_a_negative_size_is_that_of_the_net(size: int, initializer: Any) -> None:
    net = around(lambda dense, x: dense(x))
    net.net.dense = gluon.nn.Dense(size)
    text = f'net: "dense.weight" has the shape ({size}, 0); give its layer sizes above 0'
    net.but(estimator={"initializer": initializer}).refused(SpecError, text)


@pytest.mark.parametrize("name", ["xavier", "Xavier", "zeros", "ones", "msraprelu"])
def test_an_initializer_may_be_named(name: str) -> None:
    fresh = new_setup(initialized=False)
    fresh.with_trainers(None, initializer={".*": name}).check()


def test_it_hides_nothing_that_is_wrong_with_trainers_or_data() -> None:
    fresh = new_setup(initialized=False)
    trainers = {"body": TrainerSpec("bdy.*"), "heads": TrainerSpec("(digit|amount).*", "adm")}
    estimator = fresh.with_trainers(trainers, initializer="zro", frozen=["x.*"]).make()
    for data, expected in ((fresh.data, TrainerError), ([fresh.data[0][:2]], DataError)):
        with pytest.raises(expected) as raised:
            estimator.check(data)
        for text in ("'zro'", '"bdy.*"', "'adm'", '"x.*"'):
            assert sum(text in problem.message for problem in raised.value.problems) == 1
