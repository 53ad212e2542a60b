"""What handlers make of arrays that another engine has computed, and the gradients through that.

The arrays have no history: MXNet differentiates only what the handlers do with them.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from ...events import TrainingHooks
from ...protocols import Array
from ...spec import TaskSpec
from ..compat import mx
from ..data.batch import Batch
from ..optim.gradients import is_fresh
from .changed_objective import change_objective, identities
from .loss_separation import LossSeparation
from .loss_weights import BatchLossScale
from .result import StepResult

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
