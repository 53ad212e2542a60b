"""Two heads, a loader for each, fits that take turns, and the hand-written loop."""

from typing import Any

import numpy as np

from multifit import LabelSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.sampling import RoundRobin
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import SILENT, trainer_of
from tests.common.nets import TWO_HEADS, two_heads
from tests.common.specs import CE, L2, two_head_spec

import mxnet as mx  # isort: skip

MOVING = {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.1}
SGD = TrainerSpec(".*", "sgd", MOVING)
MISSING = [LabelSpec("digit", missing=-1), LabelSpec("size", missing="nan")]


def parts(digits: int = 20, sizes: int = 28) -> dict[str, list[Any]]:
    """Batches of image and digit, and of image and size, of other images."""
    image, digit, size = two_head_arrays(digits + sizes).values()
    return {
        "digit": in_batches([image[:digits], digit[:digits]]),
        "size": in_batches([image[digits:], size[digits:]]),
    }


def whole(data: dict[str, list[Any]]) -> dict[str, list[np.ndarray]]:
    """Return the arrays of each loader, in one piece."""
    return {name: [np.concatenate(column) for column in zip(*batches)] for name, batches in data.items()}


def estimator_of(net: Any = None, spec: TaskSpec | None = None, **options: Any) -> MultiEstimator:
    """Return an estimator of two heads; its net has a forward in Python."""
    options = {"initializer": mx.init.Xavier(), **options}
    trainers = options.pop("trainers", SGD)
    return MultiEstimator(two_heads() if net is None else net, spec or two_head_spec(), trainers, **options)


def fit(estimator: MultiEstimator, data: Any = None, val: Any = None, *handlers: Any, **options: Any) -> Any:
    """Fit for an epoch, with a loader for each task in turn; return the history."""
    options = {"sampling": RoundRobin(), **options}
    options |= {} if "batches" in options else {"epochs": options.get("epochs", 1)}
    return estimator.fit(data or parts(), val, event_handlers=[*SILENT, *handlers], **options)


def by_hand(net, updates, losses=None, weights=None, optimizer="sgd", **options):
    """Train on updates: lists of pairs of a head's name and a batch, whose mean losses are added up.

    Only what the losses reach is updated.
    """
    losses = {"digit": CE, "size": L2, **(losses or {})}
    trainer = trainer_of(net, optimizer, options or MOVING)
    for update in updates:
        with mx.autograd.record():
            total = 0.0
            for name, (image, label) in update:
                output = net(mx.nd.array(image))[list(TWO_HEADS).index(name)]
                total = total + losses[name](output, mx.nd.array(label)).mean() * (weights or {}).get(name, 1)
        total.backward()
        trainer.step(1, ignore_stale_grad=True)


def in_turn(data: dict[str, list[Any]], turns: int) -> list[list[tuple[str, Any]]]:
    return [[(name, data[name][i % len(data[name])])] for i in range(turns) for name in data]


def at_once(data: dict[str, list[Any]], turns: int) -> list[list[tuple[str, Any]]]:
    return [[(name, data[name][i % len(data[name])]) for name in data] for i in range(turns)]
