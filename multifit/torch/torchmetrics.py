"""Metrics of torchmetrics, updated with the arrays of each batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..utils.errors import SpecError
from ..utils.text import shown


class TorchMetric:
    """A copy of a metric of torchmetrics, on the device of what it is updated with.

    multifit joins processes, not the metric. Raises SpecError for a MetricCollection, whose metrics share
    their states.
    """

    def __init__(self, metric: Any, where: str) -> None:
        if not hasattr(metric, "higher_is_better"):
            raise SpecError(f"{where}: is a {type(metric).__name__}; declare each of its metrics by itself")
        self.metric, self._where = copy.deepcopy(metric), where
        self.mode = {True: "max", False: "min"}.get(metric.higher_is_better)
        self._takes_indices = type(metric).__module__.startswith("torchmetrics.classification")
        for part in self._parts():
            part.sync_on_compute = False
        self.reset()

    @property
    def is_divisible(self) -> bool:
        """Whether batches may be added to the states of several processes that were merged."""
        return all(None not in part._reductions.values() for part in self._parts())

    def reset(self) -> None:
        """Discard everything measured."""
        self.metric.reset()

    def update(self, labels: Sequence[Any], preds: Sequence[Any]) -> None:
        """Add a batch; class indices become whole numbers, of shape (N,) for scores (N, C)."""
        outputs, targets = ([_tensor(array).detach() for array in arrays] for arrays in (preds, labels))
        if self._takes_indices:
            targets = [target.long() for target in targets]
        if outputs and outputs[0].dim() == 2 and outputs[0].shape[1] > 1:
            targets = [target.flatten() if target.shape[1:] == (1,) else target for target in targets]
        device = (outputs + targets)[0].device
        if any(part.device != device for part in self._parts()):
            self.metric.to(device)  # pragma: no cover - needs two devices
        with torch.no_grad():
            self.metric.update(*outputs, *targets)
        if device.type != "cpu":  # pragma: no cover - needs a GPU; checking later batches would wait for it
            for part in self._parts():
                part.validate_args = False

    def get(self) -> Any:
        """Return the value, the values, or the names and values of a dict."""
        with torch.no_grad():
            result = self.metric.compute()
        named, several = isinstance(result, Mapping), isinstance(result, (list, tuple))
        values = [*(result.values() if named else result if several else torch.atleast_1d(result))]
        if any(torch.as_tensor(value).numel() != 1 for value in values):
            raise SpecError(f"{self._where}: computes {shown(result)}; a figure is a number")
        numbers = [float(value) for value in values]
        return (list(result), numbers) if named else numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the metric and of those that it wraps, as NumPy arrays."""
        return {"parts": [[part.update_count, _arrays(part.metric_state)] for part in self._parts()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, (count, arrays) in zip(self._parts(), state["parts"]):
            part._update_count, part._computed = count, None
            for name, value in arrays.items():
                setattr(part, name, _on(part.device, value))

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what `state_dict` returned in another process."""
        for part, (count, arrays) in zip(self._parts(), state["parts"]):
            own = part.update_count
            part._update_count, part._computed = own + count, None
            for name, value in arrays.items() if count else ():
                here, there = getattr(part, name), _on(part.device, value)
                setattr(part, name, _merged(part, name, (here, own), (there, count)) if own else there)

    def _parts(self) -> list[Any]:
        return [part for part in self.metric.modules() if hasattr(part, "metric_state")]


def _merged(part: Any, name: str, one: tuple[Any, int], other: tuple[Any, int]) -> Any:
    """Return a state of two processes, each given with its number of updates, as torchmetrics reduces it."""
    (here, own), (there, count), reduce = one, other, part._reductions[name]
    if isinstance(here, list):
        return here + there
    if reduce is None:  # one row for each process
        rows = part._defaults[name].dim() + 1
        return torch.cat([each if each.dim() == rows else each[None] for each in (here, there)])
    if reduce.__name__ == "dim_zero_mean":
        return (here * own + there * count) / (own + count)
    return reduce([here, there] if reduce.__name__ == "dim_zero_cat" else torch.stack([here, there]))


def _tensor(array: Any) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array
    return torch.from_numpy(np.array(array.asnumpy() if hasattr(array, "asnumpy") else array))


def _on(device: Any, value: Any) -> Any:
    return [_tensor(v).to(device) for v in value] if isinstance(value, list) else _tensor(value).to(device)


def _arrays(states: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [each.cpu().numpy() for each in value] if isinstance(value, list) else value.cpu().numpy()
        for name, value in states.items()
    }
