"""The form of outputs and losses in the first batch, which later batches must share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import describe
from ..errors import SpecError, counted
from ..spec.terms import Term
from .batch import Batch

WAY_OUT = (
    "return the same form in every batch: the same number of axes, and a row for each sample or one number "
    "for all (where there is nothing to learn, 0 * loss in the loss's shape)"
)
Form = tuple[torch.Size, torch.dtype, int]  # of a tensor, in a batch of so many samples


class ResultForms:
    """Checks that outputs and losses keep the form that they had in the first batch; only shapes are read.

    The number of parts of a loss, the number of axes and the dtype of a tensor must not change. If the first
    axis had one element per sample, its length must stay a multiple of the number of samples, or stay the
    same, because it may have matched by chance; a batch of one sample does not show that.
    """

    def __init__(self) -> None:
        self._forms: dict[tuple[str, int], Form] = {}  # by output, or by loss and part
        self._labels: dict[str, Tensor] = {}  # those that losses took first, without values

    def check_outputs(self, outputs: Mapping[str, Any], batch: Batch) -> None:
        """Check the net's outputs; raises SpecError if one has another form than in the first batch."""
        for name, value in outputs.items():
            self._check((f'outputs: the net returns "{name}" as', 0), value, batch)

    def check_loss(self, term: Term, parts: Sequence[Any], batch: Batch) -> None:
        """Check the parts of a loss, and its labels, which PyTorch would broadcast if they had other axes.

        Raises SpecError as :meth:`check_outputs` does. Losses of Gluon reshape their labels.
        """
        for ref in term.labels if not hasattr(term.spec.fn, "class_axis") else ():
            label = batch.slots[ref.name]
            assert label is not None
            first = self._labels.get(ref.name)
            if first is None:
                first = self._labels[ref.name] = torch.empty_like(label, device="meta")
            if first.dim() != label.dim():
                raise SpecError(
                    f'{term.where}: the label "{ref.name}" is {describe.array(label)}, but '
                    f"{describe.array(first)} in the first batch; give the same number of axes in every batch"
                )
        where = f"{term.where}: returns"
        if len(parts) != len(term.parts):
            returned = f"{counted(len(parts), 'part')}, {describe.structure(list(parts))}"
            raise SpecError(f"{where} {returned}, but {len(term.parts)} in the first batch; {WAY_OUT}")
        for number, value in enumerate(parts):
            self._check((where, number), value, batch)

    def _check(self, key: tuple[str, int], value: Any, batch: Batch) -> None:
        first = self._forms.get(key)
        if isinstance(value, Tensor):
            form = value.shape, value.dtype, batch.samples
            if first is None or first[:2] == form[:2] or _is_alike(first, form, batch.axis):
                if first is None or first[2] == 1:
                    self._forms[key] = form
                return
        returned = f"{key[0]} {describe.structure(value)} in a batch of {counted(batch.samples, 'sample')}"
        shape = "a tensor" if first is None else f"{tuple(first[0])} {str(first[1])[6:]} in the first batch"
        raise SpecError(f"{returned}, but {shape}; {WAY_OUT}")


def _is_alike(first: Form, form: Form, axis: int) -> bool:
    """Whether a tensor has the form of the first batch; rows are samples if these are along axis 0."""
    if form[1] != first[1] or len(form[0]) != len(first[0]):
        return False
    had_rows = axis == 0 and first[2] > 1 and first[0][:1] == (first[2],)
    # there may be several rows per sample, such as tokens, even if the first batch had one token per sentence
    return not had_rows or form[0][0] == first[0][0] or form[0][0] % form[2] == 0
