"""How a net runs: operator by operator, or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import last_line
from ..log_once import LogOnce


def compiled(net: nn.Module, compile: bool | str, log_once: LogOnce) -> Callable[..., Any]:
    """Return what calls a net: with ``compile=True``, `torch.compile`, until that fails, then the net."""
    if compile is not True:
        return net
    return _Compiled(net, log_once)


class _Compiled:
    """Calls a compiled net; when it cannot be compiled, the net itself, with a warning."""

    def __init__(self, net: nn.Module, log_once: LogOnce) -> None:
        self._net, self._log_once = net, log_once
        self._call: Any = torch.compile(net)

    def __call__(self, *inputs: Any) -> Any:
        if self._call is not self._net:
            try:
                return self._call(*inputs)
            except torch._dynamo.exc.TorchDynamoException as error:
                self._log_once.warning(f"compile=True: the net runs uncompiled: {last_line(error)}")
                self._call = self._net
        return self._net(*inputs)
