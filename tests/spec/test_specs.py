"""The items of a TaskSpec: immutable, with a repr of one line."""

import inspect

import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, TrainerSpec


class LongWinded:
    def __repr__(self):
        return "many\nlines"


def anonymous(output, label):
    """Stand for a loss."""


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (LossSpec(), "LossSpec()"),
        (LossSpec(anonymous, weight=0.5), "LossSpec(fn=anonymous, weight=0.5)"),
        (LossSpec(anonymous, "a", ["b"]), "LossSpec(fn=anonymous, outputs='a', labels=['b'])"),
        (MetricSpec(LongWinded(), mode="max"), "MetricSpec(metric=LongWinded(…), mode='max')"),
        (LabelSpec("digit", classes=10), "LabelSpec(name='digit', classes=10)"),
        (TrainerSpec(LongWinded(), "sgd"), "TrainerSpec(params=LongWinded(…), optimizer='sgd')"),
    ],
)
def test_the_repr_is_one_line(part, text):
    assert repr(part) == text


@pytest.mark.parametrize("kind", [LossSpec, MetricSpec, LabelSpec, TrainerSpec])
def test_they_never_raise(kind):
    nothing = dict.fromkeys(inspect.signature(kind).parameters)
    assert kind(**nothing) == kind(**nothing)


def test_they_are_immutable():
    with pytest.raises(AttributeError):
        LossSpec().weight = 2.0
