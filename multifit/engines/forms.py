"""The form of outputs and losses in the first batch, which later batches must share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from ..checks import describe
from ..errors import SpecError, counted
from ..protocols import Shape
from ..spec.terms import Term


class ResultForms:
    """Checks that outputs and losses keep the form that they had in the first batch; only shapes are read.

    The number of parts of a loss, the number of axes and the dtype of an array must not change. If the first
    axis had one element per sample, its length must stay a multiple of the number of samples, or stay the
    same, because it may have matched by chance. A first axis of any other length may change from batch to
    batch, as the number of boxes does. A batch of a single sample does not show which of these an array is;
    the first batch with more samples decides.

    Arrays are of type `kind`, which is `name` in words. If `ones_are_numbers`, a part of a loss with one
    element is one number for all samples, a mean, and must stay one number.

    `samples` is the number of samples of the device whose arrays are checked next. If `batch_axis` is not the
    first axis, no first axis has an element per sample.
    """

    def __init__(self, kind: type, name: str, ones_are_numbers: bool = False) -> None:
        self._kind, self._name, self._ones_are_numbers = kind, name, ones_are_numbers
        self.samples, self.batch_axis = 1, 0
        self._forms: dict[tuple[str, int], _Form] = {}  # by output, or by loss and part
        self._parts: dict[str, int] = {}

    def is_number(self, term: Term, part: int) -> bool:
        """Whether a part of a loss is one number for all samples of a device."""
        form = self._forms.get((f"{term.where}: returns", part))
        return form is not None and form.is_number

    def check_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Check one device's outputs; raises SpecError if one does not have its form of the first batch."""
        for name, value in outputs.items():
            self._check((f'outputs: the net returns "{name}" as', 0), value)

    def check_loss(self, term: Term, parts: Sequence[Any]) -> None:
        """Check the parts of a loss on one device; raises SpecError as :meth:`check_outputs` does."""
        where = f"{term.where}: returns"
        before = self._parts.setdefault(where, len(parts))
        if len(parts) != before:
            returned = f"{counted(len(parts), 'part')}, {describe.structure(list(parts))}"
            raise SpecError(f"{where} {returned}, but {before} in the first batch; {_WAY_OUT}")
        for number, value in enumerate(parts):
            self._check((where, number), value, of_loss=True)

    def _check(self, key: tuple[str, int], value: Any, of_loss: bool = False) -> None:
        first = self._forms.get(key)
        if isinstance(value, self._kind):
            shape = value.shape  # type: ignore[attr-defined]
            is_number = of_loss and self._ones_are_numbers and self.samples > 1 and prod(shape) == 1
            form = _Form(shape, value.dtype, self.samples, is_number)  # type: ignore[attr-defined]
            if first is None or first[:2] == form[:2] or _is_alike(first, form, self.batch_axis == 0):
                if first is None or first.samples == 1:
                    self._forms[key] = form
                return
        returned = f"{key[0]} {describe.structure(value)} in a batch of {counted(self.samples, 'sample')}"
        before = self._name if first is None else f"{describe.array(first)} in the first batch"
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
