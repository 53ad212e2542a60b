"""What runs for batches of one signature: net, losses and metrics as one graph, where possible."""

from __future__ import annotations

from functools import partial
from typing import Any, Collection, Hashable, Mapping, Sequence

from ...errors import SpecError, counted, last_line
from ..compat import mx
from ..metrics.label_checks import LabelRows
from ..user_code import user_code
from .balanced import NOTHING_BALANCED, Balanced
from .batch_loss_graph import BatchLossGraph
from .bound_graph import bound_graph, reaches_any
from .cached_graph import CachedGraph
from .executed_graph import ExecutedGraph
from .forms import ResultForms
from .loss_graph import APART, LossGraph, LossOutputs, by_reference
from .network import Network
from .parting import Parting
from .split_graph import SplitGraph
from .traced_graph import BATCH_WEIGHTS, OUTPUT, SAMPLES, WEIGHTS, TracedGraph, as_json

NOT_TRACED = "the graph of net and losses, which cannot be traced"
PARTS = "; do not hybridize the net itself but its parts, such as net.body.hybridize()"


class StepGraph:
    """Net, losses and metrics of one device's batch.

    The traced losses are one graph with the net if the net can be traced, else a graph of their own behind
    it. The eager losses run operator by operator. The first batch of every signature runs without a graph: it
    is the one that is checked; `forms` hold what runs without a graph to it. `differentiable` says whether
    something outside of the graph differentiates through the outputs. If `balanced` has tasks, the
    graph is cut where these part; if it has bound losses, their gradients reach some parameters only. It must
    then be one graph with the net. `taken` are the outputs that are computed if these are not all: no
    gradient, not even one of 0, must reach what is behind the others. `label_rows` are to be held until they
    are counted. `batch_losses` are part of what :meth:`trace` returns alone.
    """

    def __init__(
        self,
        network: Network,
        traced: LossGraph,
        eager: LossGraph,
        forms: ResultForms,
        differentiable: bool = False,
        balanced: Balanced = NOTHING_BALANCED,
        taken: Collection[str] | None = None,
        label_rows: LabelRows | None = None,
        batch_losses: BatchLossGraph | None = None,
    ) -> None:
        self._balanced, self._tasks = balanced, balanced.tasks
        self.batch_losses = batch_losses
        self.network, self.traced, self.eager = network, traced, eager
        self.loss_graphs, self.label_rows = (traced, eager), label_rows
        self._forms, self._differentiable = forms, differentiable
        self._with_net = network.joins_losses
        self._is_graph = self._with_net or bool(traced.width)
        self._failure = ""
        self._graphs: dict[bool, tuple[CachedGraph, list[str]]] = {}
        self._last: CachedGraph | None = None
        self._output_names = [name for name in network.paths or {} if taken is None or name in taken]
        self._must_trace = balanced.needs_graph or (taken is not None and self._with_net)
        refs = {ref for term in traced.terms for ref in term.refs}
        refs |= {ref for metric, _ in traced.metrics for ref in metric.refs}
        refs |= traced.label_checks.refs if traced.label_checks else set()
        inputs = network.spec.inputs if self._with_net else ()
        self._slot_names = sorted({ref.name for ref in refs if ref.space != "outputs"} | set(inputs))
        self._outputs_read = [ref.name for ref in refs if ref.space == "outputs"]

    def run(
        self,
        slots: Mapping[str, Any],
        weights: Sequence[Any],
        size: Any,
        signature: Hashable = None,
        needs_outputs: bool = True,
    ) -> tuple[dict[str, Any], list[LossOutputs]]:
        """Run everything on one device; return the outputs, and what the traced and eager losses computed.

        `weights` are those of the traced and of the eager losses, each None when evaluating. `size`, of shape
        (1,), is the device's number of samples. Slots of equal shapes have equal signatures. Unless outputs
        or the losses of single samples are needed, a graph may leave them out.
        """
        outputs = {} if self._is_graph and self._with_net else self._call_net(slots)
        if self._is_graph:
            try:
                losses = self._run_graph(outputs, slots, weights[0], size, signature, needs_outputs)
            except SpecError:
                raise
            except Exception as error:
                if any(graph.is_traced for graph, _ in self._graphs.values()):
                    with user_code(lambda: "the graph of the net and its losses", *slots.items()):
                        raise
                # Losses and nets may look at shapes or call mx.nd: that is allowed, but cannot be traced. A
                # real error is raised again by the eager run, which can name it.
                if self._must_trace:
                    use, way_out = "sampling: what a batch does not reach is left out of", PARTS
                    if self._balanced.bound is not None:
                        use, way_out = "losses: they are bound to trainers in", ""
                    if self._tasks is not None:
                        use, way_out = "balance: the gradients of tasks are compared in", ""
                    reason = last_line(error.__cause__ or error)
                    raise SpecError(f"{use} {NOT_TRACED}: {reason}{way_out}") from error
                self._is_graph = False
                self._failure = f"{type(error.__cause__ or error).__name__} while tracing"
            else:
                if not self.eager.width:
                    return outputs, [losses]
                return outputs, [losses, self.eager(mx.nd, by_reference(outputs, slots), weights[1], size)]
        outputs = outputs or self._call_net(slots)
        return outputs, self.run_eagerly(outputs, slots, weights, size)

    def run_eagerly(
        self, outputs: Mapping[str, Any], slots: Mapping[str, Any], weights: Sequence[Any], size: Any
    ) -> list[LossOutputs]:
        """Run all losses and metrics operator by operator on existing outputs."""
        arrays = by_reference(outputs, slots)
        return [losses(mx.nd, arrays, w, size) for losses, w in zip(self.loss_graphs, weights)]

    def trace(self, slots: Mapping[str, Any], weighted: bool) -> TracedGraph:
        """Trace net, losses and metrics for another engine, with all of their outputs.

        A net that no symbol runs through is recorded, for batches of the same form as these slots.
        `weighted` says whether there is an objective. Besides slots, its inputs are SAMPLES, and the WEIGHTS
        and BATCH_WEIGHTS of the losses that there are; and, if the net is not part of it, its outputs, each
        named OUTPUT and then its name.
        """
        names: list[str] = []
        of_batch, network = self.batch_losses, self.network
        with_net = self._with_net or (network.recorded and network.change_outputs is None)
        inputs = network.spec.inputs if with_net else ()
        slot_names = sorted({*self._slot_names, *inputs, *(of_batch.slots if of_batch else ())})
        read = sorted({*self._outputs_read, *(of_batch.outputs if of_batch else ())})
        given = [SAMPLES, *[WEIGHTS] * bool(weighted and self.traced.terms)]
        given += [BATCH_WEIGHTS] * bool(weighted and of_batch)
        given += [*slot_names, *([] if with_net else [OUTPUT + name for name in read])]

        def trace(F: Any, *arrays: Any) -> list[Any]:
            values = dict(zip(given, arrays))
            of_slots = {name: values[name] for name in slot_names}
            outputs = {name: values.get(OUTPUT + name) for name in read}
            if with_net:
                outputs = network.symbols([values[name] for name in inputs], [slots[name] for name in inputs])
            loss_inputs = of_slots, values.get(WEIGHTS), values[SAMPLES]
            results = self._results(F, outputs, *loss_inputs, full=True, with_net=with_net)
            if of_batch is not None:
                refs = by_reference(outputs, of_slots)
                results.update(of_batch(F, refs, values.get(BATCH_WEIGHTS)))
            names[:] = results
            return self._bind(F, results)

        graph = CachedGraph(trace, self._parameters)
        stand_in = next(iter(slots.values()))  # only whether an array is None matters
        with network.lowering():
            variables, symbol = graph.symbol([slots.get(name, stand_in) for name in given])
        present = [name for name in given if slots.get(name, stand_in) is not None]
        variables_given = dict(zip(variables, present))
        return TracedGraph(as_json(symbol), variables_given, tuple(names), network.constants)

    @property
    def parting(self) -> Parting | None:
        """Where the tasks part, as computed in the last run; None if the graph is not cut."""
        return self._last.parting if isinstance(self._last, SplitGraph) else None

    def describe(self) -> str:
        """Return one line that says what is traced and what is not, for the plan."""
        split = f"; {self._last.describe(self._structural())}" if isinstance(self._last, SplitGraph) else ""
        losses = counted(len(self.traced.terms), "loss", "losses")
        computed = f"{losses} and {counted(len(self.traced.metrics), 'metric')}"
        names = [term.where for term in self.eager.terms]
        eager = f"operator by operator: {', '.join(names)}" if names else "nothing runs operator by operator"
        if self._with_net and self._is_graph:
            return f"the net, {computed} are one graph; {eager}{split}"
        if self.network.precision.elsewhere and self.network.recorded and self.network.change_outputs is None:
            return f"the net, {computed} are one graph, recorded for each form of batches; {eager}"
        reason = self._failure or (
            "it has a forward or hooks of its own"
            if self.network.hybridized
            else "it is not hybridized; net.hybridize() lets it be part of the graph"
        )
        losses = f"{computed} are one graph behind it" if self._is_graph else "so do the losses and metrics"
        return f"the net runs as it is ({reason}); {losses}; {eager}"

    def _structural(self) -> dict[str, str]:
        parameters = self.network.net._collect_params_with_prefix()
        return {parameter.name: name for name, parameter in parameters.items()}

    def _call_net(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self.network(slots)
        self._forms.hold_outputs(outputs)
        return outputs

    def _run_graph(
        self,
        outputs: dict[str, Any],
        slots: Mapping[str, Any],
        weights: Any,
        size: Any,
        signature: Hashable,
        needs_outputs: bool,
    ) -> LossOutputs:
        """Run the graph, with the net's outputs or, if the net is part of it, adding them to `outputs`."""
        from_net = [] if self._with_net else [outputs[name] for name in self._outputs_read]
        full = needs_outputs or bool(self.eager.width) or self._differentiable
        if full not in self._graphs:
            self._graphs[full] = self._new_graph(full, weights is not None, signature)
        graph, names = self._graphs[full]
        self._last = graph
        arrays = [size] if weights is None else [size, weights]
        arrays += [slots[name] for name in self._slot_names] + from_net
        values = dict(zip(names, graph.run(arrays, signature if self.network.repeats else None)))
        losses = LossOutputs(values.pop("objective", None), {}, values.pop("statistics", None))
        losses.backward = graph.backward
        groups = {"output": outputs, "part": losses.parts, "objective": losses.objectives}
        for name, value in values.items():
            kind, _, name = name.partition(".")
            groups[kind][name] = value
        return losses

    @property
    def _is_one_objective(self) -> bool:
        """Whether one number, or a vector, is all that is differentiated, back through the net as well."""
        return self._with_net and bool(self.traced.terms) and self._balanced.form != APART

    def _new_graph(self, full: bool, weighted: bool, signature: Hashable) -> tuple[CachedGraph, list[str]]:
        names: list[str] = []  # filled when the graph is traced
        if self._with_net:
            self.network.release_graph()
        trace = partial(self._trace, names, full, weighted)
        if self._tasks is None:
            if full or not weighted or not self._is_one_objective:
                return CachedGraph(trace, self._parameters, signature), names
            return ExecutedGraph(trace, self._parameters, signature, lambda: names.index("objective")), names
        tasks = {f"objective.{loss}": task for loss, task in self._tasks.items()}
        of_outputs = partial(_of_names, names, tasks)
        repeats = self._balanced.repeats, self._balanced.exact_dropout
        return SplitGraph(trace, self._parameters, signature, of_outputs, *repeats), names

    def _trace(
        self, names: list[str], full: bool, weighted: bool, F: Any, size: Any, *arrays: Any
    ) -> list[Any]:
        """Compute the graph's outputs from symbols, and fill in their names."""
        weights, arrays = (arrays[0], arrays[1:]) if weighted else (None, arrays)
        slots = dict(zip(self._slot_names, arrays))
        outputs = self._outputs(slots, dict(zip(self._outputs_read, arrays[len(self._slot_names) :])))
        results = self._results(F, outputs, slots, weights, size, full, self._with_net)
        names[:] = results
        return self._bind(F, results)

    def _outputs(self, slots: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """Return the net's outputs: symbols if it is part of the graph, else those that are given."""
        if not self._with_net:
            return given
        return self.network.symbols([slots[name] for name in self.network.spec.inputs])

    def _results(
        self,
        F: Any,
        outputs: Mapping[str, Any],
        slots: Mapping[str, Any],
        weights: Any,
        size: Any,
        full: bool,
        with_net: bool,
    ) -> dict[str, Any]:
        """Return everything that follows from outputs and slots, by name, the outputs first."""
        losses = self.traced(F, by_reference(outputs, slots), weights, size)
        results = {name: getattr(losses, name) for name in ("objective", "statistics")}
        results = {name: symbol for name, symbol in results.items() if symbol is not None}
        results.update({f"objective.{loss}": symbol for loss, symbol in losses.objectives.items()})
        views = {f"output.{name}": outputs[name] for name in self._output_names if with_net}
        # With the outputs first, dropout draws its masks in the order of a hand-written loop.
        if full or not results or not _keeps_order(F, views, results):
            views.update({f"part.{name}": part for name, part in losses.parts.items()})
            results = {**{name: self._view(F, symbol) for name, symbol in views.items()}, **results}
        return results

    def _bind(self, F: Any, results: Mapping[str, Any]) -> list[Any]:
        """Return the graph's outputs; the gradients of losses that are bound to trainers stop elsewhere."""
        outputs = list(results.values())
        if self._balanced.bound is None:
            return outputs
        graph, bound = F.Group(outputs), self._balanced.bound()
        trained = frozenset(p.name for p in self._parameters().values() if p.grad_req != "null")
        reaches = [bound.get(name.partition("objective.")[2], trained) for name in results]
        for name, learns in zip(results, reaches_any(graph, reaches)):
            loss = name.partition("objective.")[2]
            if loss in bound and not learns:
                raise SpecError(
                    f'losses["{loss}"]: its gradient reaches no parameter of the trainers that it is bound '
                    "to; name others, or take out what stops it on its way, such as BlockGrad"
                )
        return list(bound_graph(graph, reaches, trained))

    def _view(self, F: Any, symbol: Any) -> Any:
        """Return an output of the graph, without its gradient if nothing outside needs one.

        MXNet would otherwise make an array of zeros as its gradient and add that to the real one.
        """
        return symbol if self.eager.terms or self._differentiable else F.BlockGrad(symbol)

    def _parameters(self) -> Any:
        parameters = mx.gluon.ParameterDict()
        blocks = [term.spec.fn for term in self.traced.terms]
        for block in [self.network.net, *blocks] if self._with_net else blocks:
            if isinstance(block, mx.gluon.Block):
                parameters.update(block.collect_params())
        return parameters


def _of_names(names: Sequence[str], tasks: Mapping[str, int]) -> list[int | None]:
    return [tasks.get(name) for name in names]


def _keeps_order(F: Any, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether a graph of `second` alone runs the operators of `first` in the order of `first`."""
    operators, all_operators = (
        F.Group(list(symbols.values())).get_internals().list_outputs() if symbols else []
        for symbols in (first, second)
    )
    known = set(operators)
    return operators == [name for name in all_operators if name in known]
