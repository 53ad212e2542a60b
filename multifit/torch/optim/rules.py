"""The update rules, by the names of MXNet's optimizers."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from . import (
    adadelta,
    adagrad,
    adam,
    adamax,
    bert_adam,
    ftml,
    ftrl,
    group_adagrad,
    lamb,
    nadam,
    nag,
    rmsprop,
    sgd,
    signum,
)  # fmt: skip
from .group import Group, State


class Rule(Protocol):
    """A module that updates parameters as one of MXNet's optimizers does.

    `options` is any object with that optimizer's attributes (``momentum``, ``beta1``, ``clip_gradient``,
    ``rescale_grad`` and so on), such as the optimizer itself; they are read in every update. Rates and weight
    decays come with the group, so that the caller applies schedules and multipliers.
    """

    def create(self, options: Any, weight: torch.Tensor) -> State:
        """Return the state of a new parameter, in the layout of MXNet's state."""

    def update(self, options: Any, group: Group) -> None:
        """Update the parameters of a group and their states in place; call it without autograd."""


RULES: dict[str, Rule] = {
    "adadelta": adadelta,
    "adagrad": adagrad,
    "adam": adam,
    "adamax": adamax,
    "bertadam": bert_adam,
    "ccsgd": sgd,  # MXNet's old name of SGD
    "ftml": ftml,
    "ftrl": ftrl,
    "groupadagrad": group_adagrad,
    "lamb": lamb,
    "nadam": nadam,
    "nag": nag,
    "rmsprop": rmsprop,
    "sgd": sgd,
    "signum": signum,
}
