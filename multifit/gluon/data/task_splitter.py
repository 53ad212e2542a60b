"""Turn the batches of several loaders, each with its own task's slots, into named arrays on every device."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engines import task_splitter
from ...engines.task_splitter import Parts, joined_slots
from ...errors import Problem
from ...spec import TaskSpec
from ..compat import mx
from .arrays import mxnet_dtype, place
from .missing import MissingLabels


class TaskSplitter(task_splitter.TaskSplitter):
    """Splits the batches of several loaders into arrays of MXNet."""

    def join(self, parts: Parts) -> tuple[dict[str, Any], list[Problem]]:
        """Return the slots of the batch that the loaders' batches make together, and the problems found."""
        return joined_batch(self._spec, parts)


def joined_batch(spec: TaskSpec, parts: Parts) -> tuple[dict[str, Any], list[Problem]]:
    """Join the batches of several loaders into one; see :func:`joined_slots`."""
    return joined_slots(spec, parts, MissingLabels(spec.label_specs), _common_dtype, _concatenated)


def _common_dtype(arrays: Sequence[Any]) -> Any:
    return np.result_type(*[array.dtype for array in arrays])


def _concatenated(arrays: Sequence[Any], dtype: Any) -> Any:
    """Concatenate NumPy arrays or NDArrays; `dtype` is their common dtype according to NumPy."""
    first = next((array for array in arrays if isinstance(array, mx.nd.NDArray)), None)
    if first is None:
        return np.concatenate(arrays)
    return mx.nd.concat(*(place(array, first.context, mxnet_dtype(dtype)) for array in arrays), dim=0)
