"""Runs a batch on all devices, and adds up the figures."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...distributed import ALONE, World
from ...engines import Timer, untimed
from ...protocols import Array, Context
from ...seeding import RERUN_STEP, mixed
from ...spec import TaskSpec
from ...state import RunState
from ..compat import mx
from ..data.arrays import signature_of, size_in_bytes
from ..data.batch import Batch
from ..metrics.host import Joining, Measured
from ..metrics.joined import gathered
from ..metrics.stage_figures import StageFigures
from ..metrics.stage_metric import StageMetric
from ..optim.preserve_state import kept_statistics
from ..ranks.collectives import Normalizers
from .carried_state import CarriedState
from .loss_graph import LossGraph, LossOutputs
from .loss_separation import TOGETHER, LossSeparation
from .loss_weights import BatchLossScale, LossScaler, Shares
from .network import Network
from .result import StepResult
from .step_graph import StepGraph
from .step_graph_cache import StepGraphCache

MAX_BATCHES = 64  # the largest number of batches that may wait for the engine
MIN_BATCHES = 2  # this many may always wait
MAX_BYTES = 64 * 2**20  # of the arrays of waiting batches, unless MIN_BATCHES take more


class Throttle:
    """Makes Python wait for the engine when it is many batches ahead.

    Python only submits computations, which is often faster than computing them, and every batch stays in
    memory until it is computed. A few batches ahead keep the engine busy. Python waits for the oldest of
    these, never for the newest, so that the engine always has work.
    """

    def __init__(self) -> None:
        self.limit = MAX_BATCHES
        self._queue: deque[list[Array]] = deque()

    def fit_to(self, arrays: Iterable[Array | None]) -> None:
        """Lower the limit if these arrays of one batch are large."""
        # a sparse array counts as if it were dense: MXNet makes it dense for operators that need that
        size = sum(size_in_bytes(array) for array in arrays if array is not None)
        self.limit = max(MIN_BATCHES, min(self.limit, MAX_BYTES // max(size, 1)))

    def push(self, arrays: Iterable[Array]) -> None:
        """Add a batch's last arrays, one per device, and wait for the oldest if there are too many."""
        self._queue.append(list(arrays))
        while len(self._queue) > self.limit:
            for array in self._queue.popleft():
                array.wait_to_read()

    def clear(self) -> None:
        """Forget all batches; reading a figure waits for them anyway."""
        self._queue.clear()


