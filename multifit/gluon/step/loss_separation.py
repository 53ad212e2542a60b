"""Which losses a training stage keeps apart, to balance them or because they are bound to trainers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ...balance.means import Means
from .loss_graph import SUM


@dataclass(frozen=True)
class LossSeparation:
    """How losses are kept apart in the objective, and which figures that adds; by default, they are summed.

    `objective_form` is as for :class:`LossGraph`, and `means` are the further figures. `tasks` is the number
    of each loss's task: the graph of net and losses is then cut where the tasks branch. If it `repeats`, the
    backward pass through the shared body runs once for each task. `updated` returns the names of the
    parameters that trainers update; only these count as shared. `bound` returns, by loss, the names of the
    parameters that the loss trains; a loss that it does not name trains all.
    """

    objective_form: str = SUM
    means: tuple[Means, ...] = ()
    tasks: Mapping[str, int] | None = None
    repeats: bool = False
    updated: Callable[[], Collection[str]] = frozenset
    bound: Callable[[], Mapping[str, frozenset[str]]] | None = None

    @property
    def balances(self) -> bool:
        """Whether a method of balancing weighs the losses."""
        return self.objective_form != SUM and self.bound is None

    @property
    def needs_graph(self) -> bool:
        """Whether net and losses must be one graph, even for the first batch."""
        return self.tasks is not None or self.bound is not None


TOGETHER = LossSeparation()
