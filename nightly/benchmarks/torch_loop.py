"""The training loop that PyTorch's users write: batches from pinned memory, figures summed on the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, Sequence

import torch
from mxnet.gluon.loss import SigmoidBinaryCrossEntropyLoss
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from .subjects import NMT, SSD, Heads, Subject
from .subjects.translation import CLIP
from .torch_nets import torch_net
from .torch_translation import Translation, cross_entropy_per_token

__all__ = ["hand_written", "pinned"]

Tensors = Sequence[torch.Tensor]
OPTIMIZERS = {
    "sgd": lambda parameters, learning_rate, momentum=0.0: torch.optim.SGD(
        parameters, learning_rate, momentum
    ),
    "adam": lambda parameters, learning_rate: torch.optim.Adam(parameters, learning_rate),
}


def hand_written(
    case: Subject, device: torch.device, precision: str = "float32", compiled: bool = False
) -> Callable[..., float]:
    """Return an epoch, which takes the number of passes over the batches, by default one.

    It returns the mean of the objective over the samples.

    Raises KeyError for a net that `torch_net` does not know.
    """
    net = (Translation if case is NMT else torch_net)(case.net()).to(device)
    run = torch.compile(net) if compiled else net
    name, options = case.optimizer
    parts, clip_norm = ([*net.children()], CLIP) if case is NMT else ([net], None)
    optimizers = [(part, OPTIMIZERS[name](part.parameters(), **options)) for part in parts]
    loss, inputs = LOSSES.get(case.name) or (_sum_of(_losses(case)), 1)
    on_host = ON_HOST.get(case.name, ())
    batches = pinned(case, device)

    def autocast() -> AbstractContextManager[Any]:
        if precision == "float32":
            return nullcontext()
        return torch.autocast(device.type, getattr(torch, precision))

    def epoch(passes: int = 1) -> float:
        total, weights, right = (torch.zeros((), device=device, dtype=torch.float64) for _ in range(3))
        for batch in batches * passes:
            slots = [
                slot if at in on_host else slot.to(device, non_blocking=True) for at, slot in enumerate(batch)
            ]
            labels = slots[inputs:]
            for _, optimizer in optimizers:
                optimizer.zero_grad()
            with autocast():
                outputs = run(*slots[:inputs])
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            objective, weight = loss([each.float() for each in outputs], labels)
            objective.backward()
            for part, optimizer in optimizers:
                if clip_norm is not None:
                    clip_grad_norm_(part.parameters(), clip_norm)
                optimizer.step()
            with torch.no_grad():
                total += objective * weight
                weights += weight
                if case.name not in LOSSES:
                    right += _right(outputs, labels)
        float(right)  # is read like every figure
        return float(total) / float(weights)

    return epoch


def pinned(case: Subject, device: torch.device) -> list[Tensors]:
    """Return a case's batches as tensors in the host memory that GPUs copy from; classes are int64."""
    tensors = [[torch.from_numpy(slot.asnumpy()) for slot in batch] for batch in case.batches()]
    tensors = [[t.long() if t.dtype == torch.int32 else t for t in batch] for batch in tensors]
    return [[t.pin_memory() for t in batch] for batch in tensors] if device.type == "cuda" else tensors


def _losses(case: Subject) -> list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    declared = case.losses() if isinstance(case, Heads) else [None]
    binary = [isinstance(loss, SigmoidBinaryCrossEntropyLoss) for loss in declared]
    return [F.binary_cross_entropy_with_logits if each else F.cross_entropy for each in binary]


def _sum_of(losses: Sequence[Callable[..., torch.Tensor]]) -> Callable[[Tensors, Tensors], tuple[Any, Any]]:
    """Return the sum of the heads' losses, and the number of samples."""

    def objective(outputs: Tensors, labels: Tensors) -> tuple[Any, Any]:
        terms = [loss(*pair) for loss, *pair in zip(losses, outputs, labels)]
        return torch.stack(terms).sum(), len(labels[0])

    return objective


def multi_box(outputs: Tensors, targets: Tensors) -> tuple[Any, Any]:
    """Return SSD's loss (Liu et al., 2016) as gluoncv computes it, and the number of matched anchors."""
    (scores, boxes), (classes, places) = outputs, targets
    matched = classes > 0
    count = matched.sum()
    cross_entropy = F.cross_entropy(scores.transpose(1, 2), classes.long(), reduction="none")
    rank = (cross_entropy.detach() * (matched.float() - 1)).argsort(1).argsort(1)
    chosen = matched | (rank < 3 * matched.sum(1, keepdim=True))
    distance = F.smooth_l1_loss(boxes, places, reduction="none") * matched[..., None]
    return ((cross_entropy * chosen).sum() + distance.sum()) / count.clamp(min=1), count


def _right(outputs: Tensors, labels: Tensors) -> torch.Tensor:
    """Return how many predictions are right, of all heads."""
    pairs = zip(outputs, labels)
    counts = [
        ((out > 0) == (label > 0.5) if out.shape[1] == 1 else out.argmax(1) == label).sum()
        for out, label in pairs
    ]
    return torch.stack(counts).sum()


# Objectives that are not the sum of the heads', and how many slots go to the net
LOSSES = {SSD.name: (multi_box, 1), NMT.name: (cross_entropy_per_token, 3)}
ON_HOST = {NMT.name: (2,)}  # lengths by which sentences are packed
