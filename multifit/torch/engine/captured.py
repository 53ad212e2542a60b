"""Run programs as CUDA graphs."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Callable, Hashable, Iterator, NamedTuple, Sequence

import torch

from .scaling import Differentiate, Heads, differentiate

MAX_GRAPHS = 32  # of a program; each holds the memory of a step
WARM_UP = 3  # runs before a capture, as PyTorch advises, in which libraries allocate and choose algorithms
FREE = 0.5  # of the GPU's memory must be free, for a graph keeps the memory of its step


class Step(NamedTuple):
    """A function with what its backward pass begins and ends at.

    `function` takes `tensors`, which keep their memory, then arguments. `learning` are those of the tensors
    that receive gradients, and `objectives` the places of the results that are differentiated.
    """

    function: Callable[..., Sequence[torch.Tensor]]
    tensors: Sequence[torch.Tensor]
    learning: Sequence[torch.Tensor]
    objectives: Sequence[int]

    def run(self, arguments: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], Differentiate]:
        """Return the results, and a function that differentiates the objectives."""
        results = self.function(*self.tensors, *arguments)
        return results, differentiate([results[place] for place in self.objectives], self.learning)

    def apart(self) -> Step:
        """Return the step on other tensors of the same memory, to which no earlier autograd graph refers.

        Such a graph would bring in its own stream, on which nothing may run during a capture.
        """
        aliases = {id(each): torch.nn.Parameter(each.detach()) for each in self.learning}
        tensors = [aliases.get(id(each), each) for each in self.tensors]
        return self._replace(tensors=tensors, learning=[*aliases.values()])

    @contextmanager
    def kept(self, device: torch.device) -> Iterator[None]:
        """Restore running statistics and random numbers after the block."""
        learning = {id(each) for each in self.learning}
        statistics = [each for each in self.tensors if id(each) not in learning]
        copies = [each.clone() for each in statistics]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            try:
                yield
            finally:
                for tensor, copy in zip(statistics, copies):
                    tensor.copy_(copy)


class Captured:
    """Calls a step as a CUDA graph, and its backward pass as another, for each form of arguments.

    Python launches a graph about as fast as a single operator. The first call with a form runs operator by
    operator; the second one is captured. If a capture fails, from then on all forms run operator by operator;
    a warning says so if it `insists`. It then also captures if little of the GPU's memory is free.

    `graphs` are those that the last call replayed; None if it ran operator by operator.
    """

    def __init__(self, step: Step, insists: bool) -> None:
        self._step, self._insists, self._captures = step, insists, True
        self._met: set[Hashable] = set()
        self._by_form: dict[Hashable, Graphs | None] = {}  # None for forms that run operator by operator
        self.graphs: Graphs | None = None

    def __call__(self, *arguments: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the results. Those of a graph have no gradients, and its next replay overwrites them."""
        form = torch.is_grad_enabled(), *((each.shape, each.dtype) for each in arguments)
        if self._captures and form in self._met and form not in self._by_form:
            self._by_form[form] = self._capture(arguments)
        self._met.add(form)
        self.graphs = self._by_form.get(form)
        if self.graphs is None:
            return self._step.function(*self._step.tensors, *arguments)
        return self.graphs.replay(arguments)

    def _capture(self, arguments: Sequence[torch.Tensor]) -> Graphs | None:
        """Return graphs for a form of arguments; None if they cannot be captured."""
        device = arguments[0].device
        if len(self._by_form) >= MAX_GRAPHS or not (self._insists or _has_room(device)):
            return None
        try:
            with self._step.kept(device), torch.cuda.device(device):
                return Graphs(self._step.apart(), arguments)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]  # the lines after that say how to debug CUDA
            message = "CUDA graphs: nothing is captured, Python launches every operator: %s"
            level = logging.WARNING if self._insists else logging.DEBUG
            logging.getLogger("multifit").log(level, message, why)
            self._captures = False
            self._by_form.clear()  # also those of other forms, for memory may be what is missing
            return None


class Graphs:
    """A step for one form of arguments as a CUDA graph, and its backward pass, if gradients are on."""

    def __init__(self, step: Step, arguments: Sequence[torch.Tensor]) -> None:
        self._arguments = [each.detach().clone() for each in arguments]
        self._heads, self._are_ones = list[torch.Tensor](), True
        learns = torch.is_grad_enabled()
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._warm_up(step, learns)
        current.wait_stream(stream)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(self._forward, pool=pool):
            results, backward = step.run(self._arguments)
        if learns:
            with torch.cuda.graph(self._backward, pool=pool):
                self._gradients = list(backward(self._heads))
        self._results = [each.detach() for each in results]

    def replay(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results."""
        torch._foreach_copy_(self._arguments, list(arguments))
        self._forward.replay()
        return self._results

    def gradients(self, heads: Heads | None = None) -> list[torch.Tensor]:
        """Return the gradients of what receives gradients, for those of the objectives, by default 1."""
        if heads is not None:
            torch._foreach_copy_(self._heads, list(heads))
        elif not self._are_ones:
            for head in self._heads:
                head.fill_(1)
        self._are_ones = heads is None
        self._backward.replay()
        return self._gradients

    def _warm_up(self, step: Step, learns: bool) -> None:
        results, backward = step.run(self._arguments)
        self._heads = self._heads or [torch.ones_like(results[place]) for place in step.objectives]
        if learns:
            backward(self._heads)


def _has_room(device: torch.device) -> bool:
    free, total = torch.cuda.mem_get_info(device)
    return free >= FREE * total
