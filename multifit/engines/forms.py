"""The form of outputs and losses in the first batch, which later batches must share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..spec.checks import describe
from ..spec.terms import Term
from ..utils.errors import SpecError
from ..utils.protocols import Shape
from ..utils.text import counted


class ResultForms:
    """Checks that outputs and losses keep the form that they had in the first batch; only shapes are read.

    The number of parts of a loss, the number of axes and the dtype of an array must not change. If the first
    axis had one element per sample, its length must stay a multiple of the number of samples, or stay the
    same, because it may have matched by chance. A first axis of any other length may change from batch to
    batch, as the number of boxes does. A loss that was one number for all samples must stay one number: it is
    a mean that counts for all samples, whereas elements are added up. A batch of a single sample does not
    show which of these an array is; the first batch with more samples decides.

    `array_type` is the type of arrays. Checks take the number of samples of the device that computed the
    arrays. If the axis of the samples is not the first one, no first axis has an element per sample.
    """

    def __init__(self, array_type: Any) -> None:
        self._array_type = array_type
        self._forms: dict[tuple[str, int], _Form] = {}  # by output, or by loss and part
        self._parts: dict[str, int] = {}

    def is_number(self, term: Term, part: int) -> bool:
        """Whether a part of a loss is one number for all samples of a device."""
        form = self._forms.get((term.where, part))
        return form is not None and form.is_number

    def check_outputs(self, outputs: Mapping[str, Any], samples: int, axis: int) -> None:
        """Check one device's outputs; raises SpecError if one does not have its form of the first batch."""
        for name, value in outputs.items():
            self._check((f'outputs: the net returns "{name}" as', 0), value, samples, axis)

    def check_loss(self, term: Term, parts: Sequence[Any], samples: int, axis: int) -> None:
        """Check the parts of a loss on one device; raises SpecError as :meth:`check_outputs` does."""
        before = self._parts.setdefault(term.where, len(parts))
        if len(parts) != before:
            returned = f"returns {counted(len(parts), 'part')}, {describe.structure(list(parts))}"
            raise SpecError(f"{term.where}: {returned}, but {before} in the first batch; {_WAY_OUT}")
        for i, value in enumerate(parts):
            self._check((term.where, i), value, samples, axis, of_loss=True)

    def _check(
        self, key: tuple[str, int], value: Any, samples: int, axis: int, of_loss: bool = False
    ) -> None:
        first = self._forms.get(key)
        if isinstance(value, self._array_type):
            shape = tuple(value.shape)
            is_number = of_loss and samples > 1 and math.prod(shape) == 1
            form = _Form(shape, value.dtype, samples, is_number)
            if first is None or _is_alike(first, form, has_rows=axis == 0):
                if first is None or first.samples == 1:
                    self._forms[key] = form
                return
        where = f"{key[0]}: returns" if of_loss else key[0]
        returned = f"{where} {describe.structure(value)} in a batch of {counted(samples, 'sample')}"
        before = "an array" if first is None else f"{describe.array(first)} in the first batch"
        raise SpecError(f"{returned}, but {before}; {_WAY_OUT}")


class _Form(NamedTuple):
    shape: Shape
    dtype: Any
    samples: int
    is_number: bool


_WAY_OUT = (
    "return the same form in every batch: the same number of axes, and a row for each sample or one number "
    "for all (where there is nothing to learn, 0 * loss in the loss's shape)"
)


def _is_alike(first: _Form, form: _Form, has_rows: bool) -> bool:
    """Whether an array has the form of the first batch; `has_rows` if the first axis holds the samples."""
    if form.dtype != first.dtype:
        return False
    if first.is_number:
        return all(length == 1 for length in form.shape)
    if len(form.shape) != len(first.shape):
        return False
    had_rows = has_rows and first.samples > 1 and first.shape[:1] == (first.samples,)
    # there may be several rows per sample, such as tokens, even if the first batch had one token per sentence
    return not had_rows or form.shape[0] == first.shape[0] or form.shape[0] % form.samples == 0
