"""The function that a step graph computes, on symbols: net, losses and metrics."""

from collections.abc import Collection, Mapping
from typing import Any

from ...errors import SpecError
from ...spec.names import OUTPUTS
from ...spec.terms import by_reference
from ..compat import mx
from ..graph.bound import bound_graph, reaches_any
from .loss_graph import LossGraph
from .loss_separation import LossSeparation
from .network import Network


class StepFunction:
    """Computes the losses and metrics of `losses`, and the net before them if it can be traced.

    `differentiable` says whether something outside of the graph differentiates through its outputs. If
    `separation` binds losses to trainers, their gradients reach only the parameters of these trainers.
    `taken` names the net's outputs that are computed, None for all: layers that only other outputs need must
    get no gradient, not even a gradient of 0.

    `with_net` says whether the net is part of the function. Its arguments are the slots named `slot_names`
    and, if the net is not part of it, the net's outputs named `outputs_read`.
    """

    def __init__(
        self,
        network: Network,
        losses: LossGraph,
        differentiable: bool,
        separation: LossSeparation,
        taken: Collection[str] | None,
    ) -> None:
        self._network, self._losses = network, losses
        self._differentiable, self._separation = differentiable, separation
        self.with_net = network.joins_losses
        self._output_names = [name for name in network.paths or {} if taken is None or name in taken]
        refs = {ref for term in losses.terms for ref in term.refs}
        refs |= {ref for metric, _ in losses.metrics for ref in metric.refs}
        refs |= {ref for rule in losses.rules for ref in rule.refs}
        inputs = network.spec.inputs if self.with_net else ()
        self.slot_names = sorted({ref.name for ref in refs if ref.space != OUTPUTS} | set(inputs))
        self.outputs_read = [ref.name for ref in refs if ref.space == OUTPUTS]

    def arguments(
        self, outputs: Mapping[str, Any], slots: Mapping[str, Any], weights: Any, size: Any
    ) -> list[Any]:
        """Return the arrays to call it with, after `F`; `weights` are None when evaluating."""
        from_net = [] if self.with_net else [outputs[name] for name in self.outputs_read]
        return [
            size,
            *[weights] * (weights is not None),
            *(slots[name] for name in self.slot_names),
            *from_net,
        ]

    def __call__(
        self, names: list[str], full: bool, weighted: bool, F: Any, size: Any, *arrays: Any
    ) -> list[Any]:
        """Return symbols, and fill in their `names`; `full` adds all outputs and the losses by sample."""
        weights, arrays = (arrays[0], arrays[1:]) if weighted else (None, arrays)
        slots = dict(zip(self.slot_names, arrays))
        outputs: Mapping[str, Any] = dict(zip(self.outputs_read, arrays[len(self.slot_names) :]))
        if self.with_net:
            outputs = self._network.symbols([slots[name] for name in self._network.spec.inputs])
        losses = self._losses(F, by_reference(outputs, slots), weights, size)
        results = {name: getattr(losses, name) for name in ("objective", "statistics")}
        results = {name: symbol for name, symbol in results.items() if symbol is not None}
        results.update({f"objective.{loss}": symbol for loss, symbol in losses.objectives.items()})
        views = {f"output.{name}": outputs[name] for name in self._output_names if self.with_net}
        # Outputs come first, so that Dropout draws its masks in the same order as in a hand-written loop.
        if full or not results or not _keeps_order(F, views, results):
            views.update({f"part.{name}": part for name, part in losses.parts.items()})
            results = {**{name: self._view(F, symbol) for name, symbol in views.items()}, **results}
        names[:] = results
        return self._bind(F, results)

    def parameters(self) -> Any:
        """Return the ParameterDict of the net, if it is part of the function, and of the losses."""
        parameters = mx.gluon.ParameterDict()
        blocks = [term.spec.fn for term in self._losses.terms]
        for block in [self._network.net, *blocks] if self.with_net else blocks:
            if isinstance(block, mx.gluon.Block):
                parameters.update(block.collect_params())
        return parameters

    def _bind(self, F: Any, results: Mapping[str, Any]) -> list[Any]:
        """Return the graph's outputs; a bound loss's gradient reaches only its trainers' parameters."""
        outputs = list(results.values())
        if self._separation.bound is None:
            return outputs
        graph, bound = F.Group(outputs), self._separation.bound()
        trained = frozenset(p.name for p in self.parameters().values() if p.grad_req != "null")
        reaches = [bound.get(name.partition("objective.")[2], trained) for name in results]
        for name, learns in zip(results, reaches_any(graph, reaches)):
            loss = name.partition("objective.")[2]
            if bound.get(loss) and not learns:  # none if everything that it trains is frozen for now
                raise SpecError(
                    f'losses["{loss}"]: its gradient reaches no parameter of the trainers that it is bound '
                    "to; name others, or remove what stops the gradient on its way, such as BlockGrad"
                )
        return list(bound_graph(graph, reaches, trained))

    def _view(self, F: Any, symbol: Any) -> Any:
        """Return an output of the graph, without its gradient if nothing outside needs one.

        MXNet would otherwise make an array of zeros as its gradient and add that to the real one.
        """
        return symbol if self._differentiable else F.BlockGrad(symbol)


def _keeps_order(F: Any, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether a graph of `second` alone runs the operators of `first` in the same order as `first`."""
    operators, all_operators = (
        F.Group(list(symbols.values())).get_internals().list_outputs() if symbols else []
        for symbols in (first, second)
    )
    known = set(operators)
    return operators == [name for name in all_operators if name in known]
