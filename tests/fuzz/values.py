"""Absurd values, and values that are almost right, by name: a case of the fuzz test is plain data.

A name with ``!`` is that of an object that breaks the rules of Python or MXNet: its error may be theirs.
"""

import fractions
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon, nd


@dataclass(frozen=True)
class Named:
    """A value by its name in `VALUES`; it is made anew for each use."""

    name: str


def make(value: Any) -> Any:
    """Return the value that stands in a case."""
    if isinstance(value, Named):
        return VALUES[value.name]()
    if isinstance(value, (list, tuple)):
        return type(value)(make(item) for item in value)
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = ["p"]
    for _ in range(depth):
        value = [value]
    return value


def loop() -> list[Any]:
    """Return a list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


class Unprintable:
    """Its repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class UserMistake(Exception):
    """What the user's functions raise."""


def raises(*args: Any, **kwargs: Any) -> Any:
    raise UserMistake("a mistake of the user")


def returning(value: Any) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return value() if callable(value) else value

    return function


def later(first: Callable[..., Any], then: Callable[..., Any], calls: int = 1) -> Callable[..., Any]:
    """Return a function that changes after some calls."""
    count = [0]

    def function(*args: Any) -> Any:
        count[0] += 1
        return (first if count[0] <= calls else then)(*args)

    return function


def squares(a: Any, b: Any = 0.0) -> Any:
    return (a - b) ** 2


VALUES: dict[str, Callable[[], Any]] = {
    "!10**400": lambda: 10**400, "nan": lambda: float("nan"), "inf": lambda: float("inf"),
    "-inf": lambda: -float("inf"), "!1/2": lambda: fractions.Fraction(1, 2), "int64": lambda: np.int64(2),
    "numpy bool": lambda: np.bool_(True), "complex": lambda: 1j, "lines": lambda: "a\nb",
    "bytes": lambda: b"p", "regex": lambda: "(", "!loop": loop, "!nested 5000": lambda: nested(5000),
    "[[]]": lambda: [[]], "[None]": lambda: [None], "set": lambda: {"p"}, "dict": lambda: {"p": 1},
    "dict of int": lambda: {3: 4}, "300 names": lambda: [f"n{i}" for i in range(300)], "object": object,
    "class": lambda: Unprintable, "module": lambda: np, "exception": lambda: ValueError("x"),
    "ndarray": lambda: nd.ones((2, 3)), "array": lambda: np.ones((2, 3)), "no context": lambda: mx.gpu(31),
    "Block": gluon.Block, "L2": gluon.loss.L2Loss, "CE": gluon.loss.SoftmaxCrossEntropyLoss,
    "CE class": lambda: gluon.loss.SoftmaxCrossEntropyLoss,
    "CE of axis 5": lambda: gluon.loss.SoftmaxCrossEntropyLoss(axis=5), "KL": gluon.loss.KLDivLoss,
    "CTC": gluon.loss.CTCLoss, "triplet": gluon.loss.TripletLoss, "Accuracy": mx.metric.Accuracy,
    "Accuracy of axis 7": lambda: mx.metric.Accuracy(axis=7), "MSE": mx.metric.MSE, "F1": mx.metric.F1,
    "composite": mx.metric.CompositeEvalMetric,
    "spec": lambda: TaskSpec(
        outputs=["p"], labels=["y"], inputs=["x"], losses={"p": LossSpec(squares, "p", "y")}
    ),
    "LossSpec": LossSpec, "MetricSpec": lambda: MetricSpec(None), "TrainerSpec": lambda: TrainerSpec(".*"),
    "Adam": mx.optimizer.Adam, "Adam class": lambda: mx.optimizer.Adam,
    "scheduler": lambda: mx.lr_scheduler.FactorScheduler(1), "Xavier": mx.init.Xavier,
    "raises": lambda: raises, "returns None": lambda: returning(None),
    "returns text": lambda: returning("text"), "returns nan": lambda: returning(float("nan")),
    "returns 1": lambda: returning(1.0), "returns ones": lambda: returning(lambda: nd.ones((8,))),
    "returns dict": lambda: returning({}), "no arguments": lambda: lambda: 0,
    "many arguments": lambda: lambda a, b, c, d: a, "first": lambda: lambda *a: a[0],
    "squares": lambda: squares, "mean": lambda: lambda a, b: nd.mean(squares(a, b)),
    "raises later": lambda: later(squares, raises), "!None later": lambda: later(squares, returning(None)),
    "scalar later": lambda: later(squares, lambda a, b: nd.mean(squares(a, b))),
    "!text later": lambda: later(squares, returning("text")),
    "rows later": lambda: later(squares, lambda a, b: squares(a, b)[:3]),
}  # fmt: skip
