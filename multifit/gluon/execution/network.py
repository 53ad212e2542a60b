"""Call a net: as it is, or as a graph of its own for each stage."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Hashable, Iterator, Mapping, Sequence

from ...checks import at_path, bind_outputs
from ...errors import Problem, counted, last_line, raise_problems
from ...spec import TaskSpec
from ...stages import TRAIN
from ..compat import mx
from ..data.arrays import signature_of
from ..precision.lowering import lower
from ..precision.precisions import FULL, Precision
from ..user_code import user_code
from .cached_graph import CachedGraph, give_graph
from .nesting import flatten, regroup
from .recordable import form_of, obstacle_of
from .recording import record
from .traceable import hybridizing, is_hybridized, runs_python
from .traced_graph import TracedGraph, as_json

ChangeOutputs = Callable[[Mapping[str, Any], Mapping[str, Any]], "dict[str, Any]"]


class Network:
    """Calls the net for one stage of one spec and picks the declared outputs by name.

    A net that the user hybridized is traced again for this stage. Any other net, and one with its own
    `forward` or hooks, is called as it is. Only a graph can be lowered to a precision below float32. `stage`
    is for messages. With ``plans_memory=False``, no graph plans memory for batches whose shapes repeat: other
    code may compute gradients first, and a planned graph would then no longer write to the parameters'
    gradients.

    `change_outputs(outputs, slots) -> outputs` changes the outputs before anything is computed from them; the
    net and its losses are then separate graphs.
    """

    def __init__(
        self,
        net: Any,
        spec: TaskSpec,
        stage: str,
        plans_memory: bool = True,
        precision: Precision = FULL,
        change_outputs: ChangeOutputs | None = None,
    ) -> None:
        self.net, self.spec, self.stage, self.plans_memory = net, spec, stage, plans_memory
        self.precision, self.change_outputs = precision, change_outputs
        self._lowered_operators, self._failure = 0, ""
        self._lowers = not precision.on_other_engine
        self.paths: dict[str, tuple[Any, ...]] | None = None
        self.hybridized = is_hybridized(net)
        self.traced = self.hybridized and spec.forward is None and not runs_python(net)
        self._structure: Any = None  # of the outputs of the net's own graph
        self._bound: Any = None  # the structure of the result for which `paths` were found
        self._graph: CachedGraph | None = None
        self.traced_symbols: list[Any] = []  # the net's outputs, when it was last traced
        self.constants: dict[str, Any] = {}  # the constants in the net's graph, when it was last recorded

    def bind(self, slots: Mapping[str, Any]) -> tuple[Any, list[Problem]]:
        """Call the net, and find the declared outputs in its result."""
        result = self._run(slots)
        problems = self._bind(result)
        # a recorded net is lowered when it is recorded
        if not (self.precision.on_other_engine and self.recorded):
            problems += self._not_lowered(self.traced)
        if problems:
            return None, problems
        outputs = self._pick(result)
        problems = self.array_problems(outputs)
        if problems:
            return None, problems
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
    def obstacle(self) -> tuple[str, str] | None:
        """Why another engine can neither trace nor record the net, and the way out; None if it can."""
        if self.traced:
            return None
        if self.spec.forward is not None:
            return (
                "the TaskSpec's forward= is not a graph",
                "do what it does in a HybridBlock's hybrid_forward",
            )
        return obstacle_of(self.net)

    @property
    def recorded(self) -> bool:
        """Whether another engine must record what the net does with arrays, as it takes no symbols."""
        return not self.traced and self.obstacle is None

    def form(self, slots: Mapping[str, Any]) -> Hashable:
        """Return what batches must have in common to share a recording."""
        return form_of(self.net, [slots[name] for name in self.spec.inputs])

    @property
    def traced_outputs(self) -> dict[str, Any]:
        """The declared outputs as symbols, as the net was last traced; empty if it cannot be traced."""
        if not self.traced:
            return {}
        return self._pick(regroup(self._structure, iter(self.traced_symbols)))

    @property
    def precision_note(self) -> str:
        """How many operators compute in a lower precision, as a note for the plan; "" if none does."""
        if not self._lowered_operators:
            return ""
        return f"; {counted(self._lowered_operators, 'operator')} of the net in {self.precision.name}"

    def release_graph(self) -> None:
        """Delete the net's own graph, now that the step graph contains it; it is traced again if needed."""
        self._graph = None

    def symbols(self, inputs: Sequence[Any], arrays: Sequence[Any] = ()) -> dict[str, Any]:
        """Call the net with symbols, inside a graph that is being traced.

        A net that takes no symbols is called with the `arrays` of a batch instead, and recorded.
        """
        if not self.traced:
            with user_code(lambda: f"the net's forward pass ({self.stage}), which is recorded"):
                recording = record(self.net, lambda *each: self._pick(self.net(*each)), inputs, arrays)
            self.constants = recording.constants
            lowered = self._lower(list(recording.outputs.values()))
            raise_problems(self._not_lowered(traced=True))
            return dict(zip(recording.outputs, lowered))
        flat: list[Any] = []
        structure = flatten(self.net(*inputs), flat)
        return self._pick(regroup(structure, iter(self._lower(flat))))

    def trace(self, slots: Mapping[str, Any]) -> TracedGraph:
        """Trace the declared outputs for another engine; the net must have been called before."""
        inputs = list(self.spec.inputs)
        arrays = [slots[name] for name in inputs]
        graph = CachedGraph(
            lambda F, *each: list(self.symbols(each, arrays).values()), self.net.collect_params
        )
        with self.lowering():
            variables, symbol = graph.symbol(arrays)
        present = [name for name in inputs if slots[name] is not None]
        outputs = tuple(self.paths or ())
        return TracedGraph(as_json(symbol), dict(zip(variables, present)), outputs, self.constants)

    @contextmanager
    def lowering(self) -> Iterator[None]:
        """Lower what is traced in the block, even if only another engine computes in the lower precision."""
        before, self._lowers = self._lowers, True
        try:
            yield
        finally:
            self._lowers = before

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

    def _run(self, slots: Mapping[str, Any]) -> Any:
        if self.spec.forward is not None:
            with user_code(lambda: f"forward= ({self.stage})", *slots.items()):
                return self.spec.forward(self.net, slots)
        inputs = [slots[name] for name in self.spec.inputs]
        with user_code(lambda: f"the net's forward pass ({self.stage})", *zip(self.spec.inputs, inputs)):
            if self.traced:
                self._graph = self._graph or CachedGraph(self._trace, self.net.collect_params)
                try:
                    leaves = self._graph.run(inputs, signature_of(inputs) if self.plans_memory else None)
                    return regroup(self._structure, iter(leaves))
                except Exception as error:
                    if self._graph.is_traced:
                        raise
                    # A hybridized net may work on arrays only; any other error is raised again below.
                    self._graph, self.traced = None, False
                    self._failure = f"tracing it fails ({type(error).__name__}: {last_line(error)})"
            return self.net(*inputs)

    def _trace(self, F: Any, *inputs: Any) -> list[Any]:
        flat: list[Any] = []
        self._structure = flatten(self.net(*inputs), flat)
        return self._lower(flat)

    def _lower(self, symbols: list[Any]) -> list[Any]:
        """Return the net's outputs, lowered to the network's precision.

        An output that is a parameter is copied: MXNet would return the parameter's array, without a gradient.
        """
        symbols = [mx.sym.identity(each) if _is_variable(each) else each for each in symbols]
        self.traced_symbols = symbols
        if self.precision.rules is not None:
            lowered, self._lowered_operators = lower(symbols, self.precision.name, self.precision.rules)
            symbols = lowered if self._lowers else symbols
        return symbols

    def _not_lowered(self, traced: bool) -> list[Problem]:
        """Return why the net, which was called, did not compute in the requested precision."""
        if self.precision.rules is None or self._lowered_operators:
            return []
        operators = ", ".join(self.precision.rules.low)
        if traced:
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
