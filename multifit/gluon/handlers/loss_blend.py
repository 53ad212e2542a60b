"""Blend a spec's losses with losses that a handler computes, with the same weights and normalizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpecError, quoted, suggest
from ...protocols import Array
from ...spec import TaskSpec
from ...spec.names import Ref, listed
from ...spec.terms import Term
from ..compat import mx
from ..execution.loss_calls import as_variable, by_reference
from ..execution.loss_weights import BatchLossScale

# Handlers that only blend losses run before handlers that add to the objective (penalties, at the normal
# priority), so that they scale losses only.
BEFORE_PENALTIES = -100.0


class LossBlend:
    """Replaces a share of some losses of a spec in the objective by other values."""

    def __init__(self, spec: TaskSpec, terms: Sequence[Term]) -> None:
        self.terms = list(terms)
        self._all_terms = len(self.terms) == len(spec.terms)
        self._slots: list[Mapping[str, Any]] = []

    def begin(self) -> None:
        """Forget the last batch."""
        self._slots = []

    def add(self, slots: Mapping[str, Any]) -> None:
        """Remember a device's slots: a loss may read an input, which is not among the labels."""
        self._slots.append(slots)

    def computed(self, losses: Mapping[str, list[Any]]) -> list[Term]:
        """Return the terms that were computed: with a loader for each task, a batch may lack labels."""
        return [term for term in self.terms if not any(value is None for value in losses[term.key])]

    def arguments(
        self, pred: Mapping[str, list[Any]], label: Mapping[str, list[Any]]
    ) -> list[dict[Ref, Any]]:
        """Return the arrays that the losses can read, by reference, for each device."""
        return [by_reference(_at(pred, i), {**s, **_at(label, i)}) for i, s in enumerate(self._slots)]

    def blend(
        self,
        objectives: list[Array],
        share: float,
        losses: Mapping[str, list[Array]],
        replacements: Mapping[str, list[Array]],
        scale: BatchLossScale,
        axis: int,
    ) -> list[Array]:
        """Return objectives with a share of 1 - `share` of the losses, and of `share` of the replacements.

        `losses` and `replacements` hold, by loss, an array per device; `scale` is the batch's scale, and
        `axis` the axis of its samples. If all losses of the spec are blended, the objectives are scaled by
        1 - `share`, including what other handlers have changed. Otherwise the difference is added.
        """
        blended = [value * (1.0 - share) for value in objectives] if self._all_terms else list(objectives)
        for term in self.computed(losses):
            for slots, loss, replacement in zip(self._slots, losses[term.key], replacements[term.key]):
                array = next(slots[ref.name] for ref in term.args if slots.get(ref.name) is not None)
                size = array.shape[axis]
                value = _sum(replacement, size)
                value = value if self._all_terms else value - _sum(loss, size)
                factor = scale.factor(term, array.context).astype(value.dtype)
                blended.append(value * as_variable(factor) * share)
        return blended


def selected_terms(owner: str, spec: TaskSpec, loss: str | Sequence[str] | None) -> list[Term]:
    """Return the losses with the names `loss`, by default all; raises SpecError for an unknown name.

    `owner` is the handler's name, for the message.
    """
    by_key = {term.key: term for term in spec.terms}
    for key in listed(loss):
        if key not in by_key:
            near, valid = suggest(key, by_key), quoted(by_key)
            raise SpecError(f'{owner}: there is no loss "{key}"{near}; valid are {valid}')
    return [term for key, term in by_key.items() if loss is None or key in listed(loss)]


def _at(columns: Mapping[str, list[Any]], device: int) -> dict[str, Any]:
    return {name: values[device] for name, values in columns.items()}


def _sum(value: Any, size: int) -> Any:
    total = mx.nd.reshape(mx.nd.sum(value), (1,))
    return total * size if value.size == 1 else total  # a scalar is the mean over its device's samples
