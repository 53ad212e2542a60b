"""The precisions that a net can compute in: float32 or, within its graph, bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Collection, Mapping, Sequence

from ...errors import names, shown, suggest
from ..compat import mx
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
    """

    name: str
    devices: Collection[str] = ("cpu", "gpu")
    rules: Rules | None = None

    @property
    def told(self) -> str:
        """What the log says of it."""
        assert self.rules is not None
        low = ", ".join(self.rules.low)
        return f"precision: {self.name} ({low} and what is between them); parameters and losses in float32"


# mxnet does not import them by itself; they are lists of names, and nothing is patched by importing them
symbol_bf16 = import_module(f"{mx.__name__}.contrib.amp.lists.symbol_bf16")


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

FULL = Precision("float32")
PRECISIONS = {
    "float32": FULL,
    # bfloat16 has float32's exponent, and so its range: gradients need no loss scaling.
    "bfloat16": Precision(
        "bfloat16",
        ("cpu",),
        Rules(tuple(symbol_bf16.BF16_FUNCS), LAYERS, _conditions(symbol_bf16.CONDITIONAL_FP32_FUNCS), MIXED),
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
        raise ValueError(
            f'precision is "{name}", which MXNet cannot compute on {wrong[0]}; '
            'give precision="float32", or a context of CPUs'
        )
    return found


def _kind(context: Any) -> str:
    return "gpu" if context.device_type == "gpu" else "cpu"
