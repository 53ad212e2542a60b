"""What all contenders share: a net, its data, its loss and its figures."""

import logging
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet import autograd

from multifit import MultiEstimator, TaskSpec, TrainerSpec
from multifit.cli.taskfile import TaskFile

__all__ = ["STATIC", "Epoch", "Subject", "task"]

Epoch = Callable[[Any], list]  # passes once over batches, and returns its figures: losses, then metrics

STATIC = {"static_alloc": True, "static_shape": True}  # how gluoncv's training scripts hybridize


class Subject:
    """A net to train, and the loops that people write for it.

    Attributes
    ----------
    name : str
        Its name in tables.
    predicts : {"classes", "pixels", "boxes", "sentences"}
        What the net predicts; losses and metrics are made for it.
    rounds : int
        The number of epochs of each contender that make a steady median: more if epochs are short.
    optimizer : (str, dict)
        Its name and options.
    """

    name: str
    predicts: str = "classes"
    rounds: int = 15
    optimizer: tuple[str, Mapping[str, float]] = ("sgd", {"learning_rate": 0.01, "momentum": 0.9})

    def make(self) -> Any:
        """Return a new net, not initialised."""
        raise NotImplementedError

    def batches(self) -> list[tuple[Any, ...]]:
        """Return an epoch's batches, made beforehand, because loading is not measured."""
        raise NotImplementedError

    def passes(self, steps: int) -> int:
        """Return how many passes over the batches take at least so many steps."""
        return math.ceil(steps / len(self.batches()))

    def spec(self, net: Any) -> TaskSpec:
        """Return multifit's spec."""
        raise NotImplementedError

    def hand_written(self) -> Epoch:
        """Return an epoch of the loop that people write for this net."""
        raise NotImplementedError

    def others(self) -> dict[str, Epoch]:
        """Return the epochs of the other contenders by name."""
        return {"hand-written": self.hand_written()}

    def trainers(self, net: Any) -> Any:
        """Return multifit's trainers."""
        return TrainerSpec(".*", *self.optimizer)

    def net(self) -> Any:
        """Return a new hybridized net, initialised, with the same parameters each time."""
        mx.random.seed(0)
        net = self.make()
        net.initialize(mx.init.Xavier())
        with autograd.train_mode():
            net(*self._inputs())
        mx.nd.waitall()  # a weight that is read while an operator uses it may be transposed
        net.hybridize(**STATIC)
        return net

    def estimator(self, net: Any = None, **options: Any) -> MultiEstimator:
        """Return multifit's estimator, which logs nothing; with a new net unless one is given."""
        net = self.net() if net is None else net
        logging.getLogger("multifit").setLevel(logging.ERROR)
        return MultiEstimator(net, self.spec(net), self.trainers(net), **{"context": mx.cpu(), **options})

    def _inputs(self) -> list[Any]:
        return [self.batches()[0][0]]

    def __str__(self) -> str:
        return self.name


@cache
def task(name: str, *settings: str) -> Any:
    """Return the module of a file in tasks/, with settings changed."""
    file = TaskFile(Path(__file__).parents[3] / "tasks" / f"{name}.py")
    file.set(settings)
    return file.module
