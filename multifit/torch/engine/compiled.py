"""Compile programs with torch (``compile=True``), or capture CUDA graphs (``compile="cudagraphs"``)."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ...engines import CUDA_GRAPHS
from ...errors import raise_problems
from .refusals import refuse


def compiled(module: torch.nn.Module, how: bool | str) -> Callable[..., Any]:
    """Return a module as a function that :func:`torch.compile` compiles when it is first called.

    A call raises SpecError if there is no compiler, or if it cannot compile the module. With CUDA graphs, a
    graph is captured for each form of batches; torch logs what it cannot capture, and runs it without a
    graph.
    """
    captured = how == CUDA_GRAPHS
    options: dict[str, Any] = {"backend": "cudagraphs", "dynamic": False} if captured else {}
    function = torch.compile(module, **options)

    def call(*tensors: torch.Tensor) -> Any:
        try:
            return function(*tensors)
        except torch._dynamo.exc.TorchDynamoException as error:  # also raised if there is no compiler
            why = str(error).strip().partition("\n")[0]  # the lines after that say how to log more
            raise_problems([refuse(f"compile={how!r}: torch cannot compile: {why}", "leave it out")])

    return copying(call) if captured else call


def copying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns copies: the next replay of a CUDA graph overwrites its results."""

    def call(*tensors: torch.Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return tuple(tensor.clone() for tensor in function(*tensors))

    return call