class Stage:
    """Runs batches for one TaskSpec, and adds up its figures.

    `network` is the net, as this stage calls it; its spec says what is routed where. Gradients are recorded
    if `training`. `changes_objective` says whether handlers compute an objective from outputs and losses, and
    `dtype` is that of the objective: the dtype of the net's parameters. `finite_only` says whether slots
    that are not finite are an error. `separation` says which losses are kept apart. `shares` is as for
    :class:`LossScaler`.

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
        shares: Shares | None = None,
    ) -> None:
        self.spec: TaskSpec = network.spec
        self.training, self.needs_outputs, self.checked = training, True, False
        self.dtype, self.casts = dtype, dict[str, str]()
        self.changes_objective = changes_objective
        self.network = network
        self.separation, self._rank = separation, world.rank
        self.figures = StageFigures(self.spec, metrics, finite_only, separation.means, network.stage)
        self._world = world
        self.graphs = StepGraphCache(network, self.spec, self.figures, changes_objective, dtype, separation)
        self._scaler = LossScaler(self.spec.terms, dtype, Normalizers(world), shares)
        self._throttle = Throttle()
        self.is_partial = training and any(term.optional for term in self.spec.terms)
        self.carried = CarriedState(self.spec.state, contexts, dtype) if self.spec.state else None

    def recording(self) -> Any:
        """Return the autograd scope in which this stage's forward passes run."""
        return mx.autograd.record() if self.training else mx.autograd.pause(train_mode=False)

    @property
    def reruns(self) -> bool:
        """Whether first batches run twice: operator by operator, to be checked, and then as a graph.

        Only the graph keeps tasks apart, or leaves out what a batch does not reach. The figures are those of
        the graph, as for later batches.
        """
        return self.separation.needs_graph or (self.is_partial and self.network.joins_losses)

    def rehearsal(self) -> AbstractContextManager[Any]:
        """Return a scope for an extra run of the net, after which its running statistics are restored."""
        if not self.reruns:
            return nullcontext()
        return kept_statistics(self.network.net.collect_params().values())

    def run(
        self, batch: Batch, state: RunState | None = None, first_outputs: dict[str, Array] | None = None
    ) -> StepResult:
        """Run net, losses and device metrics on a batch, and add up the figures, without waiting.

        `state` is for weights that are functions of it. `first_outputs` are the net's outputs for the first
        device, if the batch was checked and the net has already run on it.
        """
        result = StepResult(self.spec, batch)
        scale = result.scale = self._scaler.scale(batch, state)
        with self.recording():
            ran = []
            for context, slots, size in zip(batch.contexts, batch.slots, batch.sizes):
                with context:
                    ran.append(self._run_device(result, slots, size, scale, state, first_outputs))
                first_outputs = None
        if self.carried is not None:
            self.carried.keep(batch, result.outputs)
        self._add(ran, scale, batch)  # after recording, so that sums are not part of the graph
        self._throttle.push(_last_arrays(ran))
        return result

    def again(self, batch: Batch, state: RunState | None = None) -> StepResult:
        """Compute the objectives of a batch once more, in training mode, without gradients or figures."""
        result, scale = StepResult(self.spec, batch), self._scaler.scale(batch, state)
        with mx.autograd.pause(train_mode=True):
            for context, slots, size in zip(batch.contexts, batch.slots, batch.sizes):
                with context:
                    self._run_device(result, slots, size, scale, state)
        return result

    def measure(self, result: StepResult, timer: Timer = untimed) -> None:
        """Measure what the graphs did not compute; this may wait for the engine.

        Metrics that are not known get the arrays of all ranks, in the order of the ranks, when evaluating;
        otherwise, each rank's metric gets the arrays of that rank. They are never in the graphs, and so are
        the same on all ranks.
        """
        absent = result.batch.absent
        metrics = [
            metric
            for metric in self.figures.metrics
            if metric.term.key not in result.measured and metric.term.optional.isdisjoint(absent)
        ]
        if metrics:
            with timer("measure"):
                joining = Joining(result.batch.sizes, result.batch.axis)
                own = everything = Measured(result.arrays(), result.parts, joining)
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
        assert self.graphs.first is not None
        return f"{self.graphs.first.describe()}{self.network.precision_note}"

    def _run_device(
        self,
        result: StepResult,
        slots: Mapping[str, Any],
        size: int,
        scale: BatchLossScale,
        state: RunState | None,
        outputs: dict[str, Array] | None = None,
    ) -> tuple[StepGraph, list[LossOutputs]]:
        self.graphs.forms.begin(size, result.batch.axis)
        context = mx.context.current_context()
        signature = result.batch.signature or signature_of(slots.values())
        samples = self._scaler.constant((float(size),), context)
        graph = self.graphs.find(signature, size)
        if graph is None or outputs is not None:
            if outputs is None:
                with self.rehearsal():
                    outputs = self.network(slots)
            self.graphs.forms.check_outputs(outputs)
            graph = self.graphs.build(outputs, slots, size, signature)
            checked = graph.run_eagerly(outputs, slots, self._weights(graph, scale, context), samples)
            graph = self.graphs.keep(graph, signature, size)
            arrays = [*slots.values(), *_last_arrays([(graph, checked)])]
            self._throttle.fit_to(arrays * len(result.batch.contexts))
        else:
            outputs, checked = {}, []
        losses = checked
        if self.reruns or not checked:
            needs_outputs = self.needs_outputs or bool(self.figures.on_host) or self.carried is not None
            weights, planned = self._weights(graph, scale, context), None if checked else signature
            self._seed(state, len(result.outputs))
            computed, losses = graph.run(slots, weights, samples, planned, needs_outputs)
            outputs = computed or outputs  # the plan shows all outputs of a first batch
        result.measured.update(graph.measured)
        result.outputs.append(outputs)
        result.parts.append(_parts(losses) or _parts(checked))
        for group, losses_of in zip(graph.loss_graphs, losses):
            result.add(losses_of.by_losses([term.key for term in group.terms]), losses_of.backward)
        if (features := graph.features) is not None:
            result.features.append(features)
        return graph, losses

    def _seed(self, state: RunState | None, device: int) -> None:
        """Seed MXNet's generator before the graph runs, if the run has a seed and first batches run twice.

        First batches then draw random numbers twice: without this, a resumed run, which has first batches of
        its own, would draw other numbers.
        """
        if state is not None and state.seed is not None and self.reruns:
            place = state.epoch, state.step, device, self._rank
            mx.random.seed(mixed(state.seed, RERUN_STEP, *place) % 2**31)

    def _weights(self, graph: StepGraph, scale: BatchLossScale, context: Context) -> list[Array | None]:
        if not self.training:
            return [None, None]
        return [self._scaler.vector(losses, scale, context) for losses in graph.loss_graphs]

    def _add(
        self, ran: Sequence[tuple[StepGraph, list[LossOutputs]]], scale: BatchLossScale, batch: Batch
    ) -> None:
        sums = self.figures.sums
        for graph, outputs in ran:
            for losses, computed in zip(graph.loss_graphs, outputs):
                statistics = computed.statistics
                if sums.norms:
                    statistics = self._scaler.drop_empty(losses, statistics, scale)
                sums.add(losses.layout, statistics)
                if sums.weighted:
                    self._add_weighted(losses, statistics, scale)
        sums.count(batch.samples, scale.own)

    def _add_weighted(self, losses: LossGraph, statistics: Any, scale: BatchLossScale) -> None:
        for term in losses.terms:
            if term.key in self.figures.sums.weighted:
                index = losses.slices[term.where].start + term.minimized
                weighted = statistics[index : index + 1] * scale.weights[term.key]
                self.figures.sums.weighted[term.key].add(weighted)


def _parts(losses: Sequence[LossOutputs]) -> dict[str, Array]:
    return {figure: value for each in losses for figure, value in each.parts.items()}


def _last_arrays(ran: Sequence[tuple[StepGraph, list[LossOutputs]]]) -> list[Array]:
    """Return small arrays of each device that are computed last, and to which no other batch writes."""
    arrays = [
        each.objective if each.statistics is None else each.statistics for _, all_ in ran for each in all_
    ]
    return [array for array in arrays if array is not None]
