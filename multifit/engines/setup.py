"""What an estimator is made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..distributed import World


@dataclass(frozen=True)
class Setup:
    """The arguments of :class:`multifit.MultiEstimator`, from which an engine is made.

    `spec` may be a loss, from which the engine makes a TaskSpec.
    """

    net: Any
    spec: Any
    trainers: Any
    context: Any
    initializer: Any
    frozen: Any
    precision: str
    balance: Any
    compile: bool | str
    world: World
    accumulate: int = 1
