"""Warn of values that a net or a loss accepts without an error, but misinterprets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import channel_doubts
from ..spec.names import SINGULAR
from .inspection import is_kind
from .step import StepResult


def doubtful_values(result: StepResult, net: nn.Module) -> Iterator[str]:
    """Yield a warning for each output, label or input whose values a loss or the net was hardly meant for.

    Such a loss trains, but slowly or on nonsense: even if the net is always right, the loss stays far above
    0, or it has no lower bound. Labels that a mask or a weight may hide are left out.
    """
    arrays = result.arrays()
    for term in result.spec.terms:
        taken = [ref for ref in term.args[:2] if arrays.get(ref) is not None and arrays[ref].numel()]
        if len(taken) == 2:
            output, label = (f'the {SINGULAR[ref.space]} "{ref.name}"' for ref in taken)
            scores, true = (arrays[ref] for ref in taken)
            hides = bool(term.present) or len(term.args) > 2 or term.weights is not None
            of_output = _of_scores(term.spec.fn, scores)
            yield from (f"{term.where}: {output} {message}" for message in of_output)
            if not hides:
                yield from (f"{term.where}: {label} {message}" for message in _of_shares(term.spec.fn, true))
    channels = {each.in_channels for each in net.modules() if isinstance(each, nn.Conv2d)}
    yield from channel_doubts({name: result.batch.slots.get(name) for name in result.spec.inputs}, channels)


def _of_scores(fn: Any, scores: Tensor) -> Iterator[str]:
    axis = min(1, scores.dim() - 1)
    if is_kind(fn, [nn.CrossEntropyLoss]):
        if scores.shape[axis] > 1 and bool((scores >= 0).all()) and _is_one(scores.sum(axis)):
            yield (
                "adds up to 1 over its classes, as after a softmax, and CrossEntropyLoss applies softmax "
                "itself; let the net return the scores before its softmax"
            )
    elif is_kind(fn, [nn.NLLLoss]):
        if not _is_one(scores.exp().sum(axis)):
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


def _of_shares(fn: Any, label: Tensor) -> Iterator[str]:
    fixes = {
        nn.BCEWithLogitsLoss: "check the order of the labels",
        nn.KLDivLoss: "for scores, let the net return their softmax",
    }
    for kind, fix in fixes.items():
        if is_kind(fn, [kind]) and (wrong := label[(label < 0) | (label > 1)]).numel():
            takes = f"{kind.__name__} takes 0 … 1, and has no lower bound for others"
            yield f"holds {float(wrong[0]):g}, but {takes}; {fix}"


def _is_one(sums: Tensor) -> bool:
    return bool(torch.isclose(sums.float(), torch.ones(()).to(sums.device), atol=1e-2).all())
