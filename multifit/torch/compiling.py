"""How a net runs: operator by operator, or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..distributed.log_once import LogOnce
from ..utils.text import last_line


def compiled(net: nn.Module, compile: bool | str, log_once: LogOnce) -> Callable[..., Any]:
    """Return what calls a net: with ``compile=True``, `torch.compile`, until that fails, then the net."""
    if compile is not True:
        return net
    call: Any = torch.compile(net)

    def run(*inputs: Any) -> Any:
        nonlocal call
        if call is not net:
            try:
                return call(*inputs)
            except torch._dynamo.exc.TorchDynamoException as error:
                log_once.warning(f"compile=True: the net runs uncompiled: {last_line(error)}")
                call = net
        return net(*inputs)

    return run
