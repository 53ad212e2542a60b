"""The precisions in which a net can compute: float32 or, within its graph, bfloat16 or float16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from ...errors import quoted, shown, suggest
from ...protocols import Context
from ..compat import mx
from .lowering import Rules, lower


@dataclass(frozen=True)
class Precision:
    """The precision in which a net computes; gradients, losses and metrics have the parameters' dtype.

    `name` is the dtype, and `rules` say which operators compute in it: None for float32. `of_mxnet` says
    whether MXNet can compute in it. `on_other_engine` says whether another engine computes in it,
    while MXNet itself computes in float32.
    """

    name: str
    rules: Rules | None = None
    of_mxnet: bool = True
    on_other_engine: bool = False

    @property
    def description(self) -> str:
        """The line that is logged if it is not float32."""
        assert self.rules is not None
        operators = ", ".join(self.rules.low)
        return (
            f"precision: {self.name} ({operators} and what is between them); parameters and losses in float32"
        )


def _bfloat16_rules() -> Rules:
    # MXNet does not import this module of lists by itself. Importing it patches nothing.
    lists = import_module(f"{mx.__name__}.contrib.amp.lists.symbol_bf16")
    float32_if = {
        operator: (attribute, tuple(values)) for operator, attribute, values in lists.CONDITIONAL_FP32_FUNCS
    }
    attribute, values = float32_if["LeakyReLU"]
    float32_if["LeakyReLU"] = attribute, (*values, "rrelu")  # it draws random numbers
    return Rules(
        low=tuple(lists.BF16_FUNCS),
        # Only oneDNN's operators: the others that MXNet allows in bfloat16 (abs, clip, relu, tanh, ...) take
        # 3 to 30 times as long as in float32. With these there is no cast between two convolutions, which
        # halves the step of a ResNet.
        either=("Activation", "BatchNorm", "Concat", "LeakyReLU", "Pooling", "elemwise_add"),
        float32_if=float32_if,
        first_input_only=("BatchNorm",),
    )


FULL = Precision("float32")
# bfloat16 has the exponent, and so the range, of float32: it needs no loss scaling, but float16 does.
PRECISIONS = {
    "float32": FULL,
    "bfloat16": Precision("bfloat16", _bfloat16_rules()),
    "float16": Precision("float16", _bfloat16_rules(), of_mxnet=False),
}


@cache
def cpu_supports_bfloat16() -> bool:
    """Return whether oneDNN has bfloat16 operators for this CPU, by running the smallest of them once.

    oneDNN needs AVX512 for all of them. If the CPU lacks only the instructions of AVX512-BF16, oneDNN
    emulates these.
    """
    rectifier = mx.sym.Activation(mx.sym.var("x"), act_type="relu", name="bfloat16_support")
    (lowered,), _ = lower([rectifier], "bfloat16", Rules(low=("Activation",), either=()))
    try:
        mx.nd.CachedOp(lowered)(mx.nd.ones((1, 1), ctx=mx.cpu())).wait_to_read()
    except mx.base.MXNetError:  # "could not create a primitive descriptor iterator"
        return False
    return True


def named_precision(name: object) -> Precision:
    """Return the precision with a name; raises ValueError if there is none."""
    precision = PRECISIONS.get(name) if isinstance(name, str) else None
    if precision is None:
        raise ValueError(
            f"precision is {shown(name)}{suggest(name, PRECISIONS)}; valid are {quoted(PRECISIONS)}"
        )
    return precision


def precision_of(name: object, contexts: Sequence[Context]) -> Precision:
    """Return the precision with a name; raises ValueError if there is none, or none on these devices."""
    precision = named_precision(name)
    if precision.rules is None:
        return precision
    if not precision.of_mxnet:
        raise ValueError(
            f'precision is "{name}", which MXNet cannot train in; '
            'give precision="bfloat16" or "float32", or engine="torch"'
        )
    gpus = [context for context in contexts if context.device_type == "gpu"]
    if gpus:
        raise ValueError(
            f'precision is "{name}", which MXNet cannot compute on {gpus[0]}; '
            'give precision="float32", or a context of CPUs'
        )
    if not cpu_supports_bfloat16():
        raise ValueError(
            f'precision is "{name}", which this CPU cannot compute: it lacks AVX512; give precision="float32"'
        )
    return precision
