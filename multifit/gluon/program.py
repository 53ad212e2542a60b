"""What runs for batches of one form: what is traced into one graph, and what runs operator by operator."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .compat import mx
from .head import Head, HeadResult, fetch
from .network import Network, Traced, calling

__all__ = ["Program"]


class Program:
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

    def __init__(self, network: Network, traceable: Head, plain: Head, differentiable: bool = False) -> None:
        self.network, self.traceable, self.plain = network, traceable, plain
        self.differentiable = differentiable
        self.fused = network.traced
        self.reason = ""
        self._graph: Traced | None = None
        self._names: list[str] = []
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
        self, slots: Mapping[str, Any], weights: Sequence[Any], size: Any
    ) -> tuple[dict[str, Any], list[HeadResult]]:
        """Run everything on one device.

        Parameters
        ----------
        slots : mapping of str to NDArray
            The device's arrays.
        weights : pair of NDArray or None
            Of the traceable and of the plain head's terms.
        size : NDArray of shape (1,)
            The device's number of samples.

        Returns
        -------
        dict of str to NDArray, list of HeadResult
            The outputs, and the results of both heads.
        """
        if not self.traced:
            outputs = self.network(slots)
            return outputs, self.heads(outputs, slots, weights, size)
        try:
            outputs, result = self._run_graph(slots, weights[0], size)
        except Exception as error:
            if self._graph is not None and self._graph.is_traced:
                with calling(lambda: "the graph of the net and its losses", *slots.items()):
                    raise
            # Some losses and nets look at shapes or call mx.nd directly; that is no error of the user's.
            # What is one raises again below, where it can be named.
            self.traced, self.reason = False, f"{type(error.__cause__ or error).__name__} while tracing"
            return self.run(slots, weights, size)
        return outputs, [result, self.plain(mx.nd, fetch(outputs, slots), weights[1], size)]

    def heads(
        self, outputs: Mapping[str, Any], slots: Mapping[str, Any], weights: Sequence[Any], size: Any
    ) -> list[HeadResult]:
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
            "it has a forward or hooks of its own" if self.network.hybridized else "it is not hybridized"
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
        self, slots: Mapping[str, Any], weights: Any, size: Any
    ) -> tuple[dict[str, Any], HeadResult]:
        outputs = None if self.fused else self.network(slots)
        if self._graph is None:
            self._graph = Traced(self._trace, self._parameters, self.network.static)
        arrays = [slots[name] for name in self._slots] + (
            [] if outputs is None else [outputs[n] for n in self._heads]
        )
        extra = [weights] if weights is not None and self.traceable.terms else []
        extra += [size] if self.traceable.scalar else []
        self._extra = len(extra)
        results = self._graph(*extra, *arrays)  # the names are known once it is traced
        values = dict(zip(self._names, results))
        result = HeadResult(values.pop("objective", None), {}, values.pop("statistics", None))
        result.parts = {name[5:]: value for name, value in values.items() if name.startswith("part.")}
        if outputs is None:
            outputs = {name: values["output." + name] for name in self._outputs}
        return outputs, result

    def _trace(self, F: Any, *arrays: Any) -> list[Any]:
        extra, arrays = arrays[: self._extra], arrays[self._extra :]
        size = extra[-1] if self.traceable.scalar else None
        weights = extra[0] if len(extra) > bool(self.traceable.scalar) else None
        slots = dict(zip(self._slots, arrays))
        if self.fused:
            outputs = self.network.symbols([slots[name] for name in self.network.spec.inputs])
        else:
            outputs = dict(zip(self._heads, arrays[len(self._slots) :]))
        result = self.traceable(F, fetch(outputs, slots), weights, size)
        # The outputs come first: deferred initialisation and dropout then draw in the plain loop's order.
        named = {f"output.{name}": self._given(F, outputs[name]) for name in self._outputs if self.fused}
        named.update({f"part.{name}": value for name, value in result.parts.items()})
        named.update(
            {
                n: v
                for n, v in (("objective", result.objective), ("statistics", result.statistics))
                if v is not None
            }
        )
        self._names = list(named)
        return list(named.values())

    def _given(self, F: Any, output: Any) -> Any:
        """Return an output as the graph gives it: without the way back if nothing outside needs one.

        Otherwise mxnet makes an array of zeros as its gradient, and adds that to the real one.
        """
        return output if self.plain.terms or self.differentiable else F.BlockGrad(output)

    def _parameters(self) -> Any:
        found = mx.gluon.ParameterDict()
        for block in [self.network.net, *(term.spec.fn for term in self.traceable.terms)]:
            if isinstance(block, mx.gluon.Block) and (self.fused or block is not self.network.net):
                found.update(block.collect_params())
        return found
