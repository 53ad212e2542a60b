"""A computation as CUDA graphs: one forward, and one for each backward pass."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from .backward_pass import BackwardPass, ones_like
from .computation import AnyComputation, Computed

WARM_UP = 3  # runs before a capture, as PyTorch advises, in which libraries allocate and choose algorithms


class CapturedPass:
    """A backward pass as a CUDA graph, in a pool of memory."""

    def __init__(self, backward_pass: BackwardPass, pool: Any) -> None:
        self.objectives = [each.detach() for each in backward_pass.objectives]
        self._head_gradients, self._are_ones = ones_like(self.objectives), True
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._gradients = backward_pass.gradients(self._head_gradients)

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
    """A computation for one form of arguments; a replay overwrites the results of the one before."""

    def __init__(self, computation: AnyComputation, arguments: Sequence[torch.Tensor]) -> None:
        self._arguments = [each.detach().clone() for each in arguments]
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    _warm_up(computation, self._arguments)
        finally:
            current.wait_stream(stream)
        self._graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        with torch.cuda.graph(self._graph, pool=pool):
            computed = computation.run(self._arguments)
        self._computed = _captured(computed, pool)

    def replay(self, arguments: Sequence[torch.Tensor]) -> Computed:
        """Compute; the results require no gradients."""
        torch._foreach_copy_(self._arguments, list(arguments))
        self._graph.replay()
        return self._computed


def _captured(computed: Computed, pool: Any) -> Computed:
    """Return what was computed with its backward passes captured, in the order in which they are replayed."""
    results = [each.detach() for each in computed.results]
    backward_pass, branches = computed.backward_pass, computed.branches
    if backward_pass is not None:
        backward_pass = CapturedPass(backward_pass, pool)
    if branches is not None:
        features = [(tensor.detach(), copies) for tensor, copies in branches.features]
        branches = branches._replace(
            features=features, backward_pass=CapturedPass(branches.backward_pass, pool)
        )
    return Computed(results, backward_pass, branches, captured=True)


def _warm_up(computation: AnyComputation, arguments: Sequence[torch.Tensor]) -> None:
    """Run a computation once; in a function, so that its autograd graph is freed before the capture."""
    computed = computation.run(arguments)
    for part in (computed, computed.branches):
        if part is not None and part.backward_pass is not None:
            part.backward_pass.gradients()
