"""Net, losses, metrics and checks of labels as one graph, and which graph runs which batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...engines.forms import ResultForms
from ...spec import TaskSpec
from ...spec.terms import OUTPUTS, Ref, Taker, Term, by_reference
from ...utils.errors import SpecError
from ...utils.protocols import Array, Shape
from ...utils.text import counted, last_line
from ..compat import mx
from ..data.arrays import Signature
from ..graph.bound import bound_graph, reaches_any
from ..losses import faster_loss
from ..metrics.labels import LabelRule
from ..metrics.stage_figures import StageFigures
from ..optim.preserve_state import kept_statistics
from ..user_code import user_code
from .cached_graph import CachedGraph
from .executor import ExecutedGraph
from .loss_calls import counts_values
from .loss_graph import APART, Example, LossGraph, LossOutputs, LossSeparation
from .network import Network, hybridizing, is_traceable
from .split_graph import SharedFeatures, SplitGraph

MAX_SIGNATURES = 4096  # whose graph is known; beyond that, the oldest is forgotten
NOT_TRACED = "the graph of net and losses, which cannot be traced"
PARTS = "; do not hybridize the net itself but its parts, such as net.body.hybridize()"


class StepGraphs:
    """The step graphs of a stage: by the signature of a batch, and by what the graph computes.

    Batches of many signatures share a graph, such as sentences of any length. The first batch of a stage is
    checked, see :meth:`check`: only real arrays show which form losses have, and whether they can be traced.

    `differentiable` says whether something outside of a graph differentiates through the outputs. `dtype` is
    that of the objective. `separation` says which losses are kept apart. `forms` check that the outputs and
    losses of all batches have the form of the first one. `own_gradients` names the losses that ignore the
    gradient that they receive, and `by_value` says of the losses whose labels may be missing whether they
    leave out single values; the check of the first batch sets both.
    """

    def __init__(
        self,
        network: Network,
        figures: StageFigures,
        differentiable: bool,
        dtype: str,
        separation: LossSeparation,
    ) -> None:
        self._network, self._figures, self._separation = network, figures, separation
        self.differentiable, self._dtype = differentiable, dtype
        self.outside = [each for each in self._spec.terms if each.spec.fn and not is_traceable(each.spec.fn)]
        self._failure = ""  # why losses and metrics run operator by operator, if not because of a loss
        self._joined = network.joins_losses and not self.outside  # whether all is one graph with the net
        self.reads_outputs = False  # whether metrics outside of the graphs do
        self._by_signature: dict[Hashable, StepGraph] = {}
        self._by_program: dict[Hashable, StepGraph] = {}
        self._version = 0 if network.frozen is None else network.frozen.version
        self.first: StepGraph | None = None  # the graph of the first batch
        self.forms = ResultForms(mx.nd.NDArray)
        self.own_gradients: set[str] = set()
        self.by_value: dict[str, bool] = {}

    @property
    def _spec(self) -> TaskSpec:
        return self._network.spec

    def _clear(self) -> None:
        """Discard all graphs, as something else is frozen: they know what learns."""
        self._by_signature.clear()
        self._by_program.clear()
        self._network.release_graph()

    def find(
        self, slots: Mapping[str, Any], size: int, axis: int, signature: Signature
    ) -> tuple[StepGraph, dict[str, Array]]:
        """Return the graph for a device's slots, and the net's outputs if the net is not a part of it.

        The slots have this signature, and that number of samples along an axis.
        """
        frozen = self._network.frozen
        if frozen is not None and frozen.version != self._version:
            self._version = frozen.version
            self._clear()
        outputs: dict[str, Array] = {}
        if not self._joined:
            outputs = self._network(slots)
            self.forms.check_outputs(outputs, size, axis)
        graph = self._by_signature.get((signature, size))
        if graph is None:
            shapes = outputs or self._shapes(slots)
            graph = self._shared(self._new(shapes, slots), signature, size)
            if len(self._by_signature) >= MAX_SIGNATURES:
                del self._by_signature[next(iter(self._by_signature))]
            self._by_signature[signature, size] = graph
        return graph, outputs

    def check(
        self,
        outputs: Mapping[str, Array],
        slots: Mapping[str, Any],
        size: int,
        axis: int,
        signature: Signature,
        inputs_of: Callable[[StepGraph], Inputs],
    ) -> tuple[StepGraph, LossOutputs]:
        """Compute losses and metrics of a first batch operator by operator, and then trace its graph.

        `outputs` are the net's, on one device, and ``inputs_of(graph)`` returns what the graph takes. Raises
        SpecError if the graph must be traced, but cannot be.
        """
        self.forms.check_outputs(outputs, size, axis)
        graph = self._new(outputs, slots)
        inputs = inputs_of(graph)
        result = graph.run_operators(outputs, inputs)
        if graph.is_traced:
            try:
                graph.trace(outputs, inputs)
            except SpecError:
                raise
            except Exception as error:
                # Losses and nets may look at shapes or call mx.nd, which is allowed but cannot be traced.
                if graph.must_be_traced:
                    raise self._not_traced(last_line(error)) from error
                self._failure, self._joined = f"{type(error).__name__} while tracing", False
                graph = self._new(outputs, slots)
        graph = self._shared(graph, signature, size)
        self.first = self.first or graph
        return graph, result

    def counts_values(self, term: Term, arrays: Mapping[Ref, Any]) -> bool:
        """Whether a loss leaves out single values of its labels; see :func:`counts_values`."""
        if term.key not in self.by_value:
            with user_code(lambda: term.where, *((str(ref), arrays[ref]) for ref in term.args)):
                self.by_value[term.key] = counts_values(term, arrays)
        return self.by_value[term.key]

    def _shapes(self, slots: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return arrays, or their shapes, of the net's outputs for slots; the net runs if it must."""
        outputs = self._network.output_shapes(slots)
        if outputs is None:
            kept = kept_statistics(self._network.net.collect_params().values())
            with mx.autograd.pause(train_mode=mx.autograd.is_training()), kept:
                outputs = self._network(slots)
        return outputs

    def _shared(self, graph: StepGraph, signature: Signature, size: int) -> StepGraph:
        """Return the graph to use in place of an equal one."""
        axes = [each and (len(each[0]), each[0][-1:] == (1,)) for each in signature]
        return self._by_program.setdefault((size == 1, *axes, graph.losses.program), graph)

    def _new(self, outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> StepGraph:
        """Return a graph for the outputs and slots of a device; of outputs, the shapes are enough."""
        arrays = by_reference(outputs, slots)
        terms = [term for term in self._spec.terms if term.has_slots(arrays)]
        traced = not (self.outside or self._failure)  # all of it, or nothing
        metrics = self._figures.in_graph(terms, arrays)
        self.reads_outputs = bool(self._figures.on_host)
        functions = {term.key: self._fused(term, arrays) for term in terms if traced and not term.present}
        losses = LossGraph(
            terms,
            metrics,
            self.forms,
            {key: function for key, function in functions.items() if function is not None},
            self._dtype,
            self.own_gradients,
            self.by_value,
            self._figures.label_rules(arrays, self._whole_samples(terms, arrays)),
            self._separation.objective_form,
        )
        network, taken = self._network, self._outputs_taken(arrays)
        return StepGraph(network, losses, self.differentiable, self._separation, taken, traced, self._joined)

    def _fused(self, term: Term, arrays: Mapping[Ref, Any]) -> Any:
        return faster_loss(term.spec.fn, [arrays[ref] for ref in term.args])

    def _outputs_taken(self, arrays: Mapping[Ref, Any]) -> Collection[str] | None:
        """Return the outputs that losses and metrics read in a batch that lacks some slots; None for all."""
        takers: list[Taker] = [*self._spec.terms, *(metric.term for metric in self._figures.metrics)]
        present = [taker for taker in takers if taker.has_slots(arrays)]
        if len(present) == len(takers):
            return None
        return {ref.name for taker in present for ref in taker.args if ref.space == OUTPUTS}

    def _whole_samples(self, terms: Sequence[Term], arrays: Mapping[Ref, Any]) -> list[LabelRule]:
        """Return the rules of losses that take whole samples: their labels may not be missing in part."""
        return [
            LabelRule(term.where, ref, in_part=True)
            for term in terms
            if term.present and not self.counts_values(term, arrays)
            for ref in term.present
            if arrays[ref].size > len(arrays[ref])
        ]

    def _not_traced(self, reason: str) -> SpecError:
        use, way_out = "sampling: what a batch does not reach must be left out of", PARTS
        if self._separation.bound is not None:
            use, way_out = "losses: they are bound to trainers in", ""
        if self._separation.tasks is not None:
            use, way_out = "balance: the gradients of tasks are compared in", ""
        return SpecError(f"{use} {NOT_TRACED}: {reason}{way_out}")

    def describe(self) -> str:
        """Return one line that says what is traced and what is not, for the plan; needs a checked batch."""
        graph, net = self.first, self._network.net
        assert graph is not None
        losses = counted(len(graph.losses.terms), "loss", "losses")
        computed = f"{losses} and {counted(len(graph.losses.metrics), 'metric')}"
        outside = [term.where for term in self.outside]
        by_operator = f"losses and metrics run operator by operator ({self._failure})"
        if outside:
            way_out = "hybridize it" if len(outside) == 1 else "hybridize them"
            by_operator = f"losses and metrics run operator by operator: {way_out}, {', '.join(outside)}"
        if graph.joined:
            split = graph.describe_split(
                {p.name: name for name, p in net._collect_params_with_prefix().items()}
            )
            return f"the net, {computed} are one graph; nothing runs operator by operator{split}"
        if self._network.joins_losses:
            return f"the net is a graph; {by_operator}"
        reason = (
            "it has a forward or hooks of its own"
            if self._network.hybridized or self._spec.forward is not None
            else f"{'; '.join(hybridizing(net))} to make it part of the graph"
        )
        others = f"{computed} are one graph behind it" if graph.is_traced else by_operator
        has_others = graph.losses.terms or graph.losses.metrics
        return f"the net runs as it is ({reason}){f'; {others}' if has_others else ''}"


class _Traced(NamedTuple):
    """A graph, and the names of its outputs, which are filled in when it is traced."""

    graph: CachedGraph
    names: list[str]


class Inputs(NamedTuple):
    """A device's samples of a batch.

    These are the arrays of the slots; the weights of the losses, None when evaluating; the number of samples
    as an array of shape (1,), and as a number; their axis; and the signature of the slots.
    """

    slots: Mapping[str, Any]
    weights: Any
    size: Any
    samples: int
    axis: int
    signature: Hashable


class StepGraph:
    """Computes net, losses, metrics and checks of labels for the batches of one device.

    If the net is `joined`, it is one graph with them; else they are a graph behind it, if they are `traced`,
    or run operator by operator. `taken` names the net's outputs that are computed, None for all: layers that
    only other outputs need must get no gradient, not even a gradient of 0. `differentiable` and `separation`
    are as for :class:`StepGraphs`. If losses are bound to trainers, or gradients of tasks are compared, net
    and losses must be one graph.
    """

    def __init__(
        self,
        network: Network,
        losses: LossGraph,
        differentiable: bool,
        separation: LossSeparation,
        taken: Collection[str] | None,
        traced: bool,
        joined: bool,
    ) -> None:
        self._network, self.losses, self.joined = network, losses, joined
        self._differentiable, self._separation = differentiable, separation
        self.is_traced = self.joined or (traced and bool(losses.width))
        self.must_be_traced = separation.needs_graph or (taken is not None and self.joined)
        self.measured = frozenset(metric.key for metric, _ in losses.metrics)  # keys of the graph's metrics
        self._output_names = [name for name in network.paths or {} if taken is None or name in taken]
        inputs = network.spec.inputs if self.joined else ()
        self._slots = sorted({ref.name for ref in losses.refs if ref.space != OUTPUTS} | set(inputs))
        self._outputs_read = [ref.name for ref in losses.refs if ref.space == OUTPUTS and not self.joined]
        self._graphs: dict[bool, _Traced] = {}  # by whether they return all outputs
        self._last: CachedGraph | None = None

    def run(self, outputs: dict[str, Array], inputs: Inputs, full: bool = True) -> LossOutputs:
        """Run a batch on one device.

        `outputs` are those of the net, if it is not a part of the graph. Unless `full`, the graph may leave
        out the outputs and the losses of single samples.
        """
        if not self.is_traced:
            return self.run_operators(outputs, inputs)
        full = full or self._differentiable
        arrays = self._arguments(outputs, inputs)
        self._last, names = self._graphs.get(full) or self._new_graph(full, arrays, inputs)
        try:
            values = self._last.run(arrays, inputs.signature if self._network.plans_memory else None)
        except Exception:
            with user_code(lambda: "the graph of the net and its losses", *inputs.slots.items()):
                raise
        result = LossOutputs(outputs, backward=self._last.backward)
        for name, value in zip(names, values):
            group, _, key = name.partition(".")
            if group == "statistics":
                result.statistics = value
            elif group == "objective":
                result.objectives[(key,) if key else self.losses.keys] = value
            else:
                (outputs if group == "output" else result.parts)[key] = value
        return result

    def run_operators(self, outputs: Mapping[str, Array], inputs: Inputs) -> LossOutputs:
        """Compute everything from the net's outputs, operator by operator."""
        arrays = by_reference(outputs, inputs.slots)
        example = Example(inputs.samples, inputs.axis)
        result = self.losses(mx.nd, arrays, inputs.weights, inputs.size, example)
        result.outputs.update(outputs)
        return result

    def trace(self, outputs: Mapping[str, Array], inputs: Inputs) -> None:
        """Trace the graph that returns all outputs; it runs only if it is cut where tasks branch."""
        arrays = self._arguments(outputs, inputs)
        self._last, _ = self._new_graph(True, arrays, inputs)
        self._last.trace(arrays)
        if isinstance(self._last, SplitGraph):
            self._last.run(arrays)

    @property
    def features(self) -> SharedFeatures | None:
        """The features where the tasks branch, in the last run; None if the graph is not cut."""
        return self._last.features if isinstance(self._last, SplitGraph) else None

    def describe_split(self, names: Mapping[str, str]) -> str:
        """Return what tasks share whose gradients are compared, "" if none are; `names` are structural."""
        return f"; {self._last.describe(names)}" if isinstance(self._last, SplitGraph) else ""

    def _arguments(self, outputs: Mapping[str, Array], inputs: Inputs) -> list[Any]:
        """Return the arrays that the traced function takes after `F`."""
        slots, weights, size, *_ = inputs
        arrays = [slots[name] for name in self._slots] + [outputs[name] for name in self._outputs_read]
        return [size, *arrays] if weights is None else [size, weights, *arrays]

    def _new_graph(self, full: bool, arrays: Sequence[Any], inputs: Inputs) -> _Traced:
        """Return a graph for such arrays."""
        weighted = inputs.weights is not None
        names: list[str] = []  # filled when the graph is traced
        if self.joined:
            self._network.release_graph()
        of_task, repeats = self._separation.tasks, self._separation.repeats
        shapes = [array.shape for array in arrays if array is not None]
        example = partial(Example, inputs.samples, inputs.axis)
        function = partial(self._function, names, full, weighted, shapes, example)
        common = function, self._all_parameters, inputs.signature
        # whether a single objective is differentiated, and the net is part of the graph
        is_one = weighted and self.joined and self.losses.terms and self._separation.objective_form != APART
        graph: CachedGraph
        if of_task is not None:
            tasks = {f"objective.{loss}": task for loss, task in of_task.items()}
            of_outputs = (lambda: [tasks.get(name) for name in names]), partial(_objectives, names)
            graph = SplitGraph(*common, *of_outputs, self._separation.updated, repeats)
        elif full or not is_one:
            graph = CachedGraph(*common)
        else:
            graph = ExecutedGraph(*common, lambda: names.index("objective"))
        self._graphs[full] = _Traced(graph, names)
        return self._graphs[full]

    def _function(
        self,
        names: list[str],
        full: bool,
        weighted: bool,
        shapes: Sequence[Shape],
        example: Callable[[Mapping[str, Shape]], Example],
        F: Any,
        size: Any,
        *arrays: Any,
    ) -> list[Any]:
        """Return the graph's outputs as symbols, and fill in their `names`.

        `shapes` are those of the arrays of a batch, which `example` takes by symbol.
        """
        symbols = [size, *(array for array in arrays if array is not None)]
        known = {symbol.name: shape for symbol, shape in zip(symbols, shapes)}
        weights, arrays = (arrays[0], arrays[1:]) if weighted else (None, arrays)
        slots = dict(zip(self._slots, arrays))
        outputs: Mapping[str, Any] = dict(zip(self._outputs_read, arrays[len(self._slots) :]))
        if self.joined:
            outputs = self._network.symbols([slots[name] for name in self._network.spec.inputs])
        losses = self.losses(F, by_reference(outputs, slots), weights, size, example(known))
        apart = self._separation.objective_form == APART
        results = {} if apart or not losses.objectives else {"objective": losses.objectives[self.losses.keys]}
        if losses.statistics is not None:
            results["statistics"] = losses.statistics
        if apart:
            results.update({f"objective.{key}": each for (key,), each in losses.objectives.items()})
        views = {f"output.{name}": outputs[name] for name in self._output_names if self.joined}
        # Outputs come first, so that Dropout draws its masks in the same order as in a hand-written loop.
        if full or not results or not _keeps_order(F, views, results):
            views.update({f"part.{name}": part for name, part in losses.parts.items()})
            results = {**{name: self._view(F, symbol) for name, symbol in views.items()}, **results}
        names[:] = results
        return self._bound(F, results)

    def _all_parameters(self) -> Any:
        """Return the ParameterDict of the net, if it is part of the graph, and of the losses."""
        parameters = mx.gluon.ParameterDict()
        blocks = [term.spec.fn for term in self.losses.terms]
        for block in [self._network.net, *blocks] if self.joined else blocks:
            if isinstance(block, mx.gluon.Block):
                parameters.update(block.collect_params())
        return parameters

    def _bound(self, F: Any, results: Mapping[str, Any]) -> list[Any]:
        """Return the graph's outputs; a bound loss's gradient reaches only its trainers' parameters."""
        outputs = list(results.values())
        if self._separation.bound is None:
            return outputs
        graph, bound = F.Group(outputs), self._separation.bound()
        trained = frozenset(p.name for p in self._all_parameters().values() if p.grad_req != "null")
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


def _objectives(names: Sequence[str]) -> list[int]:
    return [number for number, name in enumerate(names) if name.startswith("objective.")]


def _keeps_order(F: Any, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether a graph of `second` alone runs the operators of `first` in the same order as `first`."""
    operators, all_operators = (
        F.Group(list(symbols.values())).get_internals().list_outputs() if symbols else []
        for symbols in (first, second)
    )
    before = set(operators)
    return operators == [name for name in all_operators if name in before]
