"""Activations that predictions apply to a net's outputs, on the host."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ...engines.scikit import softmax
from ...errors import Problem, SpecError, quoted, raise_problems, shown, suggest
from ...spec import TaskSpec
from ..compat import mx
from ..losses import class_axis

Activation = Callable[[np.ndarray], Any]
NAMES = ("softmax", "sigmoid")


def activations_of(spec: TaskSpec, declared: Any) -> dict[str, Activation]:
    """Return the activation of each output that has one.

    `declared` is a name, a function or None for the only output, or a dict of these by output. Raises
    SpecError for an unknown output or activation, or if there are several outputs and no dict.
    """
    outputs = spec.evaluation.output_names
    if declared is not None and not isinstance(declared, Mapping):
        if len(outputs) != 1:
            example = f"activation={{{outputs[0]!r}: {declared!r}}}" if outputs else "no activation"
            raise SpecError(f"activation is {shown(declared)} for {len(outputs)} outputs; give {example}")
        declared = {outputs[0]: declared}
    problems: list[str] = []
    found: dict[str, Activation] = {}
    for name, activation in (declared or {}).items():
        if name not in outputs:
            valid = f"{suggest(name, outputs)}; outputs are {quoted(outputs)}"
            problems.append(f"activation: there is no output {shown(name)}{valid}")
        elif activation == "softmax":
            found[name] = partial(_softmax, name=name, axis=_class_axis(spec, name))
        elif activation == "sigmoid":
            found[name] = _sigmoid
        elif callable(activation):
            found[name] = activation
        elif activation is not None:
            valid = f'{suggest(activation, NAMES)}; valid is "softmax", "sigmoid" or a function of an array'
            problems.append(f'activation of output "{name}" is {shown(activation)}{valid}')
    raise_problems(Problem("spec", message) for message in problems)
    return found


def _class_axis(spec: TaskSpec, output: str) -> int:
    """Return the axis of the classes: that of a softmax loss of the output, or else the last one."""
    terms = [*spec.evaluation.terms, *spec.terms]
    for fn in [term.spec.fn for term in terms if output in {ref.name for ref in term.outputs}]:
        if isinstance(fn, mx.gluon.loss.SoftmaxCrossEntropyLoss):  # of one-hot labels, too
            return int(fn._axis)
        if (axis := class_axis(fn)) is not None:
            return axis
    return -1


def _softmax(array: np.ndarray, name: str, axis: int) -> np.ndarray:
    if array.ndim < 2 or not -array.ndim <= axis < array.ndim or array.shape[axis] == 1:
        raise SpecError(
            f'activation of output "{name}": a softmax along axis {axis} of {array.shape} is 1 everywhere '
            'or impossible; for a single score, give "sigmoid"'
        )
    return softmax(array, axis)


def _sigmoid(array: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * array))  # cannot overflow
