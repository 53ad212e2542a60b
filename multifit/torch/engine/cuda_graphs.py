"""A computation as CUDA graphs: one forward, and one for each backward pass."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch

from .backward_pass import BackwardPass, ones_like
from .capturing import capturing
from .computation import Computation, Computed
from .tensors import unshared

WARM_UP = 3  # runs before a capture, as PyTorch advises, in which libraries allocate and choose algorithms


class CapturedPass:
    """A backward pass as a CUDA graph; `options` say where it is captured."""

    def __init__(self, backward_pass: BackwardPass, options: Mapping[str, Any]) -> None:
        self.objectives = [each.detach() for each in backward_pass.objectives]
        self._head_gradients, self._are_ones = ones_like(self.objectives), True
        self._graph = torch.cuda.CUDAGraph()
        gradients = unshared(lambda: backward_pass.gradients(self._head_gradients), self._head_gradients)
        with torch.cuda.graph(self._graph, **options):
            self._gradients = gradients()  # which may be changed in place

    def gradients(self, head_gradients: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Return the gradients of the leaves, which the next call overwrites."""
        if head_gradients is not None:
            torch._foreach_copy_(self._head_gradients, list(head_gradients))
        elif not self._are_ones:
            for each in self._head_gradients:
                each.fill_(1)
        self._are_ones = head_gradients is None
        self._graph.replay()
        return self._gradients


class CudaGraphs:
    """A computation for one form of arguments; a replay overwrites the values of the one before."""

    def __init__(self, computation: Computation, given: Mapping[str, torch.Tensor]) -> None:
        self._arguments = {name: given[name].detach().clone() for name in computation.inputs}
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    _warm_up(computation, self._arguments)
        finally:
            current.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with capturing(stream) as options:
            with torch.cuda.graph(self._graph, **options):
                computed = computation.run(self._arguments)
            passes = [CapturedPass(each, options) for each in computed.backward_passes]
        values = {name: each.detach() for name, each in computed.values.items()}
        self._computed = Computed(values, passes, computed.copies, captured=True)

    def replay(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Compute; the values require no gradients."""
        arguments = [given[name] for name in self._arguments]
        torch._foreach_copy_([*self._arguments.values()], arguments)
        self._graph.replay()
        return self._computed


def _warm_up(computation: Computation, arguments: Mapping[str, torch.Tensor]) -> None:
    """Run a computation once; in a function, so that its autograd graph is freed before the capture."""
    for backward_pass in computation.run(arguments).backward_passes:
        backward_pass.gradients()
