"""Calls or traces the net, and picks its outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...spec import TaskSpec
from ...spec.checks.results import at_path, bind_outputs
from ...spec.terms import is_multi_box
from ...utils.errors import Problem, raise_problems
from ...utils.stages import TRAIN
from ...utils.text import counted, last_line
from ..compat import mx
from ..data.arrays import cast_line, fewest_casts, has_other_dtype, signature_of
from ..graph.lower import FULL, Precision, lower
from ..optim.parameters import real_dtype
from ..optim.preserve_state import kept_statistics
from ..user_code import user_code, wait_for
from .blocks import STOCK, Frozen, blocks_of, run_by_python
from .cached_graph import CachedGraph, forget_errors, give_graph


def flatten(result: Any, flat: list[Any]) -> Any:
    """Append the arrays of a net's result to `flat`; return the result's structure.

    A symbol of several results, as ``F.split`` returns it, counts as a list, as it is one with arrays.
    """
    if isinstance(result, Mapping):
        return {key: flatten(item, flat) for key, item in result.items()}
    if isinstance(result, (list, tuple)) or (isinstance(result, mx.sym.Symbol) and len(result) > 1):
        return [flatten(item, flat) for item in result]
    if result is not None:
        flat.append(result)
        return True
    return None


def regroup(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return arrays in the structure that :func:`flatten` returned."""
    if isinstance(structure, dict):
        return {key: regroup(item, leaves) for key, item in structure.items()}
    if isinstance(structure, list):
        return [regroup(item, leaves) for item in structure]
    return next(leaves) if structure else None


def is_traceable(block: Any) -> bool:
    """Whether a loss may become part of a graph: it is hybridized, or belongs to a toolkit.

    A user's own HybridBlock that is not hybridized may hold state that changes while training, and a function
    may do anything: a graph would silently freeze what they do. SDMLLoss reads shapes, which symbols lack.
    Of gluoncv's SSD loss, there is a graph of ours.
    """
    if is_multi_box(block):
        return True
    takes_symbols = isinstance(block, mx.gluon.HybridBlock) and not isinstance(block, mx.gluon.loss.SDMLLoss)
    return takes_symbols and (is_hybridized(block) or _is_stock(block))


def is_hybridized(block: Any) -> bool:
    """Whether a block's own graph would be traced if it were called."""
    return isinstance(block, mx.gluon.HybridBlock) and block._active


def hybridizing(net: Any) -> tuple[str, str]:
    """Return why a net cannot be traced if it is not hybridized, and the way out."""
    if isinstance(net, mx.gluon.HybridBlock):
        return "it is not hybridized", "call net.hybridize()"
    return "it is a Block, which cannot be traced", "write it as a HybridBlock, and call net.hybridize()"


def _is_stock(block: Any) -> bool:
    # a HybridLambda and a container may hold the user's code
    stock = type(block).__module__.startswith(STOCK) and not isinstance(block, mx.gluon.nn.HybridLambda)
    return stock and all(_is_stock(child) for child in block._children.values())


def traces(net: Any, spec: TaskSpec) -> bool:
    """Whether multifit traces a net, unless that fails."""
    return is_hybridized(net) and spec.forward is None and not runs_python(net)


def runs_python(net: Any) -> bool:
    """Whether a hybridized net has Python code that runs at every call, which a graph would skip.

    It has if it has hooks, or overrides a method that Gluon calls directly. Hooks of its children do not
    count: hybridizing skips them too.
    """
    if net._forward_hooks or net._forward_pre_hooks:
        return True
    classes = [kind for kind in type(net).__mro__ if not kind.__module__.startswith((*STOCK, "builtins"))]
    return any({"forward", "__call__"} & set(vars(kind)) for kind in classes)


@dataclass
class Unknown:
    """An output that was not computed, of which the shape and the dtype are known."""

    shape: tuple[int, ...]
    dtype: Any = None
    stype: str = "default"


