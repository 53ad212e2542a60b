"""Which of MXNet's operators compute in a lower precision."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from ..compat import mx


@dataclass(frozen=True)
class Rules:
    """Which operators of a graph compute in the lower precision; all others compute in float32.

    Attributes
    ----------
    low : collection of str
        Operators that always do: their inputs are cast to it.
    either : collection of str
        Operators that compute in the precision of their inputs: the lower one if all inputs are in it.
    float32_if : mapping of str to (str, collection of str)
        An attribute of an operator in `either`, and its values that need float32.
    first_input_only : collection of str
        Operators in `either` whose other inputs are always float32, such as the statistics of BatchNorm.
    """

    low: Collection[str]
    either: Collection[str]
    float32_if: Mapping[str, tuple[str, Collection[str]]] = field(default_factory=dict)
    first_input_only: Collection[str] = ()

    def takes_either(self, operator: str, attributes: Mapping[str, str]) -> bool:
        """Return whether an operator computes in the precision of its inputs.

        Parameters
        ----------
        operator : str
            MXNet's name of the operator.
        attributes : mapping of str to str
            The node's attributes.
        """
        attribute, values = self.float32_if.get(operator, ("", ()))
        return operator in self.either and attributes.get(attribute) not in values


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


BFLOAT16_RULES = _bfloat16_rules()
