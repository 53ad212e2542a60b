"""Whether this CPU computes in bfloat16."""

from __future__ import annotations

from functools import cache

from ..compat import mx
from .lowering import lower
from .rules import Rules


@cache
def cpu_supports_bfloat16() -> bool:
    """Return whether oneDNN has bfloat16 operators for this CPU, by running the smallest of them once.

    oneDNN needs AVX512 for all of them. It emulates the instructions of AVX512-BF16 where only these lack.
    """
    rectifier = mx.sym.Activation(mx.sym.var("x"), act_type="relu", name="bfloat16_support")
    (lowered,), _ = lower([rectifier], "bfloat16", Rules(low=("Activation",), either=()))
    try:
        mx.nd.CachedOp(lowered)(mx.nd.ones((1, 1), ctx=mx.cpu())).wait_to_read()
    except mx.base.MXNetError:  # "could not create a primitive descriptor iterator"
        return False
    return True
