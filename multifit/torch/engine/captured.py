"""Run programs as CUDA graphs."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Callable, Hashable, Sequence

import torch

from .execution import Execution
from .scaling import Differentiate, Heads, differentiate

MAX_GRAPHS = 32  # of a program; each holds the memory of a step
WARM_UP = 3  # runs before a capture, as PyTorch advises, in which libraries allocate and choose algorithms
FREE = 0.5  # of the GPU's memory must be free, for a graph keeps the memory of its step

Function = Callable[..., Sequence[torch.Tensor]]


class Captured:
    """Calls a function as a CUDA graph, and the backward pass of its objectives as another.

    The first call with a form of arguments runs operator by operator; the second one is captured. Python
    launches a graph about as fast as a single operator. If a capture fails, from then on all forms run
    operator by operator.

    Parameters
    ----------
    function : callable
        Takes `tensors`, then the arguments of a call.
    tensors : sequence of torch.Tensor
        Parameters and other tensors that the function holds; they keep their memory.
    learning : sequence of torch.Tensor
        Those that receive gradients.
    objectives : sequence of int
        The places of the function's results that are differentiated.
    execution : Execution
        Whether it insists on graphs.

    Attributes
    ----------
    graphs : Graphs or None
        Those that the last call replayed.
    """

    def __init__(
        self,
        function: Function,
        tensors: Sequence[torch.Tensor],
        learning: Sequence[torch.Tensor],
        objectives: Sequence[int],
        execution: Execution,
    ) -> None:
        self._function, self._tensors, self._learning = function, list(tensors), list(learning)
        self._objectives, self._insists, self._captures = list(objectives), execution.insists, True
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
            return self._function(*self._tensors, *arguments)
        return self.graphs.replay(arguments)

    def _capture(self, arguments: Sequence[torch.Tensor]) -> Graphs | None:
        """Return graphs for a form of arguments; None if they cannot be captured."""
        device = arguments[0].device
        if len(self._by_form) >= MAX_GRAPHS or not (self._insists or _has_room(device)):
            return None
        try:
            return self._captured(arguments, device)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]  # the lines after that say how to debug CUDA
            level = logging.WARNING if self._insists else logging.DEBUG
            message = "CUDA graphs: nothing is captured, Python launches every operator: %s"
            logging.getLogger("multifit").log(level, message, why)
            self._captures = False
            self._by_form.clear()  # also those of other forms, for memory may be what is missing
            return None

    def _captured(self, arguments: Sequence[torch.Tensor], device: torch.device) -> Graphs:
        """Return graphs; running statistics and random numbers are those of before."""
        # other tensors of the same memory: an autograd graph of before, if any is left, is on another stream
        aliases = {id(each): torch.nn.Parameter(each.detach()) for each in self._learning}
        held = [aliases.get(id(each), each) for each in self._tensors]
        statistics = [(each, each.clone()) for each in self._tensors if id(each) not in aliases]
        with ExitStack() as restored:
            restored.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
            try:
                with torch.cuda.device(device):
                    return Graphs(self._function, held, [*aliases.values()], self._objectives, arguments)
            finally:
                for tensor, copy in statistics:
                    tensor.copy_(copy)


class Graphs:
    """A function for one form of arguments as a CUDA graph, and the backward pass of its objectives."""

    def __init__(
        self,
        function: Function,
        held: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        objectives: Sequence[int],
        arguments: Sequence[torch.Tensor],
    ) -> None:
        self._arguments, self._heads = [each.detach().clone() for each in arguments], list[torch.Tensor]()
        self._are_ones = True

        def forward() -> tuple[Sequence[torch.Tensor], Differentiate]:
            outputs = function(*held, *self._arguments)
            return outputs, differentiate([outputs[place] for place in objectives], leaves)

        def warm_up() -> None:
            for _ in range(WARM_UP):
                outputs, backward = forward()
                self._heads = self._heads or [torch.ones_like(outputs[place]) for place in objectives]
                if torch.is_grad_enabled():
                    backward(self._heads)

        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            warm_up()
        current.wait_stream(stream)
        pool = torch.cuda.graph_pool_handle()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, pool=pool):
            outputs, backward = forward()
        if torch.is_grad_enabled():
            with torch.cuda.graph(self._backward, pool=pool):
                self._gradients = list(backward(self._heads))
        self._outputs = [each.detach() for each in outputs]

    def replay(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the function's results."""
        torch._foreach_copy_(self._arguments, list(arguments))
        self._forward.replay()
        return self._outputs

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


def _has_room(device: torch.device) -> bool:
    free, total = torch.cuda.mem_get_info(device)
    return free >= FREE * total
