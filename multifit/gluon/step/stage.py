"""Runs a batch on all devices, and adds up the figures."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ... import engines
from ...distributed import ALONE, World
from ...engines import Timer, untimed
from ...engines.scale import Divisors, Scale
from ...handlers.dispatcher import TrainingHooks
from ...handlers.state import RunState
from ...spec import TaskSpec
from ...spec.terms import Ref, by_reference
from ...utils.errors import SpecError
from ...utils.protocols import Array, Context, Numbers, Slots
from ...utils.text import last_line
from ..compat import mx
from ..data.added_slots import CarriedState
from ..data.arrays import Signature, new_array, signature_of, size_in_bytes
from ..data.batch import Batch
from ..metrics.host import Measured
from ..metrics.stage_figures import StageFigures
from ..metrics.stage_metric import StageMetric, gathered
from .cached_graph import Backward
from .loss_graph import TOGETHER, LossGraph, LossOutputs, LossSeparation
from .network import Network
from .split_graph import SharedFeatures
from .step_graph import Inputs, StepGraph, StepGraphs
from .weights import Weights, drop_empty

MAX_BATCHES = 64  # the largest number of batches that may wait for the device
MIN_BATCHES = 2  # this many may always wait
MAX_BYTES = 64 * 2**20  # of the arrays of waiting batches, unless MIN_BATCHES take more


class Throttle:
    """Makes Python wait for the device when it is many batches ahead.

    Python only submits computations, which is often faster than computing them, and every batch stays in
    memory until it is computed. A few batches ahead keep the device busy. Python waits for the oldest of
    these, never for the newest, so that the device always has work.
    """

    def __init__(self) -> None:
        self.limit = MAX_BATCHES
        self._queue: deque[list[Array | None]] = deque()

    def fit_to(self, arrays: Iterable[Array | None]) -> None:
        """Lower the limit if these arrays of one batch are large."""
        # a sparse array counts as if it were dense: MXNet makes it dense for operators that need that
        size = sum(size_in_bytes(array) for array in arrays if array is not None)
        self.limit = max(MIN_BATCHES, min(self.limit, MAX_BYTES // max(size, 1)))

    def push(self, arrays: list[Array | None]) -> None:
        """Add a small array of each device that a batch computes last; wait for the oldest of too many."""
        self._queue.append(arrays)
        while len(self._queue) > self.limit:
            for array in self._queue.popleft():
                if array is not None:
                    array.wait_to_read()

    def clear(self) -> None:
        """Forget all batches; reading a figure waits for them anyway."""
        self._queue.clear()


@dataclass
class StepResult(engines.StepResult):
    """What a stage computed from a batch.

    `outputs` and `parts` are, for each device, the net's outputs and what the losses returned, by name. The
    sum of all elements of the `objectives` is minimised, each times its element of `head_gradients`, if
    there are any. `objective_losses` are, for each objective, the losses that it contains; if losses are
    balanced, it has an element for each. `backwards` are pairs, in the order of the objectives: how many have
    a backward pass in common, and the function that runs it, or None if autograd has recorded them. `scale`
    holds the batch's weights and normalizers. `features` are, for each device, those where the tasks branch,
    if their gradients are compared. `measured` are the keys of the metrics that the graphs computed.
    """

    spec: TaskSpec
    batch: Batch
    scale: Scale
    outputs: list[dict[str, Array]] = field(default_factory=list)
    parts: list[dict[str, Array]] = field(default_factory=list)
    objectives: list[Array] = field(default_factory=list)
    objective_losses: list[tuple[str, ...]] = field(default_factory=list)
    backwards: list[tuple[int, Backward | None]] = field(default_factory=list)
    head_gradients: list[Array] | None = None
    features: list[SharedFeatures] = field(default_factory=list)
    measured: set[str] = field(default_factory=set)

    def add(self, objectives: Mapping[tuple[str, ...], Array], backward: Backward | None = None) -> None:
        """Add objectives, by the losses that each contains, and the function for their backward pass."""
        self.objectives += objectives.values()
        self.objective_losses += objectives
        self.backwards.append((len(objectives), backward))

    def change_objective(self, hooks: TrainingHooks) -> bool:
        """Let handlers change the objectives; return whether each is still that of the same losses."""
        views, before = self.named(), self.objectives
        with mx.autograd.record():
            # However many handlers use an array, a single identity leads back into the graph. Gradients are
            # then added in the same order with a graph and without one.
            for what in ("pred", "loss"):
                views[what] = {
                    name: [None if array is None else mx.nd.identity(array) for array in arrays]
                    for name, arrays in views[what].items()
                }
            self.objectives = hooks.change_objective(before, **views, scale=self.scale)
        self.backwards = [(len(self.objectives), None)]
        return [each.shape for each in self.objectives] == [each.shape for each in before]

    def differentiate(self) -> None:
        """Compute the gradients of the objectives; raises SpecError if an objective has no gradient."""
        if not self.objectives:  # this rank has no samples
            return
        heads: Sequence[Array | None] = self.head_gradients or [None] * len(self.objectives)
        recorded, start = list[Any](), 0
        for count, backward in self.backwards:
            of_these = slice(start, start + count)
            start += count
            if backward is None:
                recorded += zip(self.objectives[of_these], heads[of_these])
            else:
                backward(heads[of_these])
        if not recorded:
            return
        try:
            mx.autograd.backward(*map(list, zip(*recorded)))
        except mx.base.MXNetError as error:
            raise SpecError(
                f"losses: the objective has no gradient: {last_line(error)}; net and losses must "
                "compute it from the parameters, without detach(), asnumpy() or autograd.pause()"
            ) from error

    def loss(self) -> float:
        """Return this rank's part of the objective; this waits for it."""
        return sum(self.read_objectives())

    def read_objectives(self) -> list[float]:
        """Return the elements of all objectives; this waits for them."""
        return [value for objective in self.objectives for value in objective.asnumpy().tolist()]

    def like_objectives(self, values: Sequence[Numbers]) -> list[Array]:
        """Return numbers as arrays with the dtypes and devices of the objectives."""
        return [new_array(each, to.context, to.dtype) for each, to in zip(values, self.objectives)]

    def objective_dtypes(self) -> list[str]:
        """Return the names of the objectives' dtypes."""
        return [objective.dtype.__name__ for objective in self.objectives]

    def arrays(self) -> list[dict[Ref, Any]]:
        """Return outputs and slots by reference, per device."""
        return [by_reference(*pair) for pair in zip(self.outputs, self.batch.slots)]

    def by_device(self) -> list[tuple[Any, Any, Any]]:
        """Return each device's outputs, slots and what the losses returned, by name."""
        return list(zip(self.outputs, self.batch.slots, self.parts))


