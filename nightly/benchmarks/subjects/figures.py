"""Two figures per head, as the hand-written loops compute them."""

from typing import Any

import mxnet as mx

__all__ = ["Figures"]


class Figures:
    """Accuracy and mean loss of every head, by ``mx.metric``."""

    def __init__(self, binary: list[bool]) -> None:
        self._binary = binary
        self._accuracies = [mx.metric.Accuracy() for _ in binary]
        self._losses = [mx.metric.Loss() for _ in binary]

    def reset(self) -> None:
        """Begin an epoch."""
        for metric in self._accuracies + self._losses:
            metric.reset()

    def update(self, labels: list[Any], outputs: list[Any], losses: list[Any]) -> None:
        """Count a batch."""
        for i, binary in enumerate(self._binary):
            self._accuracies[i].update(labels[i], outputs[i] > 0 if binary else outputs[i])
            self._losses[i].update(0, losses[i])

    def get(self) -> list[float]:
        """Return all figures, the losses first."""
        return [metric.get()[1] for metric in self._losses + self._accuracies]
