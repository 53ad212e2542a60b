"""Run the batches of a stage, training or evaluating, through net, losses and metrics as torch programs."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any
from weakref import ref

import torch

from ...gluon.data.batch import Batch
from ...gluon.execution.graph_cut import OUTPUT
from ...gluon.execution.loss_weights import BatchLossScale
from ...gluon.execution.stage import Stage as GluonStage
from ...gluon.execution.step_graph import StepGraph
from ...gluon.user_code import user_code
from ...state import RunState
from .computation import CompileMode
from .parameters import Parameters
from .program import NET, NetPrograms, Program, SplitProgram, make_room
from .result import CarriedState, ChangedOutputs, Result
from .sums import StageSums
from .tensors import Tensors, Uploads, to_arrays, to_tensor

GRAPH = "the graph of the net and its losses on torch"
MAX_CONSTANTS = 256
NOTHING: Tensors = {}


class Stage:
    """Runs batches for one TaskSpec.

    `gluon` is MXNet's stage, which traces graphs, computes the weights of losses, and holds the figures.
    `carried` is the state that is carried from batch to batch, if there is any.
    """

    def __init__(
        self, gluon: GluonStage, parameters: Parameters, uploads: Uploads, mode: CompileMode
    ) -> None:
        self.gluon, self._parameters, self._uploads, self._mode = gluon, parameters, uploads, mode
        self.carried = None if gluon.carried is None else CarriedState(gluon.carried)
        self._sums = gluon.figures.other_engine_sums = StageSums(gluon.figures)
        self._programs: dict[Hashable, Program | SplitProgram] = {}
        self._trained: set[str] = set()  # for which they were made
        self._nets = NetPrograms(gluon.network, parameters, gluon.training, mode)
        self._constants: dict[int, tuple[Any, torch.Tensor]] = {}
        # a weak reference to the last result: its values must be copied only if somebody keeps it
        self._last: Callable[[], Result | None] = lambda: None

    def run(self, batch: Batch, state: RunState) -> Result:
        """Run net, losses and device metrics on a batch, and add up the figures, without waiting."""
        self._parameters.take_if_stale()
        if not batch.contexts:  # this process has no samples
            empty = self.gluon.run(batch, state)
            return Result(self.gluon.spec, batch, {}, {}, [], scale=empty.scale)
        if self.carried is not None:
            self.carried.begin()
        last = self._last()
        if last is not None:
            last.keep()
        graph, scale, values, result = self._compute(batch, state, self.gluon.training)
        self._last = ref(result)
        if self.carried is not None:
            self.carried.keep(batch, result.outputs)
        self.gluon.figures.add_labels(graph.label_rows, batch.slots[0], batch.sizes[0], 0, batch.is_reused)
        self._sums.add(graph.traced, values.get("statistics"), scale, batch)
        return result

    def again(self, batch: Batch, state: RunState) -> Result:
        """Compute the objectives of a batch once more, in training mode, without gradients or figures."""
        if not batch.contexts:  # this process has no samples
            self.gluon.again(batch, state)
            return Result(self.gluon.spec, batch, {}, {}, [])
        with self._parameters.kept_statistics():
            return self._compute(batch, state, learns=False)[-1]

    def measure(self, result: Result) -> None:
        """Measure what the graph did not compute; this waits for the device."""
        if self.gluon.unmeasured(result.batch, result.measured):
            self.gluon.measure(result.on_host)

    def _compute(
        self, batch: Batch, state: RunState, learns: bool
    ) -> tuple[StepGraph, BatchLossScale, Tensors, Result]:
        graph, scale, constants = self.gluon.prepare(batch, state)
        self._discard_stale()
        slots, network = batch.slots[0], self.gluon.network
        recorded = not network.traced and network.change_outputs is None
        key: Hashable = (graph.form, network.form(slots)) if recorded else graph.form
        program = self._programs.get(key) or self._new_program(key, graph, batch)
        net = self._net_of(slots)
        inputs = {*program.inputs, *(net.inputs if net else ())}
        carried = NOTHING if self.carried is None else self.carried.given
        uploaded = {name: slots[name] for name in slots if name in inputs and name not in carried}
        tensors = {**self._uploads(uploaded), **carried}
        changed = None if net is None else self._change(net, tensors, carried, batch)
        if changed is not None:
            tensors.update((OUTPUT + name, tensor) for name, tensor in changed.outputs.items())
        tensors.update((name, self._constant(array)) for name, array in constants.items())
        with torch.set_grad_enabled(learns), user_code(lambda: GRAPH, *slots.items()):
            computed = program.run(tensors)
        values = computed.values
        outputs = _of_kind("output.", values) if changed is None else changed.outputs
        result = Result(
            self.gluon.spec, batch, outputs, _of_kind("part.", values), program.trained,
            scale=scale, changed=changed, features=program.features(computed), carried=carried,
            backward_pass=next(iter(computed.backward_passes), None), captured=computed.captured,
            measured=graph.measured,
        )  # fmt: skip
        for name in program.objectives:
            loss = name.partition(".")[2]
            result.add(values[name], [loss] if loss else [term.key for term in graph.traced.terms])
        return graph, scale, values, result

    def _discard_stale(self) -> None:
        """Discard all programs for training if other parameters receive gradients now."""
        trained = self._parameters.trained
        if self.gluon.training and trained != self._trained:
            self._trained = trained
            self._programs.clear()
            self._nets.clear()

    def _new_program(self, key: Hashable, graph: StepGraph, batch: Batch) -> Program | SplitProgram:
        make_room(self._programs)
        with self.gluon.recording():  # sets the mode, which a net may read
            traced = graph.trace(batch.slots[0], weighted=self.gluon.training)
        separation = self.gluon.separation
        options = self._parameters, self.gluon.training, self._mode
        program: Program | SplitProgram
        if separation.tasks is None:
            program = Program(traced, *options)
        else:
            program = SplitProgram(
                traced, separation.tasks, separation.updated(), separation.repeats, *options
            )
        self._programs[key] = program
        return program

    def _net_of(self, slots: Mapping[str, Any]) -> Program | None:
        """Return the net as a program of its own, if handlers change its outputs."""
        if self.gluon.network.change_outputs is None:
            return None
        with self.gluon.recording():
            return self._nets(slots)

    def _change(self, net: Program, given: Tensors, carried: Tensors, batch: Batch) -> ChangedOutputs:
        slots = {**batch.slots[0], **to_arrays(carried)}
        with user_code(lambda: NET, *slots.items()):
            outputs = net.run(given).values
        changed = ChangedOutputs(self.gluon.network.change_outputs, outputs, slots, net.trained)
        self.gluon.check_outputs(batch, changed.arrays)
        return changed

    def _constant(self, array: Any) -> torch.Tensor:
        """Return an array as a tensor; both are cached, because the same array is often passed."""
        known = self._constants.get(id(array))
        if known is None:
            if len(self._constants) == MAX_CONSTANTS:
                self._constants.clear()
            known = self._constants[id(array)] = array, to_tensor(array, self._parameters.device)
        return known[1]


def _of_kind(prefix: str, values: Tensors) -> Tensors:
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}
