"""The rules by the names of MXNet's optimizers."""

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
    """A module that moves parameters as one of MXNet's optimizers does.

    `options` is any object with that optimizer's attributes (``momentum``, ``beta1``, ``clip_gradient``,
    ``rescale_grad`` and so on), which are read in every update: MXNet's optimizer itself, for one. Rates and
    weight decays come with the group, so that schedules and multipliers are the caller's.
    """

    def create(self, options: Any, weight: torch.Tensor) -> State:
        """Return the state of a new parameter, laid out as MXNet's."""

    def move(self, options: Any, group: Group) -> None:
        """Move the parameters of a group in place, and their states; call it without autograd."""


RULES: dict[str, Rule] = {
    "adadelta": adadelta,
    "adagrad": adagrad,
    "adam": adam,
    "adamax": adamax,
    "bertadam": bert_adam,
    "ccsgd": sgd,  # MXNet's old name of it
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
