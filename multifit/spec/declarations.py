"""What a TaskSpec declares, as plain data."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, Mapping, TypeVar

from .names import Tree, leaves
from .specs import LabelSpec, LossSpec, MetricSpec
from .terms import MetricTerm, Taker, Term

Declared = TypeVar("Declared", bound="Declarations")
READ_ONLY = "losses", "metrics", "label_specs", "state"


@dataclass(frozen=True, eq=False)
class Declarations:
    """The fields of a :class:`TaskSpec`, each in one form, and its losses and metrics with resolved names."""

    outputs: Tree  # "..." may be the last item of any level
    labels: tuple[str, ...]
    losses: Mapping[str, LossSpec]
    metrics: Mapping[str, MetricSpec]
    inputs: tuple[str, ...]
    batch: tuple[str, ...]  # the order of the slots in a batch
    unused: tuple[str, ...]
    forward: Callable[..., Any] | None
    batch_fn: Callable[[Any], Mapping[str, Any]] | None
    evaluate: Declarations | None  # replaces this one in evaluation and prediction
    name: str | None
    label_specs: Mapping[str, LabelSpec]
    terms: tuple[Term, ...]
    metric_terms: tuple[MetricTerm, ...]
    state: Mapping[str, tuple[int, ...]]  # inputs that are outputs of the previous batch, and their shapes
    parts: Mapping[str, Mapping[str, str]]  # of a combined spec: each part's batch slots, old name to new

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, flat, in order, without ``...``."""
        return tuple(name for _, name in leaves(self.outputs) if name is not Ellipsis)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of all slots: the inputs, then the labels that are not inputs."""
        return tuple(dict.fromkeys([*self.inputs, *self.labels]))

    @property
    def takers(self) -> tuple[Taker, ...]:
        """Everything that takes outputs and slots: the losses, then the metrics."""
        return (*self.terms, *self.metric_terms)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for copies and pickles, of which read-only mappings can have none."""
        return {**self.__dict__, **{name: dict(self.__dict__[name]) for name in READ_ONLY}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`__getstate__` returned."""
        read_only = {name: MappingProxyType(state[name]) for name in READ_ONLY}
        self.__dict__.update({**state, **read_only})


def changed(declarations: Declared, **fields: Any) -> Declared:
    """Return a copy of the declarations with some fields replaced; nothing is checked."""
    declarations = copy.copy(declarations)
    for name, value in fields.items():
        object.__setattr__(declarations, name, value)
    return declarations
