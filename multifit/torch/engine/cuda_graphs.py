"""A computation as two CUDA graphs, forward and backward."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterator, NamedTuple, Sequence

import torch

from .backward_pass import AutogradPass, ones_like
from .tensors import restored

WARM_UP = 3  # runs before a capture, as PyTorch advises, in which libraries allocate and choose algorithms


class Computation(NamedTuple):
    """A function with what its backward pass begins and ends at.

    `function` takes the `held` tensors, which keep their memory, then arguments. `trained` are those of the
    held tensors that receive gradients, and `objectives` the places of the results that are differentiated.
    """

    function: Callable[..., Sequence[torch.Tensor]]
    held: Sequence[torch.Tensor]
    trained: Sequence[torch.Tensor]
    objectives: Sequence[int]

    def run(self, arguments: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], AutogradPass]:
        """Return the results, and the backward pass of the objectives."""
        results = self.function(*self.held, *arguments)
        return results, AutogradPass([results[place] for place in self.objectives], self.trained)

    def on_aliases(self) -> Computation:
        """Return the computation on other tensors of the same memory, to which no autograd graph refers yet.

        One of earlier batches would bring in its own stream, on which nothing may run during a capture.
        """
        aliases = {id(each): torch.nn.Parameter(each.detach()) for each in self.trained}
        held = [aliases.get(id(each), each) for each in self.held]
        return self._replace(held=held, trained=[*aliases.values()])

    @contextmanager
    def undone(self, device: torch.device) -> Iterator[None]:
        """Restore running statistics and random numbers after the block."""
        trained = {id(each) for each in self.trained}
        statistics = [each for each in self.held if id(each) not in trained]
        with torch.random.fork_rng([device] if device.type == "cuda" else []), restored(statistics):
            yield


class CudaGraphs:
    """A computation for one form of arguments as a CUDA graph; another for its backward pass, if it has one.

    `objectives` are the results that are differentiated.
    """

    def __init__(self, computation: Computation, arguments: Sequence[torch.Tensor]) -> None:
        self._arguments, self._gradients = [each.detach().clone() for each in arguments], list[torch.Tensor]()
        with_gradients = torch.is_grad_enabled()
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    _warm_up(computation, self._arguments, with_gradients)
        finally:
            current.wait_stream(stream)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(self._forward, pool=pool):
            results, backward_pass = computation.run(self._arguments)
        self._head_gradients, self._are_ones = ones_like(backward_pass.objectives), True
        if with_gradients:
            with torch.cuda.graph(self._backward, pool=pool):
                self._gradients = backward_pass.gradients(self._head_gradients)
        self._results = [each.detach() for each in results]
        self.objectives = [self._results[place] for place in computation.objectives]

    def replay(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results."""
        torch._foreach_copy_(self._arguments, list(arguments))
        self._forward.replay()
        return self._results

    def gradients(self, head_gradients: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Return the gradients of the trained tensors, for those of the objectives, by default 1."""
        if head_gradients is not None:
            torch._foreach_copy_(self._head_gradients, list(head_gradients))
        elif not self._are_ones:
            for each in self._head_gradients:
                each.fill_(1)
        self._are_ones = head_gradients is None
        self._backward.replay()
        return self._gradients


def _warm_up(computation: Computation, arguments: Sequence[torch.Tensor], with_gradients: bool) -> None:
    """Run a computation once; in a function, so that its autograd graph is freed before the capture."""
    _, backward_pass = computation.run(arguments)
    if with_gradients:
        backward_pass.gradients()
