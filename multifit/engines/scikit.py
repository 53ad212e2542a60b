"""Functions of ``sklearn.metrics`` as metrics: what they take, and which of their values are better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from ..spec.checks import describe
from ..spec.checks.values import elementwise_problem
from ..utils.errors import SpecError
from ..utils.signatures import signature_of
from ..utils.text import quoted, shown, suggest

PREFIX = "sklearn."
DIRECTIONS = {"score": "max", "corrcoef": "max", "error": "min", "loss": "min", "deviance": "min"}


def named_function(where: str, name: str) -> Callable[..., Any]:
    """Return the function of ``sklearn.metrics`` with the name after the prefix.

    Raises SpecError if there is none, and ImportError if scikit-learn is not installed.
    """
    try:
        module = import_module("sklearn.metrics")
    except ImportError as error:
        raise ImportError(f"{where}: {shown(name)} needs scikit-learn: pip install scikit-learn") from error
    valid = [f"{PREFIX}{each}" for each in module.__all__ if each.rpartition("_")[2] in DIRECTIONS]
    if name not in valid:
        near = suggest(name, valid)
        raise SpecError(f"{where}: there is no metric {shown(name)}{near}; valid are {quoted(valid)}")
    function: Callable[..., Any] = getattr(module, name[len(PREFIX) :])
    return function


class WholePassFunction:
    """The value of ``function(labels, outputs)``, which gets the NumPy arrays of a whole pass.

    If it is `weighted`, the last of the labels is its argument `sample_weight`. `where` is its name in
    errors, and `mode` says which of its values are better, if that is known.
    """

    def __init__(self, function: Callable[..., Any], where: str, weighted: bool) -> None:
        self._where, self._weighted = where, weighted
        self._compute, self.mode = adapted(function)

    def __call__(self, labels: Sequence[Any], outputs: Sequence[Any]) -> float:
        """Call the function with one array each, or with lists of arrays if several are named."""
        options = {"sample_weight": labels[-1]} if self._weighted else {}
        groups = labels[: len(labels) - self._weighted], outputs
        arguments = [arrays[0] if len(arrays) == 1 else arrays for arrays in groups]
        value = self._compute(*arguments, **options)
        try:
            return float(value)
        except (OverflowError, TypeError, ValueError):
            found = f"its function returned {shown(value)}; it must return a number"
            raise SpecError(f"{self._where}: {found}") from None


def adapted(function: Callable[..., Any]) -> tuple[Callable[..., Any], str | None]:
    """Return a function of labels and scores before softmax or sigmoid, and which of its values are better.

    With C classes, scores are (N, C), (N, C, ...) or (N, ..., C). Functions of scikit-learn's that take
    predicted classes get the class of the largest score, or 1 for a single score above 0. Those that take
    probabilities get these, of two classes the second one's. Those of ``y_score`` get the difference of two
    classes' scores, or the probabilities of more. Other functions are returned as they are.
    """
    inner, name, module = _inner(function)
    if not module.startswith(PREFIX):
        return function, None
    takes = [*getattr(signature_of(inner), "parameters", ()), "", ""][1]
    probable = takes in ("y_prob", "y_proba") or "log_loss" in name
    classes = takes in ("y2", "labels_pred") or (module.endswith("_classification") and takes == "y_pred")

    def compute(labels: Any, outputs: Any, **options: Any) -> Any:
        if isinstance(labels, list) or isinstance(outputs, list):  # several of them
            return function(labels, outputs, **options)
        labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
        outputs = outputs.astype("float64") if outputs.dtype.kind == "f" else outputs
        shape, axes = outputs.shape, (outputs.ndim - 1, 1)
        axis = next((each for each in axes if shape[:each] + shape[each + 1 :] == labels.shape), None)
        if outputs.size == labels.size:
            outputs = outputs.reshape(labels.shape)
            if probable:
                outputs = softmax(np.stack([0.0 * outputs, outputs], axis=-1))[..., 1]
            elif classes and np.isin(labels, (0, 1)).all():
                outputs = (outputs > 0).astype("int64")
        elif axis is not None and (classes or probable or takes in ("y_score", "pred_decision")):
            labels, scores = labels.reshape(-1), np.moveaxis(outputs, axis, -1).reshape(-1, shape[axis])
            if classes and not probable:
                outputs = scores.argmax(axis=1)
            elif shape[axis] == 2:
                outputs = softmax(scores)[:, 1] if probable else scores[:, 1] - scores[:, 0]
            else:
                outputs = scores if takes == "pred_decision" else softmax(scores)
        if "sample_weight" in options:
            weights = options["sample_weight"].reshape(-1)
            options["sample_weight"] = np.repeat(weights, max(len(labels) // len(weights), 1))
        return function(labels, outputs, **options)

    return compute, DIRECTIONS.get(name.rpartition("_")[2])


def shape_problem(where: str, function: Any, output: tuple[str, Any], label: tuple[str, Any]) -> str | None:
    """Return why one of scikit-learn's functions cannot take an output and a label, each (name, array)."""
    _, name, module = _inner(function)
    if module == f"{PREFIX}metrics._regression":
        return elementwise_problem(where, output, label)
    scores, labels = prod(output[1].shape), prod(label[1].shape)
    several, options, give = scores > 2 * labels, str(signature_of(function)), ""
    if "average='binary'" in options and (several or scores == labels > len(label[1])):
        give = f'functools.partial(sklearn.metrics.{name}, average="macro")'
    elif "multi_class='raise'" in options and several:
        give = f'functools.partial(sklearn.metrics.{name}, multi_class="ovr")'
    found = f'{where}: {name} takes two classes, and the output "{output[0]}" is {describe.array(output[1])}'
    return f"{found}; give {give}" if give and module.startswith(PREFIX) else None


def _inner(function: Any) -> tuple[Any, str, str]:
    """Return the function that a partial calls, its name and its module."""
    function = function.func if isinstance(function, partial) else function
    return function, getattr(function, "__name__", ""), getattr(function, "__module__", None) or ""


def softmax(scores: Any, axis: int = -1) -> Any:
    """Return probabilities for scores, in their dtype."""
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)
