"""What runs for batches of one form: what is traced into one graph, and what runs operator by operator."""

from __future__ import annotations

from functools import partial
from typing import Any, Hashable, Mapping, Sequence

from ..compat import mx
from ..user_code import user_code
from .cached_graph import CachedGraph
from .loss_graph import LossGraph, LossOutputs, fetch
from .network import Network

__all__ = ["StepGraph"]


class StepGraph:
    """Net, losses and figures of one device's batch.

    The traceable head is fused with the net where the net is traced, else it is a graph behind the net. The
    plain head runs operator by operator. The first batch of every form runs without graphs: it is the check.

    Parameters
    ----------
    network : Network
        Bound to its outputs.
    traceable, plain : Head
        Terms and metrics that may be traced, and those that may not.
    differentiable : bool
        Whether something else computes gradients through the outputs.
    """

    def __init__(
        self,
        network: Network,
        traceable: LossGraph,
        plain: LossGraph,
        differentiable: bool = False,
    ) -> None:
        self.network, self.traceable, self.plain = network, traceable, plain
        self.differentiable = differentiable
        self.fused = network.traced
        self.reason = ""
        self._graphs: dict[bool, tuple[CachedGraph, list[str]]] = {}
        self._outputs = list(network.paths or {})
        refs = {ref for term in traceable.terms for ref in term.args}
        refs |= {ref for metric, _ in traceable.metrics for ref in metric.args}
        self._slots = [ref.name for ref in refs if ref.space != "outputs"]
        if self.fused:
            self._slots += network.spec.inputs
        self._slots = sorted(set(self._slots))
        self._heads = [ref.name for ref in refs if ref.space == "outputs"]
        self.traced = self.fused or bool(traceable.width)

    def run(
        self,
        slots: Mapping[str, Any],
        weights: Sequence[Any],
        size: Any,
        form: Hashable = None,
        shown: bool = True,
    ) -> tuple[dict[str, Any], list[LossOutputs]]:
        """Run everything on one device.

        Parameters
        ----------
        slots : mapping of str to NDArray
            The device's arrays.
        weights : pair of NDArray or None
            Of the traceable and of the plain head's terms.
        size : NDArray of shape (1,)
            The device's number of samples.
        form : hashable, optional
            Equal for slots of equal shapes.
        shown : bool
            Whether somebody looks at the outputs and at what the losses return for each sample; else a graph
            need not hand them out.

        Returns
        -------
        dict of str to NDArray, list of HeadResult
            The outputs, and the results of both heads.
        """
        if not self.traced:
            outputs = self.network(slots)
            return outputs, self.heads(outputs, slots, weights, size)
        try:
            outputs, result = self._run_graph(slots, weights[0], size, form, shown)
        except Exception as error:
            if any(graph.is_traced for graph, _ in self._graphs.values()):
                with user_code(lambda: "the graph of the net and its losses", *slots.items()):
                    raise
            # Some losses and nets look at shapes or call mx.nd directly; that is no error of the user's.
            # What is one raises again below, where it can be named.
            self.traced, self.reason = False, f"{type(error.__cause__ or error).__name__} while tracing"
            return self.run(slots, weights, size)
        if not self.plain.width:
            return outputs, [result]
        return outputs, [result, self.plain(mx.nd, fetch(outputs, slots), weights[1], size)]

    def heads(
        self, outputs: Mapping[str, Any], slots: Mapping[str, Any], weights: Sequence[Any], size: Any
    ) -> list[LossOutputs]:
        """Run both heads, operator by operator, on outputs that are there."""
        arrays = fetch(outputs, slots)
        return [
            head(mx.nd, arrays, w, size)
            for head, w in ((self.traceable, weights[0]), (self.plain, weights[1]))
        ]

    def how(self) -> str:
        """Say in a line what is traced."""
        count = len(self.traceable.terms) + len(self.traceable.metrics)
        if self.fused and self.traced:
            return f"the net, {count} losses and metrics are one graph; {self._rest()}"
        why = self.reason or (
            "it has a forward or hooks of its own"
            if self.network.hybridized
            else "it is not hybridized; net.hybridize() lets it be part of the graph"
        )
        head = (
            f"{count} losses and metrics are one graph behind it"
            if self.traced
            else "so do the losses and metrics"
        )
        return f"the net runs as it is ({why}); {head}; {self._rest()}"

    def _rest(self) -> str:
        rest = [term.where for term in self.plain.terms]
        return f"operator by operator: {', '.join(rest)}" if rest else "nothing runs operator by operator"

    def _run_graph(
        self, slots: Mapping[str, Any], weights: Any, size: Any, form: Hashable, shown: bool
    ) -> tuple[dict[str, Any], LossOutputs]:
        outputs = {} if self.fused else self.network(slots)
        heads = [] if self.fused else [outputs[name] for name in self._heads]
        shown = shown or bool(self.plain.width) or self.differentiable
        if shown not in self._graphs:
            names: list[str] = []  # known once it is traced
            trace = partial(self._trace, names, shown, weights is not None)
            if self.fused:
                self.network.forget()
            # the program was built on a batch of this form
            self._graphs[shown] = CachedGraph(trace, self._parameters, form), names
        graph, names = self._graphs[shown]
        arrays = [size] if weights is None else [size, weights]
        arrays += [slots[name] for name in self._slots] + heads
        values = dict(zip(names, graph.run(arrays, form if self.network.repeats else None)))
        result = LossOutputs(values.pop("objective", None), {}, values.pop("statistics", None))
        for name, value in values.items():
            kind, _, name = name.partition(".")
            (outputs if kind == "output" else result.parts)[name] = value
        return outputs, result

    def _trace(
        self, names: list[str], shown: bool, weighted: bool, F: Any, size: Any, *arrays: Any
    ) -> list[Any]:
        weights, arrays = (arrays[0], arrays[1:]) if weighted else (None, arrays)
        slots = dict(zip(self._slots, arrays))
        if self.fused:
            outputs = self.network.symbols([slots[name] for name in self.network.spec.inputs])
        else:
            outputs = dict(zip(self._heads, arrays[len(self._slots) :]))
        result = self.traceable(F, fetch(outputs, slots), weights, size)
        found = {"objective": result.objective, "statistics": result.statistics}
        found = {name: value for name, value in found.items() if value is not None}
        given = {f"output.{name}": outputs[name] for name in self._outputs if self.fused}
        # Where the outputs come first, dropout draws in the plain loop's order.
        if shown or not found or not _in_order(F, given, found):
            given.update({f"part.{name}": part for name, part in result.parts.items()})
            found = {**{name: self._given(F, value) for name, value in given.items()}, **found}
        names[:] = found
        return list(found.values())

    def _given(self, F: Any, output: Any) -> Any:
        """Return what the graph gives to look at: without the way back if nothing outside needs one.

        Otherwise mxnet makes an array of zeros as its gradient, and adds that to the real one.
        """
        return output if self.plain.terms or self.differentiable else F.BlockGrad(output)

    def _parameters(self) -> Any:
        found = mx.gluon.ParameterDict()
        for block in [self.network.net, *(term.spec.fn for term in self.traceable.terms)]:
            if isinstance(block, mx.gluon.Block) and (self.fused or block is not self.network.net):
                found.update(block.collect_params())
        return found


def _in_order(F: Any, first: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether a graph of `then` alone runs the operators of `first` in the order of `first`."""
    own, every = (
        F.Group(list(symbols.values())).get_internals().list_outputs() if symbols else []
        for symbols in (first, then)
    )
    names = set(own)
    return own == [name for name in every if name in names]
