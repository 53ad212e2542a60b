"""The result of a step for a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import engines
from ...engines.scale import Scale
from ...errors import SpecError, last_line
from ...events import TrainingHooks
from ...protocols import Array, Numbers
from ...spec import TaskSpec
from ...spec.names import Ref
from ...spec.terms import by_reference
from ..compat import mx
from ..data.arrays import new_array
from ..data.batch import Batch
from .cached_graph import Backward
from .split_graph import SharedFeatures


@dataclass
class StepResult(engines.StepResult):
    """What a stage computed from a batch.

    `outputs` and `parts` are, for each device, the net's outputs and what the losses returned, by name. The
    sum of all elements of the `objectives` is minimised, each times its element of `head_gradients`, if
    there are any. `objective_losses` are, for each objective, the losses that it contains; if losses are
    balanced, it has an element for each. `backwards` are pairs, in the order of the objectives: how many have
    a backward pass in common, and the function that runs it, or None if autograd has recorded them. `scale`
    holds the batch's weights and normalizers. `features` are, for each device, those where the tasks branch,
    if their gradients are compared. `measured` are the keys of the metrics that the graphs computed.
    """

    spec: TaskSpec
    batch: Batch
    scale: Scale
    outputs: list[dict[str, Array]] = field(default_factory=list)
    parts: list[dict[str, Array]] = field(default_factory=list)
    objectives: list[Array] = field(default_factory=list)
    objective_losses: list[tuple[str, ...]] = field(default_factory=list)
    backwards: list[tuple[int, Backward | None]] = field(default_factory=list)
    head_gradients: list[Array] | None = None
    features: list[SharedFeatures] = field(default_factory=list)
    measured: set[str] = field(default_factory=set)

    def add(self, objectives: Mapping[tuple[str, ...], Array], backward: Backward | None = None) -> None:
        """Add objectives, by the losses that each contains, and the function for their backward pass."""
        self.objectives += objectives.values()
        self.objective_losses += objectives
        self.backwards.append((len(objectives), backward))

    def change_objective(self, hooks: TrainingHooks) -> bool:
        """Let handlers change the objectives; return whether each is still that of the same losses."""
        views, before = self.named(), self.objectives
        with mx.autograd.record():
            # However many handlers use an array, a single identity leads back into the graph. Gradients are
            # then added in the same order with a graph and without one.
            for what in ("pred", "loss"):
                views[what] = {
                    name: [None if array is None else mx.nd.identity(array) for array in arrays]
                    for name, arrays in views[what].items()
                }
            self.objectives = hooks.change_objective(before, **views, scale=self.scale)
        self.backwards = [(len(self.objectives), None)]
        return [each.shape for each in self.objectives] == [each.shape for each in before]

    def differentiate(self) -> None:
        """Compute the gradients of the objectives; raises SpecError if an objective has no gradient."""
        if not self.objectives:  # this rank has no samples
            return
        heads: Sequence[Array | None] = self.head_gradients or [None] * len(self.objectives)
        recorded, start = list[Any](), 0
        for count, backward in self.backwards:
            of_these = slice(start, start + count)
            start += count
            if backward is None:
                recorded += zip(self.objectives[of_these], heads[of_these])
            else:
                backward(heads[of_these])
        if not recorded:
            return
        try:
            mx.autograd.backward(*map(list, zip(*recorded)))
        except mx.base.MXNetError as error:
            raise SpecError(
                f"losses: the objective has no gradient: {last_line(error)}; net and losses must "
                "compute it from the parameters, without detach(), asnumpy() or autograd.pause()"
            ) from error

    def loss(self) -> float:
        """Return this rank's part of the objective; this waits for it."""
        return sum(self.read_objectives())

    def read_objectives(self) -> list[float]:
        """Return the elements of all objectives; this waits for them."""
        return [value for objective in self.objectives for value in objective.asnumpy().tolist()]

    def like_objectives(self, values: Sequence[Numbers]) -> list[Array]:
        """Return numbers as arrays with the dtypes and devices of the objectives."""
        return [new_array(each, to.context, to.dtype) for each, to in zip(values, self.objectives)]

    def objective_dtypes(self) -> list[str]:
        """Return the names of the objectives' dtypes."""
        return [objective.dtype.__name__ for objective in self.objectives]

    def arrays(self) -> list[dict[Ref, Any]]:
        """Return outputs and slots by reference, per device."""
        return [by_reference(*pair) for pair in zip(self.outputs, self.batch.slots)]

    def by_device(self) -> list[tuple[Any, Any, Any]]:
        """Return each device's outputs, slots and what the losses returned, by name."""
        return list(zip(self.outputs, self.batch.slots, self.parts))
