"""The weights of a loss's values, by the classes of its label and by sample, as a slot of each batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...engines import added_slots
from ...spec.terms import Term
from ..compat import mx
from ..losses import weighs_values
from .arrays import new_array


class ValueWeights(added_slots.ValueWeights):
    """Adds to each batch the slots with the weights of the losses' values, as arrays of MXNet.

    A slot has the shape of the loss's label, or of `sample_weight` if there are no class weights and the loss
    takes none for single values.
    """

    def new_table(self, weights: tuple[float, ...], device: Any) -> Any:
        """Return weights of classes as an array of dtype `real`."""
        return new_array(np.array(weights), device, self._real)

    def weights_of(self, term: Term, slots: Mapping[str, Any], size: int, axis: int) -> Any:
        """Return the weights of a loss's values."""
        label: Any = slots[term.labels[0].name] if term.labels else None
        weights = None
        if term.spec.class_weights is not None:
            weights = mx.nd.take(self.table(term, label.context), label)
        if term.spec.sample_weight is None:
            return weights
        samples = slots[term.spec.sample_weight].astype(self._real)
        if weights is not None or (term.labels and weighs_values(term.spec.fn)):
            if samples.size == label.size:
                samples = samples.reshape(label.shape)
            elif samples.size == size:  # a number per sample holds for all values of the sample
                shape = [size if i == axis else 1 for i in range(label.ndim)]
                samples = samples.reshape(shape).broadcast_like(label)
            else:
                raise self.misfit(term, samples, label)
        return samples if weights is None else weights * samples
