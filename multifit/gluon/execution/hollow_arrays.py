"""Arrays that have a shape and a dtype, but neither numbers nor memory."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ...protocols import Array, Shape
from ..compat import mx


def hollow(shape: Shape, dtype: Any) -> Array:
    """Return an array for which MXNet allocates no memory unless an operator writes to it."""
    return mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle(shape, mx.cpu(), True, dtype))


def hollow_results(operator: Callable[..., Any], arrays: Sequence[Array]) -> list[Array] | None:
    """Return arrays like the results of an operator, which takes and returns symbols.

    Returns None if their shapes or dtypes depend on numbers. Raises MXNetError if the operator cannot take
    such arrays.
    """
    inputs = [mx.sym.var(f"x{i}", shape=each.shape, dtype=each.dtype) for i, each in enumerate(arrays)]
    result = operator(inputs)
    shapes, dtypes = result.infer_shape_partial()[1], result.infer_type_partial()[1]
    if not (all(dtypes) and all(shape and min(shape) > 0 for shape in shapes)):
        return None
    return [hollow(shape, dtype) for shape, dtype in zip(shapes, dtypes)]
