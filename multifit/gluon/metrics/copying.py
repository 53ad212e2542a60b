"""An independent copy of a metric: evaluating beside training must not disturb the training figures."""

from __future__ import annotations

import copy
from typing import Any

from ..compat import mx

__all__ = ["copy_metric"]


def copy_metric(metric: Any) -> Any:
    """Copy a metric and reset the copy.

    ``copy.deepcopy`` alone fails on any metric that holds what cannot be copied, such as the lock in
    gluoncv's SegmentationMetric; such attributes are shared. So are Blocks and Parameters: a metric that
    looks at a net means that very net.

    Parameters
    ----------
    metric : mxnet.metric.EvalMetric
        Any metric; it is left as it is.

    Returns
    -------
    mxnet.metric.EvalMetric
        Of the same class and configuration, reset.
    """
    twin = _copy(metric, {})
    twin.reset()
    return twin


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Copy what can be copied; metrics, also those inside of lists, attribute by attribute.

    `memo` is deepcopy's: what is there twice in the original is there twice in the copy.
    """
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, (mx.gluon.Block, mx.gluon.Parameter, mx.gluon.ParameterDict)):
        return value
    if isinstance(value, mx.metric.EvalMetric):
        twin = memo[id(value)] = object.__new__(type(value))
        twin.__dict__.update({name: _copy(part, memo) for name, part in vars(value).items()})
        return twin
    if type(value) in (list, tuple):
        return type(value)(_copy(part, memo) for part in value)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # whatever an object raises that does not want to be copied
        return value
