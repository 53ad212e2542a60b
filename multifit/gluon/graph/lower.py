"""The dtypes in which a net's graph computes: bfloat16 and float16."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import islice
from typing import Any

from ...engines import precision_name
from ...utils.protocols import Context
from ..compat import mx
from .builder import GraphBuilder, Input, Node, moved

FLOAT32 = "float32"


@dataclass(frozen=True)
class Rules:
    """Which of MXNet's operators compute in the lower precision; all others compute in float32.

    Operators in `low` always do: their inputs are cast to it. Operators in `either` compute in the precision
    of their inputs, but in float32 if an attribute has one of the values in `float32_if`. That is a mapping
    ``{operator: (attribute, values)}``. For operators in `first_input_only`, such as BatchNorm, only the
    first input counts; the others are always float32.
    """

    low: Collection[str]
    either: Collection[str]
    float32_if: Mapping[str, tuple[str, Collection[str]]] = field(default_factory=dict)
    first_input_only: Collection[str] = ()

    def takes_either(self, operator: str, attributes: Mapping[str, str]) -> bool:
        """Return whether an operator with these attributes computes in the precision of its inputs."""
        attribute, values = self.float32_if.get(operator, ("", ()))
        return operator in self.either and attributes.get(attribute) not in values


def lower(symbols: Sequence[mx.sym.Symbol], dtype: str, rules: Rules) -> tuple[list[mx.sym.Symbol], int]:
    """Return the outputs of a graph, computed in `dtype` where the rules allow it.

    The new graph casts the inputs of its operators, including parameters, and casts its outputs back. It uses
    MXNet's ``amp_cast``, whose gradient has the dtype of its input: float32 parameters get float32 gradients.
    Unlike ``mx.contrib.amp.init``, this changes nothing outside of the graph. Unlike ``amp.convert_symbol``,
    it also casts the inputs of operators that are in no list, which may have no kernel for `dtype`.

    Parameters
    ----------
    symbols : sequence of Symbol
        Outputs of one graph.
    dtype : str
        The lower precision, such as ``"bfloat16"``.
    rules : Rules
        Which operators compute in it.

    Returns
    -------
    symbols : list of Symbol
        The outputs, with the same variables; an output that is a variable is returned itself.
    count : int
        The number of operators that compute in `dtype`.
    """
    computed = [symbol for symbol in symbols if not _is_variable(symbol)]
    if not computed:
        return list(symbols), 0
    group = mx.sym.Group(computed)
    lowered = _LoweredGraph(json.loads(group.tojson()), dtype, rules)
    copy = lowered.symbol()
    # The loaded graph has variables of its own; replace them by those that the rest of the graph shares.
    variables = {each.name: each for each in group.get_internals() if _is_variable(each)}
    copied = iter(copy(**variables))
    outputs = [symbol if _is_variable(symbol) else _take_outputs(copied, symbol) for symbol in symbols]
    return outputs, lowered.count


class _LoweredGraph:
    """Copies a graph and adds casts; `count` of its operators then compute in the lower precision."""

    def __init__(self, graph: Mapping[str, Any], dtype: str, rules: Rules) -> None:
        self.count = 0
        self._graph, self._dtype, self._rules = graph, dtype, rules
        self._builder = GraphBuilder(graph)
        self._low: set[int] = set()  # the nodes whose outputs are in the lower precision
        self._casts: dict[tuple[int, int, str], Input] = {}

    def symbol(self) -> mx.sym.Symbol:
        """Return the copy."""
        numbers: list[int] = []  # in the copy, by number in the original
        for node in self._graph["nodes"]:
            numbers.append(self._add(node, moved(node["inputs"], numbers)))
        return self._builder.symbol(
            [self._cast(entry, FLOAT32) for entry in moved(self._graph["heads"], numbers)]
        )

    def _add(self, node: Node, inputs: list[Input]) -> int:
        """Add a node, behind the casts that its inputs need; return its number."""
        is_low = True
        if node["op"] in self._rules.low:
            inputs = [self._cast(entry, self._dtype) for entry in inputs]
        elif not self._stays_low(node, inputs):
            inputs, is_low = [self._cast(entry, FLOAT32) for entry in inputs], False
        self.count += is_low
        return self._append({**node, "inputs": inputs}, is_low)

    def _stays_low(self, node: Node, inputs: list[Input]) -> bool:
        """Whether an operator gets inputs in the lower precision and can compute in it."""
        inputs = inputs[:1] if node["op"] in self._rules.first_input_only else inputs
        all_low = bool(inputs) and all(entry[0] in self._low for entry in inputs)
        return all_low and self._rules.takes_either(node["op"], node.get("attrs", {}))

    def _append(self, node: Node, is_low: bool) -> int:
        number = self._builder.append(node)
        if is_low:
            self._low.add(number)
        return number

    def _cast(self, entry: Input, dtype: str) -> Input:
        """Return an entry in `dtype`; each is cast once, however many operators take it."""
        number, output = entry[:2]
        if (number in self._low) == (dtype != FLOAT32):
            return entry
        key = number, output, dtype
        if key not in self._casts:
            name = f"{self._builder.name(number)}_{output}_{dtype}"
            if dtype != FLOAT32:
                # The gradient of amp_cast overwrites the array to which it should be added if gradients
                # accumulate and, with static_alloc, if nine operators take the same array. The gradient of a
                # copy does not.
                copy = {"op": "_copy", "name": f"{name}_of", "inputs": [entry]}
                entry = [self._append(copy, is_low=False), 0, 0]
            cast = {"op": "amp_cast", "name": name, "attrs": {"dtype": dtype}, "inputs": [entry]}
            self._casts[key] = [self._append(cast, is_low=dtype != FLOAT32), 0, 0]
        return self._casts[key]


def _is_variable(symbol: mx.sym.Symbol) -> bool:
    # Operators without inputs, such as arange, have no children either.
    return symbol.get_children() is None and symbol.list_inputs() == [symbol.name]


def _take_outputs(copied: Iterator[mx.sym.Symbol], symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return as many of the copied outputs as `symbol` has: ``F.split`` is one symbol of several outputs."""
    outputs = list(islice(copied, len(symbol.list_outputs())))
    return outputs[0] if len(outputs) == 1 else mx.sym.Group(outputs)


@dataclass(frozen=True)
class Precision:
    """The precision in which a net computes; gradients, losses and metrics have the parameters' dtype.

    `name` is the dtype, and `rules` say which operators compute in it: None for float32.
    """

    name: str
    rules: Rules | None = None

    @property
    def description(self) -> str:
        """The line that is logged if it is not float32."""
        assert self.rules is not None
        operators = ", ".join(self.rules.low)
        return (
            f"precision: {self.name} ({operators} and what is between them); parameters and losses in float32"
        )


@cache
def bfloat16_rules() -> Rules:
    """Return the rules of bfloat16, from MXNet's own lists."""
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
LOWER = {"bfloat16": bfloat16_rules}


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


def precision_of(name: object, contexts: Sequence[Context]) -> Precision:
    """Return the precision with a name; raises ValueError if there is none, or none on these devices."""
    name = precision_name(name)
    if name == FULL.name:
        return FULL
    if name not in LOWER:
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
    return Precision(name, LOWER[name]())
