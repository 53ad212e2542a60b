"""Warn of values that a net or a loss accepts without an error, but misinterprets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ..engines.batch import as_numpy
from ..spec.checks.values import are_logarithms, channel_doubts, loss_doubts, share_doubts, softmax_doubts
from .inspection import is_kind
from .step import StepResult

OF_SHARES = {
    nn.BCEWithLogitsLoss: "check the order of the labels",
    nn.KLDivLoss: "for scores, let the net return their softmax",
}


def doubtful_values(result: StepResult, net: nn.Module) -> Iterator[str]:
    """Yield a warning for each output, label or input whose values a loss or the net was hardly meant for."""
    yield from loss_doubts(result.spec.terms, result.arrays(), _of_output, _of_label)
    channels = {each.in_channels for each in net.modules() if isinstance(each, nn.Conv2d)}
    yield from channel_doubts({name: result.batch.slots.get(name) for name in result.spec.inputs}, channels)


def _of_output(fn: Any, scores: Tensor) -> Iterator[str]:
    axis = min(1, scores.dim() - 1)
    if is_kind(fn, [nn.CrossEntropyLoss]):
        yield from softmax_doubts("CrossEntropyLoss", as_numpy(scores), axis)
    elif is_kind(fn, [nn.NLLLoss]):
        if not are_logarithms(as_numpy(scores), axis):
            yield (
                "is not the logarithm of probabilities, which NLLLoss takes; let the net return its "
                "log_softmax, or give CrossEntropyLoss, which takes scores"
            )
    elif is_kind(fn, [nn.BCEWithLogitsLoss]):
        if scores.grad_fn is not None and scores.grad_fn.name().startswith("SigmoidBackward"):
            yield (
                "is what a sigmoid returns, and BCEWithLogitsLoss applies sigmoid itself; let the net return "
                "the scores before its sigmoid, or give BCELoss"
            )
    elif is_kind(fn, [nn.KLDivLoss]) and bool((scores > 0).any()):
        yield (
            f"holds {float(scores.detach().max()):g}, and KLDivLoss takes the logarithm of probabilities, "
            "which is at most 0; let the net return its log_softmax"
        )


def _of_label(fn: Any, label: Tensor) -> Iterator[str]:
    for kind, way_out in OF_SHARES.items():
        if is_kind(fn, [kind]):
            yield from share_doubts(kind.__name__, as_numpy(label), way_out)
