"""The backward pass of a step."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch

from ...events import TrainingHooks
from ...gluon.execution.changed_objective import ChangedObjective
from ...gluon.execution.loss_separation import LossSeparation
from ...state import RunState
from .backward_pass import AutogradPass
from .parameters import Parameters
from .result import Result, weighted
from .scaling import Scaling
from .tensors import Tensors, to_array, to_arrays


class Backward:
    """Computes the gradients of parameters; they are 0 for parameters that the objectives do not reach.

    `hooks` call the handlers that change the objective, and `separation` says which losses the stage keeps
    apart.
    """

    def __init__(
        self,
        parameters: Parameters,
        scaling: Scaling,
        hooks: TrainingHooks,
        separation: LossSeparation,
        balancer: Any,
        state: RunState,
    ) -> None:
        self._balancer, self._state = balancer, state
        self._parameters, self._scaling, self._separation = parameters, scaling, separation
        self._hooks = hooks

    def __call__(self, result: Result) -> Tensors:
        """Return the gradients by parameter."""
        gradients: Tensors = {}
        if not result.objectives:  # this process has no samples
            self._combine(result)
            return gradients
        changed = result.changed
        copies = [copy for features in result.features for copy in features.copies]
        leaves = copies if changed is None else [*copies, *changed.leaves]
        if self._hooks.active("change_objective"):
            objectives, gradients = self._changed(result)
            computed = iter(self._scaling.gradients(self._pass(objectives, result.trained, leaves)))
        else:
            own = result.backward_pass
            backward_pass = own if changed is None else self._pass(result.objectives, result.trained, leaves)
            assert backward_pass is not None  # in training, there are gradients
            computed = iter(self._scaling.gradients(backward_pass, result.head_gradients))
        of_trained, of_copies = (list(islice(computed, len(each))) for each in (result.trained, copies))
        for features in result.features:
            features.scaling = self._scaling
            features.set_gradients(of_copies)
        self._combine(result)
        _add(gradients, zip(result.trained, of_trained))
        for features in result.features:
            _add(gradients, features.gradients.items())
        if changed is not None:
            objectives, others = self._with_others(lambda: changed.objectives(list(computed)))
            _add(gradients, others.items())
            of_net = self._scaling.gradients(self._pass(objectives, changed.trained))
            _add(gradients, zip(changed.trained, of_net))
        result.detach()
        return gradients

    def _combine(self, result: Result) -> None:
        """Combine the gradients of tasks, as a method of balancing says."""
        if self._balancer is not None:
            self._balancer.combine(result, self._state)

    def _pass(
        self, objectives: Sequence[torch.Tensor], names: Sequence[str], leaves: Sequence[torch.Tensor] = ()
    ) -> AutogradPass:
        """Return the backward pass to the parameters with these names, and to other leaves."""
        return AutogradPass(objectives, [*(self._parameters.tensors[name] for name in names), *leaves])

    def _changed(self, result: Result) -> tuple[list[torch.Tensor], Tensors]:
        """Return numbers whose gradients are those of the changed objective; this waits for the device.

        Also returns the gradients of parameters with which handlers themselves have computed.
        """
        self._parameters.give_back_losses()
        outputs, parts = (
            to_arrays(tensors) if self._hooks.takes("change_objective", kind) else {}
            for kind, tensors in (("pred", result.outputs), ("loss", result.parts))
        )
        objectives = [to_array(each) for each in result.objectives]
        objective = ChangedObjective(result.spec, result.batch, outputs, parts, objectives, result.scale)
        objective.change(self._hooks, self._separation)
        (of_outputs, of_parts, of_objectives), others = self._with_others(objective.gradients)
        heads = result.head_gradients or [1.0] * len(result.objectives)
        numbers = [weighted(result.objectives[at] * heads[at], head) for at, head in of_objectives.items()]
        numbers += [weighted(result.outputs[name], head) for name, head in of_outputs.items()]
        numbers += [weighted(result.parts[name], head) for name, head in of_parts.items()]
        return numbers, others

    def _with_others(self, differentiate: Callable[[], Any]) -> tuple[Any, Tensors]:
        """Call a function that differentiates with MXNet; also return the parameters' gradients it leaves."""
        self._parameters.give_back_gradients({})
        result = differentiate()
        return result, self._parameters.take_gradients()


def _add(gradients: Tensors, computed: Iterable[tuple[str, torch.Tensor]]) -> None:
    for name, tensor in computed:
        gradients[name] = gradients[name] + tensor if name in gradients else tensor
