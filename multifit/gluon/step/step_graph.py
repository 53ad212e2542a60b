"""Run batches of one signature: net, losses and metrics as one graph, where possible."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from ...engines.forms import ResultForms
from ...errors import SpecError, counted, last_line
from ...spec.terms import by_reference
from ..compat import mx
from ..user_code import user_code
from .cached_graph import CachedGraph, ExecutedGraph
from .loss_graph import APART, LossGraph, LossOutputs
from .loss_separation import LossSeparation
from .network import Network, hybridizing
from .split_graph import SharedFeatures, SplitGraph
from .step_function import StepFunction

NOT_TRACED = "the graph of net and losses, which cannot be traced"
PARTS = "; do not hybridize the net itself but its parts, such as net.body.hybridize()"


class StepGraph:
    """Computes net, losses and metrics of one device's batch.

    The traced losses are one graph with the net if the net can be traced, else a graph of their own behind
    it. The eager losses run operator by operator. The first batch of each signature is checked, and runs
    without a graph. `forms` remember the form of its results, and check later batches that run without a
    graph. `differentiable` says whether something outside of the graph differentiates through the outputs.
    If `separation` has tasks, the graph is cut where these branch; if it binds losses to trainers, their
    gradients reach some parameters only. In both cases, net and losses must be one graph. `taken` is as for
    :class:`StepFunction`. `kind` is what all batches of the graph have in common.
    """

    def __init__(
        self,
        network: Network,
        traced: LossGraph,
        eager: LossGraph,
        forms: ResultForms,
        differentiable: bool,
        separation: LossSeparation,
        taken: Collection[str] | None,
        kind: Hashable,
    ) -> None:
        self.network, self.traced, self.eager = network, traced, eager
        self.loss_graphs = traced, eager
        self._separation, self._forms, self._kind = separation, forms, kind
        self._differentiable = differentiable or bool(eager.terms)
        self._function = StepFunction(network, traced, self._differentiable, separation, taken)
        self._with_net = self._function.with_net
        self._is_graph = self._with_net or bool(traced.width)
        self._failure = ""
        self._graphs: dict[bool, tuple[CachedGraph, list[str]]] = {}
        self._last: CachedGraph | None = None
        self._must_trace = separation.needs_graph or (taken is not None and self._with_net)

    def run(
        self,
        slots: Mapping[str, Any],
        weights: Sequence[Any],
        size: Any,
        signature: Hashable = None,
        needs_outputs: bool = True,
    ) -> tuple[dict[str, Any], list[LossOutputs]]:
        """Run everything on one device; return the outputs, and the results of the traced and eager losses.

        `weights` are those of the traced and of the eager losses, each None when evaluating. `size`, of shape
        (1,), is the device's number of samples. `signature` is that of the slots. Without `needs_outputs`,
        the graph may leave out the outputs and the losses of single samples.
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
                # Losses and nets may look at shapes or call mx.nd, which is allowed but cannot be traced. A
                # real error is raised again by the run without a graph, which can name its place.
                if self._must_trace:
                    raise self._not_traced(last_line(error)) from error
                self._is_graph = False
                self._failure = f"{type(error).__name__} while tracing"
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

    @cached_property
    def form(self) -> Hashable:
        """What the graph depends on: equal forms, equal graphs, within a stage. Needs a first batch."""
        return self._kind, *(losses.form for losses in self.loss_graphs)

    @cached_property
    def measured(self) -> frozenset[str]:
        """The keys of the metrics that the graph computes."""
        return frozenset(metric.key for losses in self.loss_graphs for metric, _ in losses.metrics)

    @property
    def features(self) -> SharedFeatures | None:
        """The features where the tasks branch, in the last run; None if the graph is not cut."""
        return self._last.features if isinstance(self._last, SplitGraph) else None

    def describe(self) -> str:
        """Return one line that says what is traced and what is not, for the plan."""
        split = f"; {self._last.describe(self._structural())}" if isinstance(self._last, SplitGraph) else ""
        losses = counted(len(self.traced.terms), "loss", "losses")
        computed = f"{losses} and {counted(len(self.traced.metrics), 'metric')}"
        names = [term.where for term in self.eager.terms]
        eager = f"operator by operator: {', '.join(names)}" if names else "nothing runs operator by operator"
        if self._with_net and self._is_graph:
            return f"the net, {computed} are one graph; {eager}{split}"
        reason = self._failure or (
            "it has a forward or hooks of its own"
            if self.network.hybridized or self.network.spec.forward is not None
            else f"{'; '.join(hybridizing(self.network.net))} to make it part of the graph"
        )
        others = (
            f"{computed} are one graph behind it; {eager}" if self._is_graph else "so do losses and metrics"
        )
        return f"the net runs as it is ({reason}); {others}"

    def _not_traced(self, reason: str) -> SpecError:
        use, way_out = "sampling: what a batch does not reach must be left out of", PARTS
        if self._separation.bound is not None:
            use, way_out = "losses: they are bound to trainers in", ""
        if self._separation.tasks is not None:
            use, way_out = "balance: the gradients of tasks are compared in", ""
        return SpecError(f"{use} {NOT_TRACED}: {reason}{way_out}")

    def _structural(self) -> dict[str, str]:
        parameters = self.network.net._collect_params_with_prefix()
        return {parameter.name: name for name, parameter in parameters.items()}

    def _call_net(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self.network(slots)
        self._forms.check_outputs(outputs)
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
        """Run the graph on the net's outputs; if the net is part of it, add the outputs to `outputs`."""
        full = needs_outputs or bool(self.eager.width) or self._differentiable
        if full not in self._graphs:
            self._graphs[full] = self._new_graph(full, weights is not None, signature)
        self._last, names = self._graphs[full]
        arrays = self._function.arguments(outputs, slots, weights, size)
        values = dict(zip(names, self._last.run(arrays, signature if self.network.plans_memory else None)))
        losses = LossOutputs(values.pop("objective", None), {}, values.pop("statistics", None))
        losses.backward = self._last.backward
        groups = {"output": outputs, "part": losses.parts, "objective": losses.objectives}
        for name, value in values.items():
            kind, _, name = name.partition(".")
            groups[kind][name] = value
        return losses

    def _new_graph(self, full: bool, weighted: bool, signature: Hashable) -> tuple[CachedGraph, list[str]]:
        names: list[str] = []  # filled when the graph is traced
        if self._with_net:
            self.network.release_graph()
        of_task, repeats = self._separation.tasks, self._separation.repeats
        common = partial(self._function, names, full, weighted), self._function.parameters, signature
        if of_task is not None:
            tasks = {f"objective.{loss}": task for loss, task in of_task.items()}
            of_outputs = (lambda: [tasks.get(name) for name in names]), partial(_objectives, names)
            return SplitGraph(*common, *of_outputs, self._separation.updated, repeats), names
        # whether a single objective is differentiated, and the net is part of the graph
        is_apart = self._separation.objective_form == APART
        is_one_objective = weighted and self._with_net and self.traced.terms and not is_apart
        if full or not is_one_objective:
            return CachedGraph(*common), names
        return ExecutedGraph(*common, lambda: names.index("objective")), names


def _objectives(names: Sequence[str]) -> list[int]:
    return [number for number, name in enumerate(names) if name.startswith("objective.")]
