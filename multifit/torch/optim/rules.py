"""The rules by the names of MXNet's optimizers."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .adadelta import AdaDelta
from .adagrad import AdaGrad
from .adam import Adam
from .adamax import Adamax
from .bert_adam import BERTAdam
from .ftml import FTML
from .ftrl import Ftrl
from .group import Group, State
from .group_adagrad import GroupAdaGrad
from .lamb import LAMB
from .nadam import Nadam
from .nag import NAG
from .rmsprop import RMSProp
from .sgd import SGD
from .signum import Signum


class Rule(Protocol):
    """Moves parameters as one of MXNet's optimizers does.

    `options` is any object with that optimizer's attributes (``momentum``, ``beta1``, ``clip_gradient``,
    ``rescale_grad`` and so on), which are read in every update: MXNet's optimizer itself, for one. Rates and
    weight decays come with the group, so that schedules and multipliers are the caller's.
    """

    @staticmethod
    def create(options: Any, weight: torch.Tensor) -> State:
        """Return the state of a new parameter, laid out as MXNet's."""

    @staticmethod
    def move(options: Any, group: Group) -> None:
        """Move the parameters of a group in place, and their states; call it without autograd."""


RULES: dict[str, type[Rule]] = {
    rule.__name__.lower(): rule
    for rule in (
        AdaDelta, AdaGrad, Adam, Adamax, BERTAdam, FTML, Ftrl, GroupAdaGrad, LAMB, NAG, Nadam, RMSProp, SGD,
        Signum,
    )
}  # fmt: skip
RULES["ccsgd"] = SGD  # MXNet's old name of it
