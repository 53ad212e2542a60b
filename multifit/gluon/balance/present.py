"""Which tasks have labels in a batch."""

from typing import Any

import numpy as np

from ...balance.means import measured_rows
from ...balance.tasks import Tasks
from ...protocols import Array, Numbers
from ..compat import mx
from ..data.arrays import new_array


def tasks_with_labels(result: Any, tasks: Tasks) -> Numbers | Array:
    """Return 1 for each task that has a loss with labels in a batch of any rank, else 0, as float64 (K,).

    A loss of weight 0 does not count. If labels were counted on a device, the array is on that device.
    """
    sums = tasks.normalizers(result.scale)
    on_device = [each.context for each in sums if isinstance(each, mx.nd.NDArray)]
    if not on_device:
        return (np.array(sums) != 0).astype(np.float64)
    counted = (
        each if isinstance(each, mx.nd.NDArray) else new_array([each], on_device[0], "float64")
        for each in sums
    )
    return mx.nd.concat(*counted, dim=0) != 0


def labelled_rows(result: Any, tasks: Tasks, weights: Numbers) -> Numbers | Array:
    """Return the rows to add to the means of the weights, of the tasks with labels in a batch."""
    return weight_rows(weights, tasks_with_labels(result, tasks))


def weight_rows(weights: Numbers, there: Numbers | Array) -> Numbers | Array:
    """Return the rows to add to the means of the weights; `there` is 1 for the tasks that count, else 0."""
    if isinstance(there, np.ndarray):
        return measured_rows(weights, there)
    return mx.nd.stack(new_array(weights, there.context, "float64") * there, there, axis=0)
