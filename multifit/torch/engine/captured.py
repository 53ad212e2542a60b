"""Run modules as CUDA graphs (``compile="cudagraphs"``)."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any, Callable, Hashable

import torch

CAPTURES = {"cuda"}  # kinds of devices
MAX_GRAPHS = 32  # of a module; each holds the memory of a step

Function = Callable[..., Any]


class Captured:
    """Calls a module of torch as a CUDA graph, and its backward pass as another, for each form of arguments.

    Python launches a graph about as fast as a single operator. The first call with a form runs operator by
    operator; the second one is captured. If that fails, a warning says why, and from then on all forms run
    operator by operator. A graph returns copies, because its next replay overwrites its results, but it does
    not copy gradients. On a CPU, nothing is captured.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self._module, self._device, self._captures = module, device, device.type in CAPTURES
        self._met: set[Hashable] = set()
        self._graphs: dict[Hashable, Function] = {}

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Return the module's outputs."""
        if not self._captures:
            return self._module(*tensors)
        form = torch.is_grad_enabled(), *((t.shape, t.dtype, t.requires_grad) for t in tensors)
        graph = self._graphs.get(form)
        if graph is None:
            if form not in self._met or len(self._graphs) == MAX_GRAPHS:
                self._met.add(form)
                return self._module(*tensors)
            graph = self._graphs[form] = self._capture(tensors)
        return graph(*tensors)

    def _capture(self, tensors: tuple[torch.Tensor, ...]) -> Function:
        """Return a graph of the module for arguments like `tensors`; the module itself, if that fails.

        Torch runs the module a few times before. So running statistics and random numbers are restored.
        """
        recorded = _Recorded(self._module)
        arguments = tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)
        statistics = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        with ExitStack() as restored:
            on_gpu = self._device.type == "cuda"
            restored.enter_context(torch.random.fork_rng([self._device] if on_gpu else []))
            restored.enter_context(torch.cuda.stream(torch.cuda.current_stream(self._device)))
            try:
                run = torch.cuda.make_graphed_callables(recorded, arguments, allow_unused_input=True)
            except RuntimeError as error:
                why = str(error).partition("\n")[0]  # the lines after that say how to debug CUDA
                logging.getLogger("multifit").warning('compile="cudagraphs": nothing is captured: %s', why)
                self._captures = False
                self._graphs.clear()  # of other forms, for memory may be what is missing
                return self._module
            finally:
                for buffer, copy in statistics:
                    buffer.copy_(copy)

        def call(*given: torch.Tensor) -> Any:
            outputs = zip(run(*given), recorded.differentiable)
            return tuple((each if learns else each.detach()).clone() for each, learns in outputs)

        return call


class _Recorded(torch.nn.Module):
    """A module that notes which of its outputs have a gradient; a graph returns all of them with one."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module, self.differentiable = module, list[bool]()

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return what the module returns."""
        outputs = self.module(*tensors)
        self.differentiable = [each.requires_grad for each in outputs]
        return outputs
