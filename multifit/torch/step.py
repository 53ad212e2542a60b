"""Runs batches: forward, losses and figures for every stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import engines
from ..distributed import World
from ..engines import Timer, untimed
from ..engines.scale import Divisors, Scale
from ..handlers.dispatcher import NO_HOOKS, TrainingHooks
from ..handlers.state import RunState
from ..spec import TaskSpec
from ..spec.checks.results import at_path, bind_outputs
from ..spec.terms import Ref, by_reference, named_parts
from ..utils.errors import Problem, SpecError, raise_problems
from ..utils.stages import TRAIN
from .batch import Batch, CarriedState
from .cuda_graphs import CudaGraphs
from .figures import StageFigures
from .losses import Losses, Objective
from .model import Model
from .user_code import user_code


@dataclass
class StepResult(engines.StepResult):
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

    def by_device(self) -> list[tuple[Any, Any, Any]]:
        """Return the outputs, the slots and the minimised parts of losses, by name, of the one device."""
        parts, terms = self.parts, self.spec.terms
        minimized = {term.key: parts[term.key][term.minimized] for term in terms if term.key in parts}
        return [(self.outputs, self.batch.slots, minimized)]

    def change_objective(self, hooks: TrainingHooks) -> bool:
        """Let handlers change the objectives; return whether each is still that of the same loss.

        Raises SpecError if they have no gradient any more.
        """
        before = list(self.objectives.values())
        objectives = hooks.change_objective(before, **self.named(), scale=self.scale)
        if any(each.requires_grad for each in before) and not any(each.requires_grad for each in objectives):
            names = hooks.names("change_objective")
            raise SpecError(
                f"losses: the objective has no gradient after a handler ({names}); let it compute the "
                "objective without torch.no_grad(), detach() or numpy()"
            )
        alike = len(objectives) == len(before)
        keys = self.objectives if alike else map(str, range(len(objectives)))
        self.objectives = dict(zip(keys, objectives))
        return alike


class Stage:
    """Runs batches for one TaskSpec, and adds up its figures.

    `name` is "train" or "evaluate". `hooks` call the handlers that change a training step; `frozen` resets
    the modules that stay in evaluation mode. `divisors` is as for :class:`Objective`. `run_net` calls the net
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
        divisors: Divisors | None = None,
        run_net: Callable[..., Any] | None = None,
        graphs: CudaGraphs | None = None,
    ) -> None:
        self.model, self.spec, self.name, self.figures = model, spec, name, figures
        self.training, self.needs_outputs, self.checked = name == TRAIN, True, False
        self.casts: dict[str, torch.dtype] = {}
        self._hooks, self._frozen = hooks, frozen
        self._changes_outputs = hooks.active("change_outputs")
        self._world = world
        self.objective = Objective(spec, world, model.device, divisors, graphs is not None)
        self._run_net, self._graphs = run_net or model.net, graphs
        self._paths: Mapping[str, tuple[Any, ...]] | None = None
        low = model.input_dtype in (torch.float16, torch.bfloat16)  # whose labels and losses are in float32
        self._input_dtype = model.input_dtype if low else None
        self._is_low = low or model.precision.dtype is not None
        self.carried = CarriedState(spec.state, model.contexts, model.dtype) if spec.state else None

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
                self.carried.keep(batch, [result.outputs])
        return result

    def _compute(
        self, batch: Batch, scale: Scale, outputs: dict[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], Losses]:
        """Return the outputs, and what the losses computed from them."""
        outputs = self.forward(batch.slots) if outputs is None else outputs
        self.objective.forms.check_outputs(outputs, batch.samples, batch.axis)
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
