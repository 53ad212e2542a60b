"""TaskSpec: everything that a training loop needs to know about a net, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..utils.arguments import with_known_arguments
from ..utils.errors import Problem, raise_problems
from ..utils.protocols import Array, Loss, Metric, Net
from .combine import combine_messages, combined_fields, part_slots, restricted, shared_slots
from .parsing import FieldParser, state_messages
from .plan import one_line, summary
from .specs import LabelSpec, LossSpec, MetricSpec
from .terms import Declarations, changed
from .validate import declaration_messages, routing_messages


@with_known_arguments
@dataclass(frozen=True, eq=False, repr=False, init=False)
class TaskSpec(Declarations):
    """Declares a net's outputs, a batch's labels, and which loss and metric takes which of them.

    Immutable. Names are strings; everything declared must be used or listed in `unused`. The arrays of a
    batch are its slots: each is an input or a label.

    Parameters
    ----------
    outputs : str or nested sequence of str
        What the net returns, in order. Nested sequences mirror nested outputs, a dict is matched by key, and
        ``...`` at the end ignores the rest.
    labels : sequence of str or LabelSpec
        The labels of a batch. A label with the name of an input is the same slot.
    losses : mapping of str to LossSpec or callable
        The losses by name. A bare callable takes the output and the label named like its key, with weight 1.
    metrics : mapping of str to MetricSpec, metric, str or callable
        The metrics by name. A bare metric takes the output and the label named like its key, or the only
        ones. A string is the name of a metric, such as ``"accuracy"``.
    inputs : sequence of str
        What the net is called with, in order.
    batch : sequence of str, optional
        The order of the slots in a batch. Defaults to the inputs, then the labels that are not inputs.
    unused : sequence of str
        Outputs and slots that are left unused on purpose. A name that is both an output and a slot means
        both; write ``outputs.x`` or ``labels.x`` for one of them.
    forward : callable, optional
        ``forward(net, slots) -> outputs`` for a net that is not simply called with its inputs.
    batch_fn : callable, optional
        ``batch_fn(batch) -> {slot: array}`` for batches in any other form.
    evaluate : TaskSpec, optional
        Replaces this one in evaluation and prediction.
    name : str, optional
        Shown in summaries.
    state : mapping of str to shape, optional
        Inputs that do not come from the data: each is the net's output of the same name in the previous
        batch, without its gradient. Every epoch, evaluation and prediction starts with zeros of this shape,
        in which 0 stands for the number of samples.

    Raises
    ------
    SpecError
        Lists all unknown, duplicate, colliding and unused names, invalid weights, and losses and metrics
        that cannot be called.
    """

    evaluate: TaskSpec | None

    def __init__(
        self,
        *,
        outputs: str | Sequence[object],
        labels: str | LabelSpec | Sequence[str | LabelSpec] = (),
        losses: Mapping[str, LossSpec | Loss] | None = None,
        metrics: Mapping[str, MetricSpec | Metric | str] | None = None,
        inputs: Sequence[str] = ("data",),
        batch: Sequence[str] | None = None,
        unused: Sequence[str] = (),
        forward: Callable[[Net, Mapping[str, Array]], Any] | None = None,
        batch_fn: Callable[[Any], Mapping[str, Array]] | None = None,
        evaluate: TaskSpec | None = None,
        name: str | None = None,
        state: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        parser = FieldParser()
        fields = parser.fields(
            outputs, labels, losses, metrics, inputs, batch, unused, forward is None, state
        )
        super().__init__(**fields, forward=forward, batch_fn=batch_fn, evaluate=evaluate, name=name, parts={})
        messages = [*parser.messages, *parser.details, *declaration_messages(self)]
        if not parser.messages:  # a name that could not be parsed would be reported again wherever it is used
            messages += [*routing_messages(self), *state_messages(self), *parser.unresolved]
        raise_problems(Problem("spec", message) for message in messages)

    @property
    def evaluation(self) -> TaskSpec:
        """The spec that is used in evaluation and prediction."""
        return self.evaluate or self

    def only(self, *tasks: str) -> TaskSpec:
        """Return the spec of some of the tasks, to train the same net without the others, on the same data.

        It has their losses, and the metrics that take no output, label or loss that only left-out losses
        take; of a combined spec, all metrics of the part. All else is unused, also in `evaluate`. A fit
        freezes the parameters that only left-out losses reach; those of a Gluon net that is not hybridized
        get no gradient.

        Parameters
        ----------
        *tasks : str
            Names of losses, or of parts of a combined spec. SpecError is raised for other names.
        """
        return restricted(self, tasks)

    def summary(self) -> str:
        """Return the declarations as tables that fit the terminal: a plan without arrays."""
        return summary(self)

    def __repr__(self) -> str:
        return one_line(self)

    @classmethod
    def combine(cls, shared: Sequence[str] = (), **parts: TaskSpec) -> TaskSpec:
        """Combine several specs, for a net that returns the tuple of the parts' outputs.

        Parameters
        ----------
        shared : sequence of str
            Slots that the parts have in common; all other names become ``<part>/<name>``. If a part declares
            its `batch`, the combined `batch` keeps the slots of every part in that part's order.
        **parts : TaskSpec
            The specs by the names of the parts.

        Returns
        -------
        TaskSpec
            Its `evaluate` combines those of the parts, if any has one.

        Raises
        ------
        SpecError
            A part is not a TaskSpec, or has a `forward`, `batch_fn` or `state`; `shared` names a slot that no
            part has; or the parts' batches have shared slots in different orders.
        """
        common = shared_slots(parts, shared)
        raise_problems(Problem("spec", message) for message in combine_messages(parts, common))
        evaluate = None
        if any(spec.evaluate is not None for spec in parts.values()):
            evaluations = {name: spec.evaluation for name, spec in parts.items()}
            slots = {slot for spec in evaluations.values() for slot in (*spec.slot_names, *spec.batch)}
            evaluate = cls.combine(shared=[name for name in common if name in slots], **evaluations)
        combined = cls(**combined_fields(parts, common), evaluate=evaluate)
        left_out = any(part.restricted for part in parts.values())
        return changed(combined, parts=part_slots(parts, common), restricted=left_out)
