"""Copy a metric, so that an evaluation within training does not change the training figures."""

from __future__ import annotations

import copy
from typing import Any

from ..compat import mx


def copy_metric(metric: mx.metric.EvalMetric) -> mx.metric.EvalMetric:
    """Copy a metric and reset the copy.

    Attributes that cannot be copied, such as the lock of gluoncv's SegmentationMetric, are shared;
    ``copy.deepcopy`` alone would raise for them. Blocks and Parameters are shared too, because a metric that
    uses a net must use that same net.
    """
    twin = _copy(metric, {})
    twin.reset()
    return twin


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Copy what can be copied; copy metrics, also those in lists, attribute by attribute.

    `memo` is the memo of ``copy.deepcopy``: an object that the original holds twice is copied once.
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
    except Exception:  # objects that cannot be copied raise all kinds of errors
        return value
