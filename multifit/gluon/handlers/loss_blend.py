"""Losses that a handler computes in another way, counted as the estimator counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpecError, names, suggest
from ...spec.names import Ref, listed
from ...spec.terms import Term
from ..compat import mx
from ..data.batches import Batch
from ..execution.loss_graph import LossGraph, anchored, fetch
from ..execution.loss_weights import LossScaler

__all__ = ["BEFORE_PENALTIES", "LossBlend", "chosen"]

# Of handlers that change the objective: what only shifts weight between losses comes before what adds to them
# (a penalty, at the normal priority), so that it scales nothing but losses.
BEFORE_PENALTIES = -100.0


class LossBlend:
    """Moves a share of what some losses count to other values, computed in their place.

    Parameters
    ----------
    spec : TaskSpec
        Whose losses they are.
    terms : sequence of Term
        Those meant.
    """

    def __init__(self, spec: Any, terms: Sequence[Term]) -> None:
        self.terms = list(terms)
        self._all = len(self.terms) == len(spec.terms)
        self._weights = LossScaler(self.terms)
        self._heads = {term.key: LossGraph([term], []) for term in self.terms}
        self._slots: list[Mapping[str, Any]] = []

    def begin(self) -> None:
        """Forget the last batch."""
        self._slots = []

    def see(self, slots: Mapping[str, Any]) -> None:
        """Keep a device's slots; a loss may take an input, which is no label."""
        self._slots.append(slots)

    def arrays(self, pred: Mapping[str, list[Any]], label: Mapping[str, list[Any]]) -> list[dict[Ref, Any]]:
        """Return per device what the losses take, by reference."""
        return [fetch(_at(pred, i), slots) for i, slots in enumerate(self._final(label))]

    def moved(
        self,
        estimator: Any,
        objectives: list[Any],
        share: float,
        own: Mapping[str, list[Any]],
        other: Mapping[str, list[Any]],
        label: Mapping[str, list[Any]],
    ) -> list[Any]:
        """Return objectives whose sum counts the losses' `own` values 1 - `share`, the `other` ones `share`.

        Where all losses of the spec are meant, the objectives are scaled: what other handlers made of the
        losses then counts 1 - `share`. Otherwise the difference is added.

        Parameters
        ----------
        own, other : mapping of str to list of NDArray
            By loss: its values, and those in their place, per device.
        label : mapping of str to list of NDArray
            The labels as they were counted; normalisers come from there.
        """
        batch = self._batch(self._final(label), estimator.batch_axis)
        factors = self._weights.factors(batch, estimator.state)
        changed = [value * (1.0 - share) for value in objectives] if self._all else list(objectives)
        for term in self.terms:
            for i, (context, size) in enumerate(zip(batch.contexts, batch.sizes)):
                factor = self._weights.vector(self._heads[term.key], factors, context)
                value = _sum(other[term.key][i], size)
                value = value if self._all else value - _sum(own[term.key][i], size)
                changed.append(value * anchored(factor) * share)
        return changed

    def _final(self, label: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
        return [{**slots, **_at(label, i)} for i, slots in enumerate(self._slots)]

    def _batch(self, slots: list[dict[str, Any]], axis: int) -> Batch:
        wanted = self.terms[0].args
        arrays = [next(own[ref.name] for ref in wanted if own.get(ref.name) is not None) for own in slots]
        sizes = [array.shape[axis] for array in arrays]
        return Batch(None, sum(sizes), [array.context for array in arrays], slots, sizes)


def chosen(who: str, spec: Any, loss: Any) -> list[Term]:
    """Return the losses that are named, all where `loss` is None.

    Raises
    ------
    SpecError
        There is no such loss.
    """
    by_key = {term.key: term for term in spec.terms}
    for key in listed(loss):
        if key not in by_key:
            raise SpecError(
                f'{who}: there is no loss "{key}"{suggest(key, by_key)}; valid are {names(by_key)}'
            )
    return [term for key, term in by_key.items() if loss is None or key in listed(loss)]


def _at(columns: Mapping[str, list[Any]], device: int) -> dict[str, Any]:
    return {name: values[device] for name, values in columns.items()}


def _sum(value: Any, size: int) -> Any:
    total = mx.nd.reshape(mx.nd.sum(value), (1,))
    return total * size if value.size == 1 else total  # a scalar is its device's mean
