"""The objective and the outputs, as handlers change them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import SpecError
from ...events import TrainingHooks
from ...protocols import Array
from ...spec import TaskSpec
from ..compat import mx
from ..data.batch import Batch
from ..optim.gradients import is_fresh
from .loss_separation import TOGETHER, LossSeparation
from .loss_weights import BatchLossScale
from .result import StepResult


def change_objective(result: StepResult, hooks: TrainingHooks, separation: LossSeparation) -> None:
    """Let handlers change the objectives of a result; raises SpecError if `separation` forbids it."""
    views = result.named()
    with mx.autograd.record():
        # However many handlers use an array, a single identity leads back into the graph. Gradients are then
        # added in the same order with a graph and without one, as in the first batch.
        for kind in ("pred", "loss"):
            views[kind] = {name: identities(arrays) for name, arrays in views[kind].items()}
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


def identities(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays that autograd computes from others; None stays None."""
    return [None if array is None else mx.nd.identity(array) for array in arrays]


Arrays = Mapping[str, Array]


class ChangedObjective:
    """The objective of a batch as handlers change it, on one device.

    Handlers get the outputs, what the losses returned, and the objectives.
    """

    def __init__(
        self,
        spec: TaskSpec,
        batch: Batch,
        outputs: Arrays,
        parts: Arrays,
        objectives: Sequence[Array],
        scale: BatchLossScale | None,
    ) -> None:
        self._outputs, self._parts = _variables(outputs), _variables(parts)
        self._objectives = dict(enumerate(objectives))
        _variables(self._objectives)
        self._result = StepResult(spec, batch, [self._outputs], [self._parts], scale=scale)
        with mx.autograd.record():
            self._result.objectives = identities(objectives)
        self._result.backwards = [(len(objectives), None)]

    def change(self, hooks: TrainingHooks, separation: LossSeparation) -> None:
        """Call the handlers, as :func:`change_objective` does."""
        change_objective(self._result, hooks, separation)

    def gradients(self) -> tuple[Arrays, Arrays, Mapping[int, Array]]:
        """Return the gradients of outputs, parts and objectives (by number) that the objective depends on.

        Gradients of parameters with which handlers have computed stay in the net.
        """
        self._result.differentiate()
        return _reached(self._outputs), _reached(self._parts), _reached(self._objectives)


class ChangedOutputs:
    """The outputs of a net as handlers change them, on one device."""

    def __init__(self, change: Any, outputs: Arrays, slots: Mapping[str, Any]) -> None:
        self._given = _variables(outputs)
        with mx.autograd.record():
            given = dict(zip(self._given, identities(list(self._given.values()))))
            self.arrays: dict[str, Array] = change(given, slots)

    def gradients(self, heads: Arrays) -> Arrays:
        """Return the gradients of the original outputs; `heads` are those of the changed outputs."""
        zero = mx.nd.zeros((1,), dtype=next(iter(heads.values())).dtype)
        zero.attach_grad()  # a handler may return constants alone, which MXNet refuses to differentiate
        with mx.autograd.record():
            products = [mx.nd.sum(self.arrays[name] * head) for name, head in heads.items()]
            total = mx.nd.add_n(zero, *products)
        total.backward()
        return _reached(self._given)


def _variables(arrays: Any) -> Any:
    """Attach gradients to the arrays of real numbers."""
    for array in arrays.values():
        if np.dtype(array.dtype).kind == "f":
            array.attach_grad()
    return arrays


def _reached(arrays: Any) -> Any:
    return {key: array.grad for key, array in arrays.items() if array.grad is not None and is_fresh(array)}
