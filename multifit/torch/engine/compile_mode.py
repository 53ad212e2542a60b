"""How programs run: what the argument `compile` means."""

from __future__ import annotations

import logging
from typing import Callable, NamedTuple

import torch

from ...engines import AUTO, CUDA_GRAPHS
from ...log_once import LogOnce

CAPTURES = {"cuda"}  # kinds of devices


class CompileMode(NamedTuple):
    """How a program runs.

    If it `compiles`, torch compiles it. If it `captures`, it runs as CUDA graphs; if the user `requested`
    these, it is captured however little memory is free. `log` takes the reason why something is not captured.
    """

    compiles: bool = False
    captures: bool = False
    requested: bool = False
    log: Callable[[str], object] = logging.getLogger("multifit").debug

    @property
    def uncaptured(self) -> CompileMode:
        """The same without CUDA graphs."""
        return CompileMode(self.compiles)

    def on(self, device: torch.device, log_once: LogOnce) -> CompileMode:
        """How it runs on a device; the user is warned if what was requested is not captured."""
        if device.type not in CAPTURES:
            return self.uncaptured
        return self._replace(log=log_once.warning) if self.requested else self


COMPILE_MODES: dict[bool | str, CompileMode] = {
    False: CompileMode(),
    AUTO: CompileMode(captures=True),
    CUDA_GRAPHS: CompileMode(captures=True, requested=True),
    True: CompileMode(compiles=True, captures=True),
}
