"""Labels that break a rule, counted on the device."""

from __future__ import annotations

import torch

from ...gluon.metrics.label_checks import HELD
from ...gluon.metrics.label_counts import NEVER


class WrongLabels:
    """How many labels broke each of some rules, and the first batch with one."""

    def __init__(self) -> None:
        self._held: list[torch.Tensor] = []
        self._batches: list[int] = []
        self._counts: torch.Tensor | None = None

    def add(self, counts: torch.Tensor, batch: int) -> None:
        """Add the counts of a batch, which has this number."""
        self._held.append(counts)
        self._batches.append(batch)
        if len(self._held) == HELD:
            self.counts()

    def counts(self) -> torch.Tensor:
        """Return by rule the count, and NEVER minus the first batch with one."""
        if self._held:
            counts = torch.stack(self._held)
            scores = torch.tensor([NEVER - batch for batch in self._batches], dtype=counts.dtype)
            first = ((counts != 0) * scores.to(counts.device, non_blocking=True)[:, None]).amax(0)
            total = counts.sum(0)
            if self._counts is not None:
                total, first = total + self._counts[0], torch.maximum(first, self._counts[1])
            self._counts = torch.stack([total, first])
            self._held.clear()
            self._batches.clear()
        assert self._counts is not None
        return self._counts
