"""The precisions that a net can compute in: float32 or, within its graph, bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import names, shown, suggest
from ...protocols import Context
from .cpu_support import cpu_supports_bfloat16
from .rules import BFLOAT16_RULES, Rules


@dataclass(frozen=True)
class Precision:
    """How a net computes; its parameters, gradients, losses and metrics are always float32.

    Attributes
    ----------
    name : str
        The dtype.
    rules : Rules or None
        Which operators compute in it; None for float32.
    """

    name: str
    rules: Rules | None = None

    @property
    def description(self) -> str:
        """What is logged if it is not float32."""
        assert self.rules is not None
        operators = ", ".join(self.rules.low)
        return (
            f"precision: {self.name} ({operators} and what is between them); parameters and losses in float32"
        )


FULL = Precision("float32")
# bfloat16 has float32's exponent, and so its range: gradients need no loss scaling.
PRECISIONS = {"float32": FULL, "bfloat16": Precision("bfloat16", BFLOAT16_RULES)}


def named_precision(name: object) -> Precision:
    """Return the precision with a name.

    Raises
    ------
    ValueError
        There is none of this name.
    """
    precision = PRECISIONS.get(name) if isinstance(name, str) else None
    if precision is None:
        raise ValueError(
            f"precision is {shown(name)}{suggest(name, PRECISIONS)}; valid are {names(PRECISIONS)}"
        )
    return precision


def precision_of(name: object, contexts: Sequence[Context]) -> Precision:
    """Return the precision with a name, for these devices.

    Raises
    ------
    ValueError
        There is none of this name, or one of the devices cannot compute in it.
    """
    precision = named_precision(name)
    if precision.rules is None:
        return precision
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
