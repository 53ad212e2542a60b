"""How a net is called: as it is, or as a graph of its own for each stage."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Sequence

from ...checks import at_path, bind_outputs
from ...errors import Problem, counted, last_line
from ...spec import TaskSpec
from ..compat import mx
from ..data.arrays import shapes_of
from ..precision.lowering import lower
from ..precision.precisions import FULL, Precision
from ..user_code import user_code
from .cached_graph import CachedGraph

__all__ = ["Network", "NetworkWithHook", "is_traceable"]

STOCK = ("mxnet.", "gluoncv.", "gluonnlp.", "multifit.")


class Network:
    """Calls the net for one stage of one spec and picks the declared outputs by name.

    A net that the user hybridized is traced anew for this stage; any other net, and one with a `forward` or
    hooks of its own, is called as it is. Only a graph can be lowered to another precision than float32.

    Parameters
    ----------
    net : Block
        The user's net.
    spec : TaskSpec
        Names its inputs and outputs.
    stage : str
        For messages.
    repeats : bool
        Whether graphs may be made ready for batches that repeat; not where somebody else may compute
        gradients first, by which MXNet would lose the way to the parameters' own.
    precision : Precision
        In what the net computes.
    """

    def __init__(
        self, net: Any, spec: TaskSpec, stage: str, repeats: bool = True, precision: Precision = FULL
    ) -> None:
        self.net, self.spec, self.stage, self.repeats = net, spec, stage, repeats
        self.precision, self.lowered, self.reason = precision, 0, ""
        self.paths: dict[str, tuple[Any, ...]] | None = None
        self.hybridized = _is_hybridized(net)
        self.traced = self.hybridized and spec.forward is None and not (_has_hooks(net) or _has_own_call(net))
        self._structure: Any = None
        self._graph: CachedGraph | None = None

    def bind(self, slots: Mapping[str, Any]) -> tuple[Any, list[Problem]]:
        """Call the net, and find the declared outputs in what it returns."""
        result = self._result(slots)
        where = "the net" if self.stage == "train" else "the net when evaluating"
        self.paths, problems = bind_outputs(self.spec.outputs, result, where)
        problems += self._not_lowered(where)
        if problems:
            return None, problems
        outputs = self.pick(result)
        wrong = [name for name, array in outputs.items() if not isinstance(array, mx.nd.NDArray)]
        found = ", ".join(f'"{name}" as {type(outputs[name]).__name__}' for name in wrong)
        message = f"outputs: {where} returns {found}; every output that is declared must be an NDArray"
        return outputs, [Problem("spec", message)] if wrong else []

    def __call__(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Call the net; return its declared outputs by name."""
        return self.pick(self._result(slots))

    @property
    def changes(self) -> str:
        """The plan's note on how many of the net's operators compute in a lower precision; "" if none."""
        if not self.lowered:
            return ""
        return f"; {counted(self.lowered, 'operator')} of the net in {self.precision.name}"

    def release_graph(self) -> None:
        """Delete the net's own graph, once the step graph contains it; it is traced again if needed."""
        self._graph = None

    def symbols(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Call the net with symbols, within a graph that is being traced."""
        flat: list[Any] = []
        structure = _taken_apart(self.net(*inputs), flat)
        return self.pick(_regrouped(structure, iter(self._lowered(flat))))

    def pick(self, result: Any) -> dict[str, Any]:
        """Index the net's result by the bound paths."""
        assert self.paths is not None
        return {name: at_path(result, path) for name, path in self.paths.items()}

    def _result(self, slots: Mapping[str, Any]) -> Any:
        if self.spec.forward is not None:
            with user_code(lambda: f"forward= ({self.stage})", *slots.items()):
                return self.spec.forward(self.net, slots)
        inputs = [slots[name] for name in self.spec.inputs]
        with user_code(lambda: f"the net's forward pass ({self.stage})", *zip(self.spec.inputs, inputs)):
            if self.traced:
                self._graph = self._graph or CachedGraph(self._flattened, self.net.collect_params)
                try:
                    leaves = self._graph.run(inputs, shapes_of(inputs) if self.repeats else None)
                    # the structure is known once it is traced
                    return _regrouped(self._structure, iter(leaves))
                except Exception as error:
                    if self._graph.is_traced:
                        raise
                    # A hybridized net may work on arrays alone; what else is wrong raises again below.
                    self._graph, self.traced = None, False
                    self.reason = f"tracing it fails ({type(error).__name__}: {last_line(error)})"
            return self.net(*inputs)

    def _flattened(self, F: Any, *inputs: Any) -> list[Any]:
        flat: list[Any] = []
        self._structure = _taken_apart(self.net(*inputs), flat)
        return self._lowered(flat)

    def _lowered(self, symbols: list[Any]) -> list[Any]:
        """Return the net's outputs, computed in the lower precision where there is one."""
        if self.precision.rules is not None:
            symbols, self.lowered = lower(symbols, self.precision.name, self.precision.rules)
        return symbols

    def _not_lowered(self, where: str) -> list[Problem]:
        """Return why the net, which was called, did not compute in the precision that was asked for."""
        if self.precision.rules is None or self.lowered:
            return []
        operators = ", ".join(self.precision.rules.low)
        if self.traced:
            why, way = f"it has none of {operators}, which alone do", "it gains nothing"
        elif self.spec.forward is not None:
            why, way = (
                "the TaskSpec's forward= calls it",
                "do what that does in a HybridBlock's hybrid_forward",
            )
        elif not self.hybridized:
            why, way = "it is not hybridized", "call net.hybridize()"
        else:
            why = self.reason or "it has a forward or hooks of its own"
            way = "write it as a hybrid_forward that uses F's operators alone"
        message = f"precision: {where} cannot compute in {self.precision.name}, as {why}; {way}, or take "
        return [Problem("spec", message + 'precision="float32"')]


class NetworkWithHook:
    """A network whose outputs somebody changes before anything is made of them; so it stays a graph apart.

    Parameters
    ----------
    network : Network
        What is called.
    change : callable
        ``change(outputs, slots) -> outputs``.
    """

    traced = False

    def __init__(self, network: Network, change: Callable[..., dict[str, Any]]) -> None:
        self._network, self._change = network, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def bind(self, slots: Mapping[str, Any]) -> tuple[Any, list[Problem]]:
        """See :meth:`Network.bind`."""
        outputs, problems = self._network.bind(slots)
        return (outputs if problems else self._change(outputs, slots)), problems

    def __call__(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Call the net, and let its outputs be changed."""
        return self._change(self._network(slots), slots)


def is_traceable(block: Any) -> bool:
    """Whether a loss may become part of a graph: the user hybridized it, or it is a toolkit's own.

    A HybridBlock of the user's own that was not hybridized may hold state that changes while training, and a
    function may do anything; a graph would freeze them silently.
    """
    return isinstance(block, mx.gluon.HybridBlock) and (_is_hybridized(block) or _is_stock(block))


def _is_hybridized(block: Any) -> bool:
    return isinstance(block, mx.gluon.HybridBlock) and block._active


def _is_stock(block: Any) -> bool:
    # a HybridLambda and a container are what the user puts into them
    own = type(block).__module__.startswith(STOCK) and not isinstance(block, mx.gluon.nn.HybridLambda)
    return own and all(_is_stock(child) for child in block._children.values())


def _has_hooks(net: Any) -> bool:
    # children's hooks are silent in any hybridized net; the net's own are not, but would be in our graph
    return bool(net._forward_hooks or net._forward_pre_hooks)


def _has_own_call(net: Any) -> bool:
    # Gluon runs the Python of these at every call, hybridized or not
    own = [kind for kind in type(net).__mro__ if not kind.__module__.startswith((*STOCK, "builtins"))]
    return any({"forward", "__call__"} & set(vars(kind)) for kind in own)


def _taken_apart(result: Any, flat: list[Any]) -> Any:
    if isinstance(result, Mapping):
        return {key: _taken_apart(item, flat) for key, item in result.items()}
    if isinstance(result, (list, tuple)):
        return [_taken_apart(item, flat) for item in result]
    if result is not None:
        flat.append(result)
        return True
    return None


def _regrouped(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, dict):
        return {key: _regrouped(item, leaves) for key, item in structure.items()}
    if isinstance(structure, list):
        return [_regrouped(item, leaves) for item in structure]
    return next(leaves) if structure else None
