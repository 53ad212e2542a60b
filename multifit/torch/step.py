"""Runs batches: forward, losses and figures for every stage; gradients and updates in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..checks import at_path, bind_outputs
from ..distributed import World
from ..engines import Timer, untimed
from ..errors import Problem, SpecError, raise_problems
from ..events import NO_HOOKS, TrainingHooks
from ..spec import TaskSpec
from ..spec.names import Ref, listed
from ..spec.parsing import is_missable, presence
from ..spec.terms import by_reference, named_parts
from ..stages import TRAIN
from ..state import RunState
from .batch import Batch, CarriedState
from .branch import backward
from .cuda_graphs import CudaGraphs
from .figures import StageFigures
from .losses import Losses, Objective, Scale, Shares
from .model import Model
from .user_code import user_code


@dataclass
class StepResult:
    """What a stage computed from a batch, by name.

    `outputs` are the net's, in float32 at least; `parts` what each loss returned. The sum of the `objectives`
    of all ranks is minimised: those of this rank have gradients in training. `sums` are the sums of the parts
    over this rank's samples. `scale` has the weights and normalizers of the losses.
    """

    spec: TaskSpec
    batch: Batch
    outputs: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, list[Tensor]] = field(default_factory=dict)
    sums: dict[str, list[Tensor]] = field(default_factory=dict)
    objectives: dict[str, Tensor] = field(default_factory=dict)
    scale: Scale = field(default_factory=lambda: Scale({}, {}, {}))

    def arrays(self) -> dict[Ref, Any]:
        """Return outputs and slots by reference."""
        return by_reference(self.outputs, self.batch.slots)

    def named_parts(self) -> dict[str, Tensor]:
        """Return what the losses returned by figure: each loss, then its parts."""
        terms = [term for term in self.spec.terms if term.key in self.parts]
        return {
            name: part for term in terms for name, part in named_parts(term, self.parts[term.key]).items()
        }

    def detach(self) -> None:
        """Release autograd's graph: while it holds the parameters, no CUDA graph can be captured."""
        self.outputs = {name: _detached(each) for name, each in self.outputs.items()}
        self.parts = {name: [each.detach() for each in parts] for name, parts in self.parts.items()}
        self.objectives = {name: each.detach() for name, each in self.objectives.items()}

    def loss(self) -> float:
        """Return this rank's part of the objective; this waits for the device."""
        return sum(float(each.detach()) for each in self.objectives.values())

    def named(self) -> dict[str, dict[str, list[Any]]]:
        """Return ``pred``, ``label`` and ``loss``: dicts of lists of one tensor, however many there are."""
        spec, parts = self.spec, self.parts
        minimized = {term.key: parts[term.key][term.minimized] for term in spec.terms if term.key in parts}
        return {
            "pred": {name: [self.outputs.get(name)] for name in spec.output_names},
            "label": {name: [self.batch.slots.get(name)] for name in listed(spec.labels)},
            "loss": {term.key: [minimized.get(term.key)] for term in spec.terms},
        }

    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label``, ``loss``: lists of one tensor, or dicts of lists; and ``present``."""
        missable = [name for name, label in self.spec.label_specs.items() if is_missable(label)]
        views: dict[str, Any] = {
            name: next(iter(columns.values())) if len(columns) == 1 else columns
            for name, columns in self.named().items()
        }
        return {**views, "present": {name: [self.batch.slots.get(presence(name))] for name in missable}}


class Stage:
    """Runs batches for one TaskSpec, and adds up its figures.

    `name` is "train" or "evaluate". `hooks` call the handlers that change a training step; `frozen` resets
    the modules that stay in evaluation mode. `shares` is as for :class:`Objective`. `run_net` calls the net
    on its inputs; it may be compiled. `graphs` run batches as CUDA graphs.

    `figures` hold what was measured so far, and `checked` says whether a first batch was checked. `casts` are
    the dtypes to which labels are cast, as the losses cannot take those of the first batch.
    """

    def __init__(
        self,
        model: Model,
        spec: TaskSpec,
        name: str,
        figures: StageFigures,
        world: World,
        hooks: TrainingHooks = NO_HOOKS,
        frozen: Callable[[], object] = lambda: None,
        shares: Shares | None = None,
        run_net: Callable[..., Any] | None = None,
        graphs: CudaGraphs | None = None,
    ) -> None:
        self.model, self.spec, self.name, self.figures = model, spec, name, figures
        self.training, self.needs_outputs, self.checked = name == TRAIN, True, False
        self.casts: dict[str, torch.dtype] = {}
        self._hooks, self._frozen = hooks, frozen
        self._changes_outputs = hooks.active("change_outputs")
        self._world = world
        self.objective = Objective(spec, world, model.device, shares, graphs is not None)
        self._run_net, self._graphs = run_net or model.net, graphs
        self._paths: Mapping[str, tuple[Any, ...]] | None = None
        low = model.input_dtype in (torch.float16, torch.bfloat16)  # whose labels and losses are in float32
        self._input_dtype = model.input_dtype if low else None
        self._is_low = low or model.precision.dtype is not None
        self.carried = CarriedState(spec.state, model.device, model.dtype) if spec.state else None

    def run(
        self,
        batch: Batch,
        state: RunState | None = None,
        learns: bool | None = None,
        outputs: dict[str, Tensor] | None = None,
    ) -> StepResult:
        """Run net and losses on a batch; figures do not change.

        Gradients are recorded in training, unless it does not learn. `state` is for weights that are
        functions of it. The net does not run if its `outputs` are given.
        """
        result = StepResult(self.spec, batch, scale=self.objective.scale(batch, state))
        if batch.samples:
            with torch.set_grad_enabled(self.training if learns is None else learns):
                if outputs is None and self._graphs is not None:
                    self.model.set_mode(self.training, self._frozen)
                    result.outputs, losses = self._graphs(self._compute, batch, result.scale)
                else:
                    result.outputs, losses = self._compute(batch, result.scale, outputs)
            result.parts, result.sums, result.objectives = losses.parts, losses.sums, losses.objectives
            if self.carried is not None and learns is not False:  # which a batch that runs again is
                self.carried.keep(batch, result.outputs)
        return result

    def _compute(
        self, batch: Batch, scale: Scale, outputs: dict[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], Losses]:
        """Return the outputs, and what the losses computed from them."""
        outputs = self.forward(batch.slots) if outputs is None else outputs
        self.objective.forms.begin(batch.samples, batch.axis)
        self.objective.forms.check_outputs(outputs)
        return outputs, self.objective(by_reference(outputs, batch.slots), batch, scale)

    def forward(self, slots: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the net's declared outputs by name, as handlers change them; raises SpecError otherwise."""
        outputs, problems = self.bound(slots)
        raise_problems(problems)
        return outputs

    def bound(self, slots: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[Problem]]:
        """Return the net's declared outputs by name, as handlers change them, and the problems."""
        self.model.set_mode(self.training, self._frozen)
        outputs, problems = self.bind(self.call(slots))
        if self._changes_outputs and not problems:
            outputs = self._hooks.change_outputs(outputs, slots)
        return outputs, problems

    def call(self, slots: Mapping[str, Any]) -> Any:
        """Return what the net returns for a batch's slots."""
        forward, inputs, low = self.spec.forward, self.spec.inputs, self._input_dtype
        if low is not None:
            slots = {n: each.to(low) if n in inputs and _is_real(each) else each for n, each in slots.items()}
        shown = slots if forward is not None else {name: slots[name] for name in inputs}
        with user_code(self._called, *shown.items()), self.model.autocast():
            if forward is not None:
                return forward(self.model.net, dict(slots))
            return self._run_net(*shown.values())

    def bind(self, result: Any) -> tuple[dict[str, Tensor], list[Problem]]:
        """Return the declared outputs in what the net returned, and the problems."""
        try:
            outputs = {name: at_path(result, path) for name, path in (self._paths or {}).items()}
        except (KeyError, IndexError, TypeError):  # it has another structure than that of earlier batches
            outputs = {}
        tensors = [each for each in outputs.values() if isinstance(each, Tensor)]
        if len(tensors) < len(self.spec.output_names):
            self._paths, problems = bind_outputs(self.spec.outputs, result, self._where)
            if problems:
                return {}, problems
            outputs = {name: at_path(result, path) for name, path in self._paths.items()}
            if others := {name: each for name, each in outputs.items() if not isinstance(each, Tensor)}:
                found = ", ".join(f'"{name}" as {type(each).__name__}' for name, each in others.items())
                message = f"outputs: {self._where} returns {found}; every declared output must be a tensor"
                return {}, [Problem("spec", f"{message}: return one, or leave the output out of outputs=")]
        if self._is_low:
            low = torch.float16, torch.bfloat16
            outputs = {name: each.float() if each.dtype in low else each for name, each in outputs.items()}
        return outputs, []

    def measure(self, result: StepResult, timer: Timer = untimed) -> None:
        """Add a batch to the figures, without waiting for the device."""
        with timer("measure"), torch.no_grad():
            self.figures.add(result, self._world)

    def reset(self) -> None:
        """Discard everything measured, as at the beginning of an epoch."""
        self.figures.reset()
        if self.carried is not None:
            self.carried.reset()

    def state(self) -> dict[str, Any]:
        """Return what was measured since the reset, and what is carried to the next batch."""
        carried = None if self.carried is None else self.carried.state()
        return {"figures": self.figures.state(), "carried": carried}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned into a stage that was just reset."""
        self.figures.load(state["figures"])
        if self.carried is not None:
            self.carried.load(state["carried"])

    def describe(self) -> str:
        """Return one line that says how net and losses run."""
        precision = self.model.precision
        return f"runs with PyTorch{'' if precision.dtype is None else f', by autocast in {precision.name}'}"

    @property
    def _where(self) -> str:
        what = "the net" if self.spec.forward is None else "forward="
        return what if self.training else f"{what} when evaluating"

    def _called(self) -> str:
        what = "the net's forward pass" if self.spec.forward is None else "forward="
        return f"{what} ({self.name})"


def _detached(output: Tensor) -> Tensor:
    """Return an output without its graph; a copy of a parameter, or of a view of one, which will move."""
    base = output if output._base is None else output._base
    return output.detach().clone() if base.is_leaf and base.requires_grad else output.detach()


def _is_real(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class TrainStep:
    """Trains on one batch; `fit`, the profiler and the rate search all run this step.

    A restarted engine needs a new step. ``timer(phase, *detail)`` returns a context manager around each
    phase.
    """

    def __init__(self, session: Any, timer: Timer = untimed) -> None:
        self._splitter, self._stage = session.splitter(TRAIN), session.stages[TRAIN]
        self._state, self._trainers, self._hooks = session.state, session.trainers, session.hooks
        self._world, self._windows, self._timer = session.world, session.windows, timer
        self._statistics = session.model.statistics
        balancer = session.balancer
        compares = balancer is not None and balancer.compares
        self._of_losses: Any = None if compares else balancer
        self._of_gradients: Any = balancer if compares else None
        self._bound_parameters = session.bound_parameters
        self._trainers_of = {term.key: term.trainers for term in self._stage.spec.terms}

    def __call__(self, raw: Any) -> StepResult:
        """Train on a batch, as the loader yielded it."""
        return self._train(self.fetch(raw))

    def first(self, checked: StepResult) -> StepResult:
        """Train on the first batch, whose check has changed nothing."""
        return self._train(checked.batch)

    def _train(self, batch: Batch) -> StepResult:
        result = self.forward(batch)
        self.learn(result)
        self.measure(result)
        return result

    def fetch(self, raw: Any) -> Batch:
        """Name, cast and place the tensors of a batch; raises DataError if they are not as declared."""
        with self._timer("fetch"):
            batch: Batch = self._splitter.split(raw)
            return batch

    def forward(self, batch: Batch) -> StepResult:
        """Run net and losses."""
        with self._timer("forward"):
            raise_problems(self._trainers.build())
            result: StepResult = self._stage.run(batch, self._state)
            return result

    def learn(self, result: StepResult) -> None:
        """Compute the gradients; update the parameters, unless a handler holds that back.

        All gradients are ready before the first trainer updates a parameter. A trainer with a slower rhythm
        updates at a later batch. If its update is held back, what it has added up is discarded.
        """
        trainers, samples = self._trainers, result.batch.total
        assert samples is not None
        if self._of_losses is not None:
            with self._timer("balance"):
                self._of_losses.weigh(result, self._state)
        trainers.make_room(samples)
        with self._timer("backward"):
            self.backward(result)
        result.detach()
        due = trainers.due(self._state.step, samples, self._windows.ends)
        hooks = self._hooks
        held_back = hooks.active("hold_update") and hooks.hold_update(loss=result.named()["loss"])
        if trainers.agree(self._world, held_back, due):
            trainers.discard_held(due)
            return
        self.apply(due)
        if due and self._of_losses is not None and self._of_losses.looks_back:
            self.look_back(result)

    def backward(self, result: StepResult) -> None:
        """Add the gradients of the objective, as handlers and a method of balancing change it."""
        objectives = result.objectives
        if self._hooks.active("change_objective"):
            objectives = self._changed(result)
        if self._of_gradients is not None:
            result.objectives = dict(objectives)
            self._of_gradients.differentiate(result, self._state, self._trainers.scale)
            return
        groups: dict[tuple[str, ...], list[Tensor]] = {}  # by the trainers that losses are bound to
        for key, each in objectives.items():
            if each.requires_grad:  # a constant has nothing to learn in this batch
                groups.setdefault(self._trainers_of.get(key, ()), []).append(each)
        bound = self._bound_parameters()  # handlers may have unfrozen some
        for number, (names, losses) in enumerate(groups.items(), 1):
            more, inputs = number < len(groups), bound.get(names)
            if inputs != []:  # a handler may have frozen all of them
                backward(losses, self._trainers.scale, retain_graph=more, inputs=inputs)

    def finish(self) -> None:
        """Update by the gradients that wait for further batches, as the epoch has no more."""
        due = self._trainers.left_due()
        self._trainers.agree(self._world, False, due)
        self.apply(due)

    def apply(self, due: Sequence[str]) -> None:
        """Update the parameters of the trainers that are due."""
        with self._timer("reduce"):
            self._trainers.reduce(self._world, due)
        if self._hooks.active("change_gradients"):
            with self._timer("change"):
                self._hooks.change_gradients()
        with self._timer("clip"):
            self._trainers.clip(due)
        with self._timer("update"):
            self._trainers.update(due)

    def look_back(self, result: StepResult) -> None:
        """Compute the batch's losses again after the update, as the method of balancing compares them."""
        kept = {name: each.clone() for name, each in self._statistics.items()}
        with self._timer("balance"), torch.no_grad():
            self._of_losses.after_update(self._stage.run(result.batch, self._state, learns=False))
            for name, each in self._statistics.items():
                each.copy_(kept[name])

    def measure(self, result: StepResult) -> None:
        """Add the batch to the figures."""
        self._stage.measure(result, self._timer)

    def _changed(self, result: StepResult) -> dict[str, Tensor]:
        """Return the objectives as handlers change them."""
        before = list(result.objectives.values())
        objectives = self._hooks.change_objective(before, **result.named(), scale=result.scale)
        if any(each.requires_grad for each in before) and not any(each.requires_grad for each in objectives):
            names = self._hooks.names("change_objective")
            raise SpecError(
                f"losses: the objective has no gradient after a handler ({names}); let it compute the "
                "objective without torch.no_grad(), detach() or numpy()"
            )
        if len(objectives) == len(before):
            return dict(zip(result.objectives, objectives))
        is_bound = any(self._trainers_of.values())
        if self._of_gradients is not None or self._of_losses is not None or is_bound:
            what, option = ("losses", "trainers=") if is_bound else ("balance", "balance=")
            names = self._hooks.names("change_objective")
            raise SpecError(
                f"{what}: a handler ({names}) adds to the objective, or takes from it, and it is not known "
                f"for which loss; leave the handler or {option} out"
            )
        return {str(number): each for number, each in enumerate(objectives)}
