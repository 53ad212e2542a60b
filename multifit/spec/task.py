"""TaskSpec: everything that a training loop needs to know about a net, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Callable, Mapping, Sequence

from ..errors import Problem, raise_problems
from .combine import combined
from .form import Form
from .names import OUTPUTS, SLOTS, leaves, listed
from .parts import LabelSpec, LossSpec, MetricSpec
from .routing import routing_problems
from .summary import one_line, summary
from .terms import MetricTerm, Term, resolve_loss, resolve_metric
from .validate import problems_of

__all__ = ["TaskSpec"]


@dataclass(frozen=True, eq=False, repr=False)
class TaskSpec:
    """Which output of a net is which, which label is which, and which loss and metric takes which of them.

    Immutable. Names are strings; everything declared must be used or listed in `unused`.

    Parameters
    ----------
    outputs : str or nested sequence of str
        What the net returns, in order; nested sequences mirror nested outputs, a dict is matched by key, and
        ``...`` at the end ignores the rest.
    labels : sequence of str or LabelSpec
        The label slots of a batch. A label that bears an input's name is that slot.
    losses : mapping of str to LossSpec or callable
        A bare callable takes the output and label of its key, with weight 1.
    metrics : mapping of str to MetricSpec or EvalMetric
        What is measured.
    inputs : sequence of str
        What the net is called with, in order.
    batch : sequence of str, optional
        The order of the slots in a batch; default: the inputs, then the labels that are not inputs.
    unused : sequence of str
        Outputs and slots that nothing takes, on purpose; ``outputs.x`` or ``labels.x`` for only one of two.
    forward : callable, optional
        ``forward(net, slots) -> outputs`` for a net that is not simply called with its inputs.
    batch_fn : callable, optional
        ``batch_fn(batch) -> {slot: array}`` for batches of any other form.
    evaluate : TaskSpec, optional
        Replaces this one when evaluating and predicting.
    name : str, optional
        Shown in summaries.

    Raises
    ------
    SpecError
        Lists all unknown, duplicate, colliding and unused names, impossible weights and uncallable losses.
    """

    outputs: Any
    labels: Sequence[Any] = ()
    losses: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    inputs: Sequence[str] = ("data",)
    batch: Sequence[str] | None = None
    unused: Sequence[str] = ()
    forward: Callable[..., Any] | None = None
    batch_fn: Callable[[Any], Mapping[str, Any]] | None = None
    evaluate: TaskSpec | None = None
    name: str | None = None
    terms: tuple[Term, ...] = field(init=False)
    metric_terms: tuple[MetricTerm, ...] = field(init=False)
    label_specs: Mapping[str, LabelSpec] = field(init=False)

    def __post_init__(self) -> None:
        form = Form()
        labels = form.labels(self.labels)
        self._set(
            outputs=form.tree("outputs", self.outputs),
            inputs=form.names("inputs", self.inputs),
            labels=tuple(label.name for label in labels),
            label_specs=MappingProxyType({label.name: label for label in labels}),
            unused=form.names("unused", self.unused),
        )
        form.demand("outputs", self.output_names)
        form.demand("inputs", self.inputs or self.forward is not None)
        self._set(batch=self.slot_names if self.batch is None else form.names("batch", self.batch))
        example = next(iter(self.output_names), "output")
        for field_name, kind in (("losses", LossSpec), ("metrics", MetricSpec)):
            declared = form.mapping(field_name, getattr(self, field_name), kind, example)
            self._set(**{field_name: MappingProxyType(declared)})
        routing = self._resolve()
        # a name that could not be read would be missed by everything that takes it: that is no news
        raise_problems(
            [Problem("spec", message) for message in form.messages]
            + (
                problems_of(self)
                if form.messages
                else [*problems_of(self), *routing_problems(self), *routing]
            )
        )

    def _resolve(self) -> list[Problem]:
        """Find out what each loss and metric takes; return what could not be found."""
        spaces = {OUTPUTS: self.output_names, SLOTS: tuple(dict.fromkeys([*self.labels, *self.inputs]))}
        losses = [resolve_loss(key, loss, spaces) for key, loss in self.losses.items()]  # type: ignore[union-attr]
        figures = [figure for term, _ in losses for figure in term.figures]
        metrics = [
            resolve_metric(key, metric, spaces, figures)
            for key, metric in self.metrics.items()  # type: ignore[union-attr]
        ]
        self._set(
            terms=tuple(term for term, _ in losses), metric_terms=tuple(metric for metric, _ in metrics)
        )
        return [problem for _, found in [*losses, *metrics] for problem in found]

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, flat, in order, without ``...``."""
        return tuple(name for _, name in leaves(self.outputs) if name is not Ellipsis)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of all slots: the inputs, then the labels that are not inputs."""
        return tuple(dict.fromkeys([*self.inputs, *self.labels]))

    @property
    def takers(self) -> tuple[Term | MetricTerm, ...]:
        """Everything that takes outputs and slots: the losses, then the metrics."""
        return (*self.terms, *self.metric_terms)

    @property
    def evaluation(self) -> TaskSpec:
        """The spec that holds when evaluating and predicting."""
        return self.evaluate or self

    def summary(self) -> str:
        """Return a readable table of the declarations."""
        return summary(self)

    def __repr__(self) -> str:
        return one_line(self)

    @classmethod
    def combine(cls, shared: Sequence[str] = (), **parts: TaskSpec) -> TaskSpec:
        """Make one spec of several, for a net that returns the tuple of the parts' outputs.

        Parameters
        ----------
        shared : sequence of str
            Slots that the parts have in common; all other names become ``<part>/<name>``.
        **parts : TaskSpec
            The specs by the name of their part.

        Raises
        ------
        SpecError
            A part has a `forward` or `batch_fn` of its own, or `shared` names a slot that no part has.
        """
        return combined(parts, listed(shared), cls)
