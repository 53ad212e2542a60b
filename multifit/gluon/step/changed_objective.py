"""The objective and the outputs, as handlers change them."""

from collections.abc import Sequence
from typing import Any

from ...errors import SpecError
from ...events import TrainingHooks
from ..compat import mx
from .loss_separation import TOGETHER, LossSeparation
from .result import StepResult


def change_objective(result: StepResult, hooks: TrainingHooks, separation: LossSeparation) -> None:
    """Let handlers change the objectives of a result; raises SpecError if `separation` forbids it."""
    views = result.named()
    with mx.autograd.record():
        # However many handlers use an array, a single identity leads back into the graph. Gradients are then
        # added in the same order with a graph and without one, as in the first batch.
        for kind in ("pred", "loss"):
            views[kind] = {
                name: [None if array is None else mx.nd.identity(array) for array in arrays]
                for name, arrays in views[kind].items()
            }
        objectives = hooks.change_objective(result.objectives, **views, scale=result.scale)
    if separation is not TOGETHER and _shapes(objectives) != _shapes(result.objectives):
        taker = "task that is" if separation.bound is None else "trainers that is"
        does = f"adds to the objective, or takes from it, and it is not known for which {taker}"
        raise SpecError(_not_with(separation, f"a handler ({hooks.names('change_objective')}) {does}"))
    result.objectives, result.backwards = objectives, [(len(objectives), None)]


def refuse_blends(hooks: TrainingHooks, separation: LossSeparation) -> None:
    """Raise SpecError if handlers blend losses that `separation` keeps apart."""
    blending = hooks.blending
    if blending and separation is not TOGETHER:
        does = "replaces a share of losses by others, which would not count as those of a task"
        if separation.bound is not None:
            does = "replaces a share of losses by others, which would train the parameters of all trainers"
        raise SpecError(_not_with(separation, f"{blending} {does}"))


def _not_with(separation: LossSeparation, problem: str) -> str:
    what, option = ("balance", "balance=") if separation.bound is None else ("losses", "trainers=")
    return f"{what}: {problem}; leave the handler or {option} out"


def _shapes(arrays: Sequence[Any]) -> list[Any]:
    return [array.shape for array in arrays]
