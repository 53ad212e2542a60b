"""Losses and metrics as PyTorch's users write them; nothing waits for the device."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from mxnet.gluon.loss import SigmoidBinaryCrossEntropyLoss
from torch.nn import functional as F

from .subjects import Heads, Subject

__all__ = ["accuracies", "heads_losses", "multi_box", "of_pixels"]

Tensors = Sequence[torch.Tensor]


class Metrics(NamedTuple):
    """What is counted in a batch of outputs and labels, and the figures of all counts and samples."""

    count: Callable[[Tensors, Tensors], torch.Tensor]
    read: Callable[[torch.Tensor, torch.Tensor], list[float]]


def heads_losses(case: Subject) -> Callable[[Tensors, Tensors], tuple[list[Any], Any]]:
    """Return a function that returns a loss for each head, and the number of samples."""
    declared = case.losses() if isinstance(case, Heads) else [None]
    binary = [isinstance(loss, SigmoidBinaryCrossEntropyLoss) for loss in declared]
    functions = [F.binary_cross_entropy_with_logits if each else F.cross_entropy for each in binary]

    def losses(outputs: Tensors, labels: Tensors) -> tuple[list[Any], Any]:
        return [loss(*pair) for loss, *pair in zip(functions, outputs, labels)], len(labels[0])

    return losses


def multi_box(outputs: Tensors, targets: Tensors) -> tuple[list[Any], Any]:
    """Return SSD's two losses (Liu et al., 2016), as gluoncv has them, and the number of matched anchors."""
    (scores, boxes), (classes, places) = outputs, targets
    matched = classes > 0
    count = matched.sum()
    cross_entropy = F.cross_entropy(scores.transpose(1, 2), classes.long(), reduction="none")
    rank = (cross_entropy.detach() * (matched.float() - 1)).argsort(1).argsort(1)
    chosen = matched | (rank < 3 * matched.sum(1, keepdim=True))
    distance = F.smooth_l1_loss(boxes, places, reduction="none") * matched[..., None]
    divisor = count.clamp(min=1)
    return [(cross_entropy * chosen).sum() / divisor, distance.sum() / divisor], count


def _right(outputs: Tensors, labels: Tensors) -> torch.Tensor:
    """Return how many predictions of each head are right."""
    pairs = zip(outputs, labels)
    counts = [
        ((out > 0) == (label > 0.5) if out.shape[1] == 1 else out.argmax(1) == label).sum()
        for out, label in pairs
    ]
    return torch.stack(counts)


def _confusion(outputs: Tensors, labels: Tensors) -> torch.Tensor:
    """Return how many pixels of each class (rows) are predicted to be of each class (columns)."""
    (scores,), (label,) = outputs, labels
    classes = scores.shape[1]
    pairs = (label * classes + scores.argmax(1)).flatten()
    counts = torch.zeros(classes**2, dtype=torch.int64, device=pairs.device)
    # torch.bincount would wait for the GPU
    return counts.scatter_add_(0, pairs, torch.ones_like(pairs)).view(classes, classes)


def _pixel_accuracy_and_mean_iou(confusion: torch.Tensor, samples: torch.Tensor) -> list[float]:
    right = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - right
    return [float(right.sum() / confusion.sum()), float((right / union).mean())]


accuracies = Metrics(_right, lambda right, samples: (right / samples).tolist())
of_pixels = Metrics(_confusion, _pixel_accuracy_and_mean_iou)