ChangeOutputs = Callable[[Mapping[str, Any], Mapping[str, Any]], "dict[str, Any]"]


class Network:
    """Calls the net for one stage of one spec and picks the declared outputs by name.

    A net that the user hybridized is traced again for this stage. Any other net, and one with its own
    `forward` or hooks, is called as it is. Only a graph can be lowered to a precision below float32. `stage`
    is for messages. With ``plans_memory=False``, no graph plans memory for batches whose shapes repeat: other
    code may compute gradients first, and a planned graph would then no longer write to the parameters'
    gradients.

    While training, layers that are `frozen` normalise by their running statistics. A net of whose losses some
    cannot be traced runs `by_python`, if batches lack slots.

    `change_outputs(outputs, slots) -> outputs` changes the outputs before anything is computed from them; the
    net and its losses are then separate graphs.

    `casts` are the dtypes to which inputs are cast, by name. The first call finds out which need it: those
    with whose dtypes, such as uint8, the net cannot run. `log_once` is called with a line to log for each.
    """

    def __init__(
        self,
        net: Any,
        spec: TaskSpec,
        stage: str,
        plans_memory: bool = True,
        precision: Precision = FULL,
        change_outputs: ChangeOutputs | None = None,
        frozen: Frozen | None = None,
        log_once: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.net, self.spec, self.stage, self.plans_memory = net, spec, stage, plans_memory
        self.precision, self.change_outputs, self.frozen = precision, change_outputs, frozen
        self.log_once = log_once
        self.casts: dict[str, str] = {}
        self._lowered_operators, self._failure = 0, ""
        self.paths: dict[str, tuple[Any, ...]] | None = None
        self.hybridized = is_hybridized(net)
        # If batches lack slots, only the graph of net and losses leaves out what a batch does not reach; a
        # graph of the net alone would give all its parameters gradients.
        in_graph = [term.spec.fn is None or is_traceable(term.spec.fn) for term in spec.terms]
        is_partial = stage == TRAIN and any(term.optional for term in spec.terms)
        self.by_python = is_partial and not all(in_graph)
        self.traced = traces(net, spec) and not self.by_python
        self._structure: Any = None  # of the outputs of the net's own graph
        self._bound: Any = None  # the structure of the result for which `paths` were found
        self._graph: CachedGraph | None = None
        self.traced_symbols: list[Any] = []  # the net's outputs, when it was last traced
        self._traced_inputs: Sequence[Any] = ()  # from these symbols
        self._dtypes: dict[str, Any] = {}  # of the outputs

    def bind(self, slots: Mapping[str, Any]) -> tuple[Any, list[Problem]]:
        """Call the net, and find the declared outputs in its result."""
        result = self._run(slots)
        problems = self._bind(result) + self._not_lowered()
        if problems:
            return None, problems
        outputs = self._pick(result)
        problems = self.array_problems(outputs)
        if problems:
            return None, problems
        self._dtypes = {name: array.dtype for name, array in outputs.items()}
        evaluation = self.spec.evaluation
        if self.traced and evaluation.forward is None and set(evaluation.inputs) <= slots.keys():
            give_graph(self.net, [slots[name] for name in evaluation.inputs])
        return self._changed(outputs, slots), []

    def array_problems(self, outputs: Mapping[str, Any]) -> list[Problem]:
        """Return the problem of outputs that are not arrays."""
        others = [
            f'"{name}" as {"None" if array is None else type(array).__name__}'
            for name, array in outputs.items()
            if not isinstance(array, mx.nd.NDArray)
        ]
        message = (
            f"returns {', '.join(others)}; every output that is declared must be an NDArray: return one, or "
            "leave the output out of outputs="
        )
        return [Problem("spec", f"outputs: {self._where} {message}")] if others else []

    def __call__(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Call the net; return its declared outputs by name."""
        return self._changed(self._pick(self._run(slots)), slots)

    @property
    def joins_losses(self) -> bool:
        """Whether the net can be one graph with its losses."""
        return self.traced and self.change_outputs is None

    @property
    def traced_outputs(self) -> dict[str, Any]:
        """The declared outputs as symbols, as the net was last traced; empty if it cannot be traced."""
        if not self.traced:
            return {}
        return self._pick(regroup(self._structure, iter(self.traced_symbols)))

    def output_shapes(self, slots: Mapping[str, Any]) -> dict[str, Unknown] | None:
        """Return the shapes of the outputs for slots without running the net; None if they are not known."""
        pairs = zip(self._traced_inputs, (slots[name] for name in self.spec.inputs))
        shapes = {symbol.name: array.shape for symbol, array in pairs if array is not None}
        group = mx.sym.Group(self.traced_symbols)
        used = {name: shapes[name] for name in group.list_inputs() if name in shapes}
        inferred = group.infer_shape_partial(**used)[1]
        outputs: dict[str, Unknown] = self._pick(regroup(self._structure, map(Unknown, inferred)))
        for name, output in outputs.items():
            output.dtype = self._dtypes[name]
        return outputs if all(each.shape and min(each.shape) > 0 for each in outputs.values()) else None

    @property
    def precision_note(self) -> str:
        """How many operators compute in a lower precision, as a note for the plan; "" if none does."""
        if not self._lowered_operators:
            return ""
        return f"; {counted(self._lowered_operators, 'operator')} of the net in {self.precision.name}"

    def release_graph(self) -> None:
        """Delete the net's own graph, now that the step graph contains it; it is traced again if needed."""
        self._graph = None

    def symbols(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Call the net with symbols, inside a graph that is being traced."""
        flat: list[Any] = []
        self._traced_inputs = inputs
        with self._frozen():
            structure = flatten(self.net(*self._cast(inputs)), flat)
        return self._pick(regroup(structure, iter(self._lower(flat))))

    @property
    def _where(self) -> str:
        return self._in_stage("the net")

    def _in_stage(self, what: str) -> str:
        return what if self.stage == TRAIN else f"{what} when evaluating"

    def _bind(self, result: Any) -> list[Problem]:
        """Find the paths of the declared outputs in a result; return the problems."""
        self._bound = flatten(result, [])
        where = self._in_stage("the net" if self.spec.forward is None else "forward=")
        self.paths, problems = bind_outputs(self.spec.outputs, result, where)
        return problems

    def _pick(self, result: Any) -> dict[str, Any]:
        """Return the declared outputs in a result; raises SpecError if its structure no longer fits."""
        if flatten(result, []) != self._bound:
            raise_problems(self._bind(result))
        assert self.paths is not None
        return {name: at_path(result, path) for name, path in self.paths.items()}

    def _changed(self, outputs: dict[str, Any], slots: Mapping[str, Any]) -> dict[str, Any]:
        return outputs if self.change_outputs is None else self.change_outputs(outputs, slots)

    def _frozen(self) -> AbstractContextManager[None]:
        return nullcontext() if self.frozen is None else self.frozen.applied()

    def _cast(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the net's inputs, arrays or symbols, in the dtypes with which it can run."""
        named = zip(self.spec.inputs, inputs)
        return [x if x is None or name not in self.casts else x.astype(self.casts[name]) for name, x in named]

    def _run(self, slots: Mapping[str, Any]) -> Any:
        with self._frozen():
            return self._call(slots) if self._bound is not None else self._first_call(slots)

    def _first_call(self, slots: Mapping[str, Any]) -> Any:
        """Call the net for the first time, and find out which inputs must be cast."""
        parameters = self.net.collect_params().values()
        real = real_dtype(parameters)
        others = [name for name in self.spec.inputs if has_other_dtype(slots[name], real)]
        if not others:
            return self._call(slots)

        def run(casts: Sequence[str], keeps: bool = True) -> Any:
            self._graph, self.casts = None, dict.fromkeys(casts, real)
            with kept_statistics(parameters, after_errors_only=keeps):
                leaves: list[Any] = []
                result = self._call(slots)
                flatten(result, leaves)
                wait_for(leaves, lambda: f"the net's forward pass ({self.stage})", *slots.items())
            return result

        try:
            return run(())
        except Exception:  # of the net, which may take other dtypes
            forget_errors(self.net)
            casts = fewest_casts(lambda names: run(names, keeps=False), others)
            if not casts:
                raise
        for name in casts:
            unscaled = "; its values stay 0 … 255" if slots[name].dtype == np.uint8 else ""
            self.log_once(cast_line(name, slots[name].dtype, real) + unscaled)
        return run(casts)

    def _call(self, slots: Mapping[str, Any]) -> Any:
        inputs = self._cast([slots[name] for name in self.spec.inputs])
        if self.spec.forward is not None:
            with user_code(lambda: f"forward= ({self.stage})", *slots.items()):
                return self.spec.forward(self.net, {**slots, **dict(zip(self.spec.inputs, inputs))})
        with user_code(lambda: f"the net's forward pass ({self.stage})", *zip(self.spec.inputs, inputs)):
            if self.traced:
                self._graph = self._graph or CachedGraph(self._trace, self.net.collect_params)
                try:
                    leaves = self._graph.run(inputs, signature_of(inputs) if self.plans_memory else None)
                    return regroup(self._structure, iter(leaves))
                except Exception as error:
                    if self._graph.is_traced or _has_lost_values(self.net):
                        raise
                    # A hybridized net may work on arrays only; any other error is raised again below.
                    self._graph, self.traced = None, False
                    self._failure = f"tracing it fails ({type(error).__name__}: {last_line(error)})"
            with run_by_python(blocks_of(self.net).values() if self.by_python else ()):
                return self.net(*inputs)

    def _trace(self, F: Any, *inputs: Any) -> list[Any]:
        flat: list[Any] = []
        self._traced_inputs = inputs
        self._structure = flatten(self.net(*inputs), flat)
        return self._lower(flat)

    def _lower(self, symbols: list[Any]) -> list[Any]:
        """Return the net's outputs, lowered to the network's precision.

        An output that is a parameter is copied: MXNet would return the parameter's array, without a gradient.
        """
        symbols = [mx.sym.identity(each) if _is_variable(each) else each for each in symbols]
        self.traced_symbols = symbols
        if self.precision.rules is not None:
            symbols, self._lowered_operators = lower(symbols, self.precision.name, self.precision.rules)
        return symbols

    def _not_lowered(self) -> list[Problem]:
        """Return why the net, which was called, did not compute in the requested precision."""
        if self.precision.rules is None or self._lowered_operators:
            return []
        operators = ", ".join(self.precision.rules.low)
        if self.traced:
            why, way_out = f"only {operators} do, and it has none of them", "leave precision= out"
        elif self.spec.forward is not None:
            why = "the TaskSpec's forward= calls it"
            way_out = "do what that does in a HybridBlock's hybrid_forward"
        elif not self.hybridized:
            why, way_out = hybridizing(self.net)
        else:
            why = self._failure or "it has a forward or hooks of its own"
            way_out = "write it as a hybrid_forward that uses only F's operators"
        message = (
            f"precision: {self._where} cannot compute in {self.precision.name}, as {why}; {way_out}, or use "
        )
        return [Problem("spec", message + 'precision="float32"')]


def _is_variable(value: Any) -> bool:
    return isinstance(value, mx.sym.Symbol) and len(value) == 1 and value.get_children() is None


def _has_lost_values(net: Any) -> bool:
    """Whether an initializer has failed: MXNet then forgets it, and the net's next call hides its error."""
    return any(p._data is None and not p._deferred_init for p in net.collect_params().values())
