"""The training loop that PyTorch's users write: batches from pinned memory, figures summed on the device."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import add
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from .subjects import Subject
from .subjects.translation import CLIP
from .torch_figures import accuracies, heads_losses, multi_box, of_pixels
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
# by what is predicted: losses that are not one per head, and how many slots go to the net
LOSSES = {"boxes": (multi_box, 1), "sentences": (cross_entropy_per_token, 3)}
METRICS = {"classes": accuracies, "pixels": of_pixels}
ON_HOST = {"sentences": (2,)}  # lengths by which sentences are packed


def hand_written(
    case: Subject, device: torch.device, precision: str = "float32", compiled: bool = False
) -> Callable[..., list[float]]:
    """Return an epoch, which takes the number of passes over the batches, by default one.

    It returns the mean of the objective over the samples, the means of the losses, and the metrics.

    Raises KeyError for a net that `torch_net` does not know.
    """
    translates = case.predicts == "sentences"
    net = (Translation if translates else torch_net)(case.net()).to(device)
    run = torch.compile(net) if compiled else net
    name, options = case.optimizer
    parts, clip_norm = ([*net.children()], CLIP) if translates else ([net], None)
    optimizers = [(part, OPTIMIZERS[name](part.parameters(), **options)) for part in parts]
    loss, inputs = LOSSES.get(case.predicts) or (heads_losses(case), 1)
    metrics, on_host = METRICS.get(case.predicts), ON_HOST.get(case.predicts, ())
    batches = pinned(case, device)

    def epoch(passes: int = 1) -> list[float]:
        sums, weights, counts = (torch.zeros((), device=device, dtype=torch.float64) for _ in range(3))
        for batch in batches * passes:
            slots = [
                slot if at in on_host else slot.to(device, non_blocking=True) for at, slot in enumerate(batch)
            ]
            labels = slots[inputs:]
            for _, optimizer in optimizers:
                optimizer.zero_grad()
            with _autocast(device, precision):
                outputs = run(*slots[:inputs])
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            losses, weight = loss([each.float() for each in outputs], labels)
            reduce(add, losses).backward()
            for part, optimizer in optimizers:
                if clip_norm is not None:
                    clip_grad_norm_(part.parameters(), clip_norm)
                optimizer.step()
            with torch.no_grad():
                sums = sums + torch.stack(losses).double() * weight
                weights += weight
                if metrics is not None:
                    counts = counts + metrics.count(outputs, labels)
        means = (sums / weights).tolist()
        return [sum(means), *means, *([] if metrics is None else metrics.read(counts, weights))]

    return epoch


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return nullcontext() if precision == "float32" else torch.autocast(device.type, getattr(torch, precision))


def pinned(case: Subject, device: torch.device) -> list[Tensors]:
    """Return a case's batches as tensors in the host memory that GPUs copy from; classes are int64."""
    tensors = [[torch.from_numpy(slot.asnumpy()) for slot in batch] for batch in case.batches()]
    tensors = [[t.long() if t.dtype == torch.int32 else t for t in batch] for batch in tensors]
    return [[t.pin_memory() for t in batch] for batch in tensors] if device.type == "cuda" else tensors
