"""What a training stage keeps apart: for a method of balancing, or for losses that are bound to trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Collection, Mapping

from ..metrics.means import Means
from .loss_graph import SUM


@dataclass(frozen=True)
class Balanced:
    """How the objective is computed, and what further figures there are; by default, nothing is balanced.

    With `tasks`, the task of each loss, the graph of net and losses is cut where these part; its body is
    passed back several times if it `repeats`, and `exact_dropout` says whether Dropout is right then; `moved`
    returns the names of the parameters that trainers move, which alone count as shared. `bound` returns the
    names of the parameters that losses move, by loss; those of all others move all.
    """

    form: str = SUM
    means: tuple[Means, ...] = ()
    tasks: Mapping[str, int] | None = None
    repeats: bool = False
    exact_dropout: bool = False
    moved: Callable[[], Collection[str]] = frozenset
    bound: Callable[[], Mapping[str, frozenset[str]]] | None = None

    @property
    def active(self) -> bool:
        """Whether something is balanced."""
        return self.form != SUM and self.bound is None

    @property
    def needs_graph(self) -> bool:
        """Whether net and losses must be one graph, also for the first batch."""
        return self.tasks is not None or self.bound is not None


NOTHING_BALANCED = Balanced()
