"""Two tasks on one body in PyTorch, weighed by TorchJD.

An epoch with each method, on request by its name.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import BATCH, Line
from torch import nn
from torch.nn import functional as F
from torchjd import aggregation, scalarization
from torchjd.autojac import jac_to_grad, mtl_backward

__all__ = ["Trained", "body"]

SCALARS = {"sum of losses": "Sum", "UW": "UW", "DWA": "DWA"}  # by which losses become one number


def body(kind: str) -> tuple[nn.Module, int]:
    """Return a body, as in subjects/balanced.py, and how many features it computes."""
    if kind == "MLP":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()), 64
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 32


class Trained:
    """A net that is trained with a method."""

    def __init__(self, kind: str, method: str, batches: list[tuple[torch.Tensor, ...]]) -> None:
        torch.manual_seed(0)
        self._body, features = body(kind)
        self._digit, self._parity = nn.Linear(features, 10), nn.Linear(features, 1)
        self._batches = batches
        self._backward, learned = self._method(method)
        nets = (self._body, self._digit, self._parity)
        parameters = [parameter for net in nets for parameter in net.parameters()]
        self._optimizer = torch.optim.SGD([*parameters, *learned], lr=0.01, momentum=0.9)

    def epoch(self) -> None:
        """Train for an epoch; losses and right answers are summed, as all contenders do."""
        sums = torch.zeros(4)
        for image, kind, odd in self._batches:
            features = self._body(image)
            digit, parity = self._digit(features), self._parity(features)
            losses = [F.cross_entropy(digit, kind), F.binary_cross_entropy_with_logits(parity, odd)]
            self._optimizer.zero_grad()
            self._backward(losses, features)
            self._optimizer.step()
            with torch.no_grad():
                right = (digit.argmax(1) == kind).sum(), ((parity > 0) == (odd > 0.5)).sum()
                sums += torch.stack([*(loss * len(image) for loss in losses), *right])
        sums.tolist()

    def _method(self, name: str) -> tuple[Callable[[list[torch.Tensor], torch.Tensor], Any], list[Any]]:
        """Return a backward pass, and the parameters that it learns."""
        if name in SCALARS:
            made = getattr(scalarization, SCALARS[name])
            scalarizer = made(2) if name == "UW" else made()
            learned = list(scalarizer.parameters()) if isinstance(scalarizer, nn.Module) else []
            return lambda losses, features: scalarizer(torch.stack(losses)).backward(), learned
        made = getattr(aggregation, name)
        aggregator = made(c=0.5) if name == "CAGrad" else made()

        def backward(losses: list[torch.Tensor], features: torch.Tensor) -> None:
            mtl_backward(losses, features)
            jac_to_grad(self._body.parameters(), aggregator)

        return backward, []


def main(path: str, kind: str) -> None:
    """Answer each line, the name of a method, with the seconds of an epoch."""
    with np.load(path) as file:
        arrays = [torch.from_numpy(file[name]) for name in ("image", "kind", "odd")]
    starts = range(0, len(arrays[0]), BATCH)
    batches = [tuple(array[i : i + BATCH] for array in arrays) for i in starts]
    line, trained = Line(), {}
    line.answer("ready")
    while method := line.wait():
        if method not in trained:
            trained[method] = Trained(kind, method, batches)
        begun = time.perf_counter()
        trained[method].epoch()
        line.answer(time.perf_counter() - begun)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    main(sys.argv[1], sys.argv[2])
