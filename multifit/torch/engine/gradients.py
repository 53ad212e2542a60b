"""Gradients that no trainer has used yet."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import torch

from .parameters import Parameters
from .tensors import copied


class Gradients:
    """Holds gradients as tensors, by the names of the parameters, and as the net's arrays for handlers.

    A later batch's gradient replaces an earlier one, or is added to it if the parameter's `grad_req` says so;
    `added` says whether any gradient of the last batch was to be added.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters, self.added = parameters, False
        self._published = False  # whether the net has these gradients, where handlers may change them
        self.tensors = parameters.take_gradients()

    def add(self, computed: Mapping[str, torch.Tensor]) -> None:
        """Add the gradients of a backward pass, or replace those before."""
        self._published = False
        adds = [name for name in computed if self._parameters.adds(name)]
        both, self.added = [name for name in adds if name in self.tensors], bool(adds)
        sums: Iterable[torch.Tensor] = ()
        if both:
            pairs = ([tensors[name] for name in both] for tensors in (self.tensors, computed))
            sums = torch._foreach_add(*pairs)
        self.tensors.update({**computed, **dict(zip(both, sums))})

    def keep(self) -> None:
        """Copy gradients that wait for a later batch: the next replay of a CUDA graph overwrites them."""
        self.tensors = copied(self.tensors)

    def scale(self, names: Iterable[str], factor: float) -> None:
        """Multiply the gradients of some parameters, if they have one, by a factor."""
        present = [name for name in names if name in self.tensors]
        if present:
            scaled = torch._foreach_mul([self.tensors[name] for name in present], factor)
            self.tensors.update(zip(present, scaled))

    def drop(self, names: Iterable[str]) -> None:
        """Discard the gradients of some parameters."""
        for name in names:
            self.tensors.pop(name, None)

    def keep_trained(self) -> None:
        """Discard the gradients of parameters that were frozen."""
        self.drop(self.tensors.keys() - self._parameters.trained)

    def clear(self) -> None:
        """Discard all gradients."""
        self.tensors = {}

    @property
    def arrays(self) -> dict[str, Any]:
        """The net's own gradient arrays on the CPU, set to the same values; this waits for the device."""
        if not self._published:
            self.give_back()
            self._published = True
        return self._parameters.gradients(self.tensors)

    def give_back(self) -> None:
        """Copy the gradients to the net; this waits for the device."""
        self._parameters.give_back_gradients(self.tensors)

    def take(self) -> None:
        """Copy the gradients from the net."""
        self.tensors, self._published = self._parameters.take_gradients(), False

    def take_changes(self) -> None:
        """Copy the gradients from the net if handlers have read, and so may have changed, them."""
        if self._published:
            self.take()
