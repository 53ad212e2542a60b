"""In how many bits a net computes: float32, or, within its graph alone, bfloat16 or float16."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Collection, Mapping, Sequence

from ...errors import names, shown, suggest
from ..compat import mx
from .loss_scaling import LossScaling, NoScaling
from .lowering import Rules

__all__ = ["FULL", "PRECISIONS", "Precision", "named_precision", "precision_of"]


@dataclass(frozen=True)
class Precision:
    """How a net computes; its parameters, gradients, losses and figures are float32 in any case.

    Attributes
    ----------
    name : str
        Which dtype the rules lower to.
    devices : collection of {"cpu", "gpu"}
        Where MXNet has kernels for it.
    rules : Rules or None
        Which operators compute in it; None where nothing is to be lowered.
    scaling : callable
        Makes what keeps gradients in its range; new for every fit.
    """

    name: str
    devices: Collection[str] = ("cpu", "gpu")
    rules: Rules | None = None
    scaling: Callable[[], Any] = NoScaling

    @property
    def told(self) -> str:
        """What the log says of it."""
        assert self.rules is not None
        low = ", ".join(self.rules.low)
        return f"precision: {self.name} ({low} and what is between them); parameters and losses in float32"


# mxnet does not import them by itself; they are lists of names, and nothing is patched by importing them
symbol_bf16 = import_module(f"{mx.__name__}.contrib.amp.lists.symbol_bf16")
symbol_fp16 = import_module(f"{mx.__name__}.contrib.amp.lists.symbol_fp16")


def _conditions(listed: Sequence[Any]) -> Mapping[str, tuple[str, Collection[str]]]:
    found = {operator: (attribute, tuple(values)) for operator, attribute, values in listed}
    attribute, values = found["LeakyReLU"]
    return {**found, "LeakyReLU": (attribute, (*values, "rrelu"))}  # draws random numbers of its own


# Which products are lowered is MXNet's list. Of the operators that it lets pass in either precision, only
# oneDNN's are taken along on a CPU: the others (abs, clip, relu, tanh, ...) exist for bfloat16, but take 3 to
# 30 times as long as for float32. Activation, BatchNorm, Pooling and the sum of two branches between
# two convolutions halve a step of ResNet: nothing is cast there.
LAYERS = ("Activation", "BatchNorm", "Concat", "LeakyReLU", "Pooling", "elemwise_add")
MIXED = ("BatchNorm",)  # its statistics and their scale stay float32
SHAPES = (
    "Dropout",
    "Flatten",
    "Reshape",
    "SliceChannel",
    "SwapAxis",
    "expand_dims",
    "slice_axis",
    "transpose",
)

FULL = Precision("float32")
PRECISIONS = {
    "float32": FULL,
    # It has float32's exponent, and so its range: what underflows in bfloat16 does in float32. No scaling.
    "bfloat16": Precision(
        "bfloat16",
        ("cpu",),
        Rules(tuple(symbol_bf16.BF16_FUNCS), LAYERS, _conditions(symbol_bf16.CONDITIONAL_FP32_FUNCS), MIXED),
    ),
    "float16": Precision(
        "float16",
        ("gpu",),
        Rules(
            tuple(symbol_fp16.FP16_FUNCS),
            LAYERS + SHAPES,
            _conditions(symbol_fp16.CONDITIONAL_FP32_FUNCS),
            MIXED,
        ),
        LossScaling,
    ),
}


def named_precision(name: Any) -> Precision:
    """Return the precision of a name.

    Raises
    ------
    ValueError
        There is none of this name.
    """
    found = PRECISIONS.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(
            f"precision is {shown(name)}{suggest(name, PRECISIONS)}; valid are {names(PRECISIONS)}"
        )
    return found


def precision_of(name: Any, contexts: Sequence[Any]) -> Precision:
    """Return the precision of a name, for these devices.

    Raises
    ------
    ValueError
        There is none of this name, or MXNet cannot compute in it on one of the devices.
    """
    found = named_precision(name)
    wrong = [context for context in contexts if _kind(context) not in found.devices]
    if wrong:
        here = [each for each, known in PRECISIONS.items() if _kind(wrong[0]) in known.devices]
        raise ValueError(
            f'precision is "{name}", in which MXNet cannot compute on {wrong[0]}; valid there are '
            f'{names(here)}: give precision="{here[-1]}", or a context of {found.devices[0].upper()}s'
        )
    return found


def _kind(context: Any) -> str:
    return "gpu" if context.device_type == "gpu" else "cpu"
