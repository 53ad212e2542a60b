"""Warn of values that a net or a loss accepts without an error, but misinterprets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import CHANNELS_FIRST, describe, has_channels_last
from ..spec.names import SINGULAR
from .inspection import is_kind
from .step import StepResult

Check = Callable[
    [str, str, Tensor, "Tensor | None"], Iterator[str]
]  # of names and values of output and label


def doubtful_values(result: StepResult, net: nn.Module) -> Iterator[str]:
    """Yield a warning for each output, label or input whose values a loss or the net was hardly meant for.

    Such a loss trains, but slowly or on nonsense: even if the net is always right, the loss stays far above
    0, or it has no lower bound. Labels that a mask or a weight may hide are left out.
    """
    arrays = result.arrays()
    for term in result.spec.terms:
        taken = [ref for ref in term.args[:2] if arrays.get(ref) is not None and arrays[ref].numel()]
        hides = bool(term.present) or len(term.args) > 2 or term.weights is not None
        for kind, check in _CHECKS.items():
            if len(taken) == 2 and is_kind(term.spec.fn, [kind]):
                output, label = (f'the {SINGULAR[ref.space]} "{ref.name}"' for ref in taken)
                scores, true = (arrays[ref] for ref in taken)
                for message in check(output, label, scores, None if hides else true):
                    yield f"{term.where}: {message}"
    yield from _channels_last(result, net)


def _cross_entropy(output: str, label: str, scores: Tensor, true: Tensor | None) -> Iterator[str]:
    axis = min(1, scores.dim() - 1)
    if scores.shape[axis] > 1 and bool((scores >= 0).all()) and _is_one(scores.sum(axis)):
        yield (
            f"{output} adds up to 1 over its classes, as after a softmax, and CrossEntropyLoss applies "
            "softmax itself; let the net return the scores before its softmax"
        )


def _log_likelihood(output: str, label: str, scores: Tensor, true: Tensor | None) -> Iterator[str]:
    if not _is_one(scores.exp().sum(min(1, scores.dim() - 1))):
        yield (
            f"{output} is not the logarithm of probabilities, which NLLLoss takes; let the net return its "
            "log_softmax, or give CrossEntropyLoss, which takes scores"
        )


def _logits(output: str, label: str, scores: Tensor, true: Tensor | None) -> Iterator[str]:
    if scores.grad_fn is not None and scores.grad_fn.name().startswith("SigmoidBackward"):
        yield (
            f"{output} is what a sigmoid returns, and BCEWithLogitsLoss applies sigmoid itself; let the net "
            "return the scores before its sigmoid, or give BCELoss"
        )
    yield from _shares(label, true, "BCEWithLogitsLoss", "check the order of the labels")


def _divergence(output: str, label: str, scores: Tensor, true: Tensor | None) -> Iterator[str]:
    if bool((scores > 0).any()):
        yield (
            f"{output} holds {float(scores.detach().max()):g}, and KLDivLoss takes the logarithm of "
            "probabilities, which is at most 0; let the net return its log_softmax"
        )
    yield from _shares(label, true, "KLDivLoss", "for scores, let the net return their softmax")


def _shares(label: str, true: Tensor | None, kind: str, fix: str) -> Iterator[str]:
    if true is not None and (wrong := true[(true < 0) | (true > 1)]).numel():
        found = f"{label} holds {float(wrong[0]):g}"
        yield f"{found}, but {kind} takes 0 … 1, and has no lower bound for others; {fix}"


_CHECKS: dict[Any, Check] = {
    nn.CrossEntropyLoss: _cross_entropy,
    nn.NLLLoss: _log_likelihood,
    nn.BCEWithLogitsLoss: _logits,
    nn.KLDivLoss: _divergence,
}


def _is_one(sums: Tensor) -> bool:
    return bool(torch.isclose(sums.float(), torch.ones(()).to(sums.device), atol=1e-2).all())


def _channels_last(result: StepResult, net: nn.Module) -> Iterator[str]:
    """Yield a warning for each input whose rows a convolution seems to have taken for channels.

    There is none if a convolution has the size of the last axis: then the net moves the channels itself.
    """
    channels = {each.in_channels for each in net.modules() if isinstance(each, nn.Conv2d)}
    for name in result.spec.inputs:
        shape = tuple(getattr(result.batch.slots.get(name), "shape", ()))
        if has_channels_last(shape) and shape[1] in channels and shape[3] not in channels:
            yield (
                f'the input "{name}" {describe.array(result.batch.slots[name])} looks like images with the '
                f"channels last, and a convolution takes the {shape[1]} rows for channels; {CHANNELS_FIRST}"
            )
