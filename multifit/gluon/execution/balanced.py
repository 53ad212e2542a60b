"""What a training stage keeps apart, so that a method of balancing can weigh its losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from ..metrics.means import Means
from .loss_graph import SUM


@dataclass(frozen=True)
class Balanced:
    """How the objective is computed, and what further figures there are; by default, nothing is balanced.

    With `tasks`, the task of each loss, the graph of net and losses is cut where these part; its body is
    passed back several times if it `repeats`.
    """

    form: str = SUM
    means: tuple[Means, ...] = ()
    tasks: Mapping[str, int] | None = None
    repeats: bool = False

    @property
    def active(self) -> bool:
        """Whether something is balanced."""
        return self.form != SUM


NOTHING_BALANCED = Balanced()
