"""The gradients that no trainer has used yet."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import torch

from .parameters import Parameters


class Gradients:
    """Gradients by the names of the parameters, as tensors; as those of the net if handlers read them.

    Those that a later batch writes again are replaced, or added up if the parameter's `grad_req` says so;
    `added` tells whether that was so for any of the last batch. Those of a program that is `captured` are
    copied: the next replay of a CUDA graph overwrites its own, which a later batch, or a handler, may need.
    """

    def __init__(self, parameters: Parameters, captured: bool = False) -> None:
        self._parameters, self._lent, self.added = parameters, False, False
        self._captured = captured
        self.tensors = parameters.take_gradients()

    def add(self, computed: Mapping[str, torch.Tensor]) -> None:
        """Add what a backward pass computed."""
        self._lent = False
        if self._captured and computed:
            computed = dict(zip(computed, torch._foreach_mul([*computed.values()], 1.0)))
        adds = [name for name in computed if self._parameters.adds(name)]
        both, self.added = [name for name in adds if name in self.tensors], bool(adds)
        sums: Iterable[torch.Tensor] = ()
        if both:
            pairs = ([tensors[name] for name in both] for tensors in (self.tensors, computed))
            sums = torch._foreach_add(*pairs)
        self.tensors.update({**computed, **dict(zip(both, sums))})

    def replace(self, computed: Mapping[str, torch.Tensor]) -> None:
        """Let those of some parameters be others, unless a handler has used them up."""
        self.take_changes()
        self._lent = False
        self.tensors.update((name, each) for name, each in computed.items() if name in self.tensors)

    def scale(self, names: Iterable[str], factor: float) -> None:
        """Multiply the gradients of some parameters that have one."""
        present = [name for name in names if name in self.tensors]
        if present:
            scaled = torch._foreach_mul([self.tensors[name] for name in present], factor)
            self.tensors.update(zip(present, scaled))

    def drop(self, names: Iterable[str]) -> None:
        """Discard the gradients of some parameters."""
        for name in names:
            self.tensors.pop(name, None)

    def clear(self) -> None:
        """Discard all gradients."""
        self.tensors = {}

    @property
    def arrays(self) -> dict[str, Any]:
        """The net's own gradients on the CPU, with the same values; this waits for the device."""
        if not self._lent:
            self.give_back()
            self._lent = True
        return self._parameters.gradients(self.tensors)

    def give_back(self) -> None:
        """Copy them to the net; this waits for the device."""
        self._parameters.give_back_gradients(self.tensors)

    def take(self) -> None:
        """Copy those that the net has."""
        self.tensors, self._lent = self._parameters.take_gradients(), False

    def take_changes(self) -> None:
        """Copy those of the net if handlers have read them, and so may have changed them."""
        if self._lent:
            self.take()
