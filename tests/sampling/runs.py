"""Two heads, a loader for each, and the hand-written loop that takes turns."""

from typing import Any

from multifit import TrainerSpec
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import trainer_of
from tests.common.nets import TWO_HEADS
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip

MOVING = {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.1}
SGD = TrainerSpec(".*", "sgd", MOVING)


def parts(digits: int = 20, sizes: int = 28) -> dict[str, list[Any]]:
    """Batches of image and digit, and of image and size, of other images."""
    arrays = two_head_arrays(digits + sizes)
    image, digit, size = arrays["image"], arrays["digit"], arrays["size"]
    return {
        "digit": in_batches([image[:digits], digit[:digits]]),
        "size": in_batches([image[digits:], size[digits:]]),
    }


def by_hand(net, updates, losses=None, weights=None, optimizer="sgd", **options):
    """Train on updates: lists of pairs of a head's name and a batch, whose mean losses are added up.

    Only what the losses reach is updated.
    """
    losses, trainer = losses or {"digit": CE, "size": L2}, trainer_of(net, optimizer, options or MOVING)
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
