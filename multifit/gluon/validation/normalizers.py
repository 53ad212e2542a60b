"""Check the normalizers of losses in the first batch, where waiting for them is allowed."""

from __future__ import annotations

import math

from ...errors import Problem, SpecError
from ...spec.terms import Term
from ..compat import mx
from ..data.batch import Batch
from ..execution.loss_weights import VALID_NORMALIZER, normalizer


def inspect_normalizer(term: Term, batch: Batch) -> list[Problem]:
    """Check the sum of a loss's normalizer over all devices; waits for the engine."""
    if term.spec.normalize_by is None:
        return []
    try:
        total = normalizer(term, batch)
    except SpecError as error:
        return list(error.problems)
    total = float(total.asscalar()) if isinstance(total, mx.nd.NDArray) else total
    if 0 <= total < math.inf:
        return []
    return [Problem("spec", f"{term.where}: the sum of normalize_by is {total}; {VALID_NORMALIZER}")]