class Stage:
    """Runs batches for one TaskSpec, and adds up its figures.

    `network` is the net, as this stage calls it; its spec says what is routed where. Gradients are recorded
    if `training`. `changes_objective` says whether handlers compute an objective from outputs and losses, and
    `dtype` is that of the objective: the dtype of the net's parameters. `finite_only` says whether slots
    that are not finite are an error. `separation` says which losses are kept apart. `divisors` is as for
    :class:`Weights`.

    `figures` hold what was measured so far, and `checked` says whether a first batch was checked. `casts` are
    the dtypes to which labels are cast, as the losses cannot run with those of the first batch.
    `is_partial` says whether the stage trains on batches that may lack slots, so that only a part of the net
    is used. Set `needs_outputs` before an epoch: outputs that nothing reads need not be computed.
    """

    def __init__(
        self,
        network: Network,
        metrics: Sequence[StageMetric],
        contexts: Sequence[Context],
        training: bool,
        world: World = ALONE,
        changes_objective: bool = False,
        dtype: str = "float32",
        finite_only: bool = True,
        separation: LossSeparation = TOGETHER,
        divisors: Divisors | None = None,
    ) -> None:
        self.spec: TaskSpec = network.spec
        self.training, self.needs_outputs, self.checked = training, True, False
        self.dtype, self.casts = dtype, dict[str, str]()
        self.changes_objective = changes_objective
        self.network = network
        self.separation = separation
        self.figures = StageFigures(
            self.spec, metrics, finite_only=finite_only, means=separation.means, stage=network.stage
        )
        self._world = world
        self.graphs = StepGraphs(network, self.figures, changes_objective, dtype, separation)
        self.weights = Weights(self.spec.terms, dtype, world, divisors)
        self._throttle = Throttle()
        self._scope = mx.autograd.record if training else partial(mx.autograd.pause, train_mode=False)
        self.is_partial = training and any(term.optional for term in self.spec.terms)
        self._is_carried = bool(self.spec.state)
        self.carried = CarriedState(self.spec.state, contexts, dtype) if self.spec.state else None

    def recording(self) -> AbstractContextManager[Any]:
        """Return the autograd scope in which this stage's forward passes run."""
        scope: AbstractContextManager[Any] = self._scope()
        return scope

    def run(self, batch: Batch, state: RunState | None = None) -> StepResult:
        """Run net, losses and device metrics on a batch, and add up the figures, without waiting.

        `state` is for weights that are functions of it.
        """
        scale = self.weights.scale(batch, state)
        result, full = StepResult(self.spec, batch, scale=scale), self.needs_outputs or self._is_carried
        with self._scope():
            computed = [self._run(result, *device, full) for device in batch.devices()]
        if self.carried is not None:
            self.carried.keep(batch, result.outputs)
        self._add(computed, scale, batch)  # after recording, so that sums are not part of the graph
        self._throttle.push([outputs.statistics for _, outputs in computed])
        return result

    def again(self, batch: Batch, state: RunState | None = None) -> StepResult:
        """Compute the objectives of a batch once more, in training mode, without gradients or figures."""
        result = StepResult(self.spec, batch, scale=self.weights.scale(batch, state))
        with mx.autograd.pause(train_mode=True):
            for device in batch.devices():
                self._run(result, *device, full=False)
        return result

    def rehearse(
        self, batch: Batch, outputs: dict[str, Array], state: RunState, own_gradients: Iterable[str] = ()
    ) -> StepResult:
        """Compute losses and device metrics on the first device's samples, operator by operator.

        `outputs` are the net's for these, and `own_gradients` the losses that ignore the gradient that they
        receive. The graph for such batches is then known; see :meth:`StepGraphs.check`.
        """
        self.graphs.own_gradients.update(own_gradients)
        scale = self.weights.scale(batch, state)
        result = StepResult(self.spec, batch, scale=scale)
        slots, size, signature = batch.slots[0], batch.sizes[0], signature_of(batch.slots[0].values())
        with self.recording(), batch.contexts[0]:
            graph, losses = self.graphs.check(
                outputs,
                slots,
                size,
                batch.axis,
                signature,
                lambda graph: self._inputs(graph, result, batch.contexts[0], slots, size, signature),
            )
        self._keep(result, graph, losses)
        self._add([(graph, losses)], scale, batch)
        arrays = [*slots.values(), losses.statistics]
        self._throttle.fit_to(arrays * len(batch.contexts))
        return result

    def measure(self, result: StepResult, timer: Timer = untimed) -> None:
        """Measure what the graphs did not compute; this may wait for the device.

        Metrics that are not known get the arrays of all ranks, in the order of the ranks, when evaluating;
        otherwise, each rank's metric gets the arrays of that rank. They are never in the graphs, and so are
        the same on all ranks.
        """
        if len(result.measured) == len(self.figures.metrics):  # all are in the graph
            return
        absent = result.batch.absent
        metrics = [
            metric
            for metric in self.figures.metrics
            if metric.term.key not in result.measured and metric.term.optional.isdisjoint(absent)
        ]
        if metrics:
            with timer("measure"):
                arrays = result.arrays()  # in a check, those of the first device alone
                sizes = result.batch.sizes[: len(arrays)]
                own = everything = Measured(arrays, result.parts, sizes, result.batch.axis)
                unknown = [metric.term for metric in metrics if not metric.is_whole]
                if unknown and not self.training and not self._world.alone:
                    everything = gathered(self._world, unknown, own)
            for metric in metrics:
                with timer("measure", metric.term.key):
                    metric.update(own if metric.is_whole else everything, self.figures.sums)

    def reset(self) -> None:
        """Discard everything measured, as at the beginning of an epoch."""
        self.figures.reset()
        self._throttle.clear()
        if self.carried is not None:
            self.carried.reset()

    def describe(self) -> str:
        """Return one line that says what is traced into graphs and what is not; needs a first batch."""
        return f"{self.graphs.describe()}{self.network.precision_note}"

    def state(self) -> dict[str, Any]:
        """Return what was measured since the reset, and what is carried to the next batch."""
        carried = None if self.carried is None else self.carried.state()
        return {"figures": self.figures.state(), "carried": carried}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned into a stage that was just reset."""
        self.figures.load(state["figures"])
        if self.carried is not None:
            self.carried.load(state["carried"])

    def _run(
        self, result: StepResult, context: Context, slots: Slots, size: int, full: bool
    ) -> tuple[StepGraph, LossOutputs]:
        """Run a device's samples; if `full`, the outputs and the losses of single samples are needed."""
        signature = result.batch.signature or signature_of(slots.values())
        graph, outputs = self.graphs.find(slots, size, result.batch.axis, signature)
        inputs = self._inputs(graph, result, context, slots, size, signature)
        losses = graph.run(outputs, inputs, full or self.graphs.reads_outputs)
        self._keep(result, graph, losses)
        return graph, losses

    def _keep(self, result: StepResult, graph: StepGraph, losses: LossOutputs) -> None:
        result.measured.update(graph.measured)
        result.outputs.append(losses.outputs)
        result.parts.append(losses.parts)
        result.add(losses.objectives, losses.backward)
        if graph.features is not None:
            result.features.append(graph.features)

    def _inputs(
        self,
        graph: StepGraph,
        result: StepResult,
        context: Context,
        slots: Slots,
        size: int,
        signature: Signature,
    ) -> Inputs:
        weights = self.weights.vector(graph.losses, result.scale, context) if self.training else None
        samples = self.weights.constant((float(size),), context)
        return Inputs(slots, weights, samples, size, result.batch.axis, signature)

    def _add(self, computed: Sequence[tuple[StepGraph, LossOutputs]], scale: Scale, batch: Batch) -> None:
        sums = self.figures.sums
        for graph, outputs in computed:
            losses, statistics = graph.losses, outputs.statistics
            if sums.norms:
                statistics = drop_empty(losses, statistics, scale)
            sums.add(losses.layout, statistics)
            if sums.weighted:
                self._add_weighted(losses, statistics, scale)
        sums.count(batch.samples, scale.shares)

    def _add_weighted(self, losses: LossGraph, statistics: Any, scale: Scale) -> None:
        for term in losses.terms:
            if term.key in self.figures.sums.weighted:
                index = losses.slices[term.where].start + term.minimized
                weighted = statistics[index : index + 1] * scale.weights[term.key]
                self.figures.sums.add_weighted(term.key, weighted)
