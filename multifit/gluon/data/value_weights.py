"""The weights of a loss's values, by the classes of its label and by sample, as a slot of each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...checks import describe
from ...errors import DataError
from ...protocols import Slots
from ...spec import TaskSpec
from ...spec.names import listed
from ...spec.terms import Term
from ...spec.validate import BALANCED
from ..compat import mx
from ..losses import weighs_values
from .arrays import new_array

BalancedWeights = dict[str, Sequence[float]]
"""The weight of each class that was counted, by loss."""


class ValueWeights:
    """Adds to each batch the slots with the weights of the losses' values.

    A slot has the shape of the loss's label, or of `sample_weight` if there are no class weights and the loss
    takes none for single values. Its dtype is `real`. `balanced` holds the weights that were counted; until
    then, they are 1, which `log_once` logs.
    """

    def __init__(
        self, spec: TaskSpec, real: str, balanced: BalancedWeights, log_once: Callable[[str], None]
    ) -> None:
        self._terms = {term.weights.name: term for term in spec.terms if term.weights is not None}
        self._real, self._balanced, self._log_once = real, balanced, log_once
        self._tables: dict[Any, Any] = {}  # by their values and device

    def __bool__(self) -> bool:
        return bool(self._terms)

    def add(self, slots: Slots, size: int, axis: int) -> Slots:
        """Return one device's slots with the weights; None where a batch lacks what they are made from.

        `size` is the number of samples, which lie along `axis`. Raises DataError if the weights of samples
        fit neither the samples nor the label.
        """
        added: dict[str, Any] = dict(slots)
        for name, term in self._terms.items():
            taken = [*(ref.name for ref in term.labels), *listed(term.spec.sample_weight)]
            there = all(slots.get(slot) is not None for slot in taken)
            added[name] = self._weights(term, slots, size, axis) if there else None
        return added

    def _weights(self, term: Term, slots: Mapping[str, Any], size: int, axis: int) -> Any:
        label: Any = slots[term.labels[0].name] if term.labels else None
        weights = None
        if term.spec.class_weights is not None:
            weights = mx.nd.take(self._table(term, label.context), label)
        if term.spec.sample_weight is None:
            return weights
        samples = slots[term.spec.sample_weight].astype(self._real)
        if weights is not None or (term.labels and weighs_values(term.spec.fn)):
            samples = _like(term, samples, label, size, axis)
        return samples if weights is None else weights * samples

    def _table(self, term: Term, context: Any) -> Any:
        """Return the weight of each class as an array; of a label beyond it, MXNet takes the last one."""
        weights: Any = term.spec.class_weights
        if weights == BALANCED:
            weights = self._balanced.get(term.key, ())
            if not weights:
                self._log_once(f'{term.where}: class_weights="balanced" are 1 until fit counts the labels')
        if isinstance(weights, Mapping):
            weights = [weights.get(key, 1.0) for key in range(int(max(weights)) + 1)]
        beyond = () if isinstance(term.spec.class_weights, tuple) else (1.0,)
        key = (*weights, *beyond), context
        if key not in self._tables:
            self._tables[key] = new_array(np.array(key[0]), context, self._real)
        return self._tables[key]


def _like(term: Term, weights: Any, label: Any, size: int, axis: int) -> Any:
    """Return weights in the label's shape; a number per sample holds for all values of the sample."""
    if weights.size == label.size:
        return weights.reshape(label.shape)
    if weights.size == size:
        return weights.reshape([size if i == axis else 1 for i in range(label.ndim)]).broadcast_like(label)
    raise DataError(
        f'{term.where}: sample_weight "{term.spec.sample_weight}" is {describe.array(weights)}, and the '
        f'label "{term.labels[0].name}" {describe.array(label)}; give one number for each sample, or one for '
        "each of the label's values"
    )
