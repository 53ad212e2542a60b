"""Tasks on one body in PyTorch, weighed by TorchJD; and its solvers alone.

Answers each line, the name of a method, with the seconds of an epoch, or of the calls for some Gramians.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import Line
from torch import nn
from torch.nn import functional as F
from torchjd import aggregation, scalarization
from torchjd.autojac import jac_to_grad, mtl_backward

__all__ = ["Trained", "body", "solver"]

SCALARS = {"the sum": "Sum", "Uncertainty": "UW", "DWA": "DWA"}  # by which losses become one number


def body(kind: str) -> tuple[nn.Module, int]:
    """Return a body, as in subjects/balanced.py, and how many features it computes."""
    if kind == "MLP":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()), 64
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 32


class Trained:
    """A net that is trained with a method; a batch has an image and each task's classes."""

    def __init__(self, kind: str, method: str, batches: list[tuple[torch.Tensor, ...]]) -> None:
        torch.manual_seed(0)
        self._body, features = body(kind)
        self._heads = nn.ModuleList(nn.Linear(features, 10) for _ in batches[0][1:])
        self._batches = batches
        self._backward, learned = self._method(method)
        parameters = [*self._body.parameters(), *self._heads.parameters()]
        self._optimizer = torch.optim.SGD([*parameters, *learned], lr=0.01, momentum=0.9)

    def epoch(self) -> None:
        """Train for an epoch; losses and right answers are summed, as all contenders do."""
        sums = torch.zeros(2 * len(self._heads))
        for image, *labels in self._batches:
            features = self._body(image)
            outputs = [head(features) for head in self._heads]
            losses = [F.cross_entropy(*pair) for pair in zip(outputs, labels)]
            self._optimizer.zero_grad()
            self._backward(losses, features)
            self._optimizer.step()
            with torch.no_grad():
                right = [(output.argmax(1) == label).sum() for output, label in zip(outputs, labels)]
                sums += torch.stack([*(loss * len(image) for loss in losses), *right])
        sums.tolist()

    def _method(self, name: str) -> tuple[Callable[[list[torch.Tensor], torch.Tensor], Any], list[Any]]:
        """Return a backward pass, and the parameters that it learns."""
        if name in SCALARS:
            made = getattr(scalarization, SCALARS[name])
            scalarizer = made(len(self._heads)) if name == "Uncertainty" else made()
            learned = list(scalarizer.parameters()) if isinstance(scalarizer, nn.Module) else []
            return lambda losses, features: scalarizer(torch.stack(losses)).backward(), learned
        aggregator = getattr(aggregation, name)(**options(name))

        def backward(losses: list[torch.Tensor], features: torch.Tensor) -> None:
            mtl_backward(losses, features)
            jac_to_grad(self._body.parameters(), aggregator)

        return backward, []


def options(name: str) -> dict[str, float]:
    """Return what a method's constructor is given: ours has a default of c, theirs has none."""
    return {"c": 0.5} if name == "CAGrad" else {}


def solver(name: str, gramians: list[torch.Tensor]) -> Callable[[], Any]:
    """Return a function that computes a method's weights for each Gramian."""
    weighting = getattr(aggregation, f"{name}Weighting")(**options(name))
    return lambda: [weighting(gramian) for gramian in gramians]


def main(path: str, kind: str, batch: int) -> None:
    """Answer until the input ends; without a `kind` of body, the arrays are Gramians."""
    with np.load(path) as file:
        arrays = [torch.from_numpy(file[name]) for name in file.files]
    if kind:
        labels = [array.long() for array in arrays[1:]]
        batches = list(zip(*(array.split(batch) for array in (arrays[0], *labels))))
    line, known = Line(), {}
    line.answer("ready")
    while name := line.wait():
        if name not in known:
            known[name] = Trained(kind, name, batches).epoch if kind else solver(name, arrays)
        begun = time.perf_counter()
        known[name]()
        line.answer(time.perf_counter() - begun)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[4]))
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
