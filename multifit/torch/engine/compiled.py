"""Compile programs with torch (``compile=True``)."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ...errors import raise_problems
from .refusals import refuse


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that :func:`torch.compile` compiles when it is first called.

    Raises
    ------
    SpecError
        In a call: torch has no compiler, or cannot compile the function.
    """
    run = torch.compile(function)

    def call(*tensors: torch.Tensor) -> Any:
        try:
            return run(*tensors)
        except torch._dynamo.exc.TorchDynamoException as error:  # also raised if there is no compiler
            why = str(error).strip().partition("\n")[0]  # the lines after that say how to log more
            raise_problems([refuse(f"compile=True: torch cannot compile: {why}", "leave it out")])

    return call
