"""How programs run: what the argument `compile` means."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...engines import AUTO, CUDA_GRAPHS

CAPTURES = {"cuda"}  # kinds of devices


class CompileMode(NamedTuple):
    """How a program runs.

    If it `compiles`, torch compiles it. If it `captures`, it runs as CUDA graphs; if the user `requested`
    these, it is captured however little memory is free, and a warning says why a capture fails.
    """

    compiles: bool = False
    captures: bool = False
    requested: bool = False

    @property
    def uncaptured(self) -> CompileMode:
        """The same without CUDA graphs."""
        return CompileMode(self.compiles)

    def on(self, device: torch.device) -> CompileMode:
        """How it runs on a device."""
        return self if device.type in CAPTURES else self.uncaptured


COMPILE_MODES: dict[bool | str, CompileMode] = {
    False: CompileMode(),
    AUTO: CompileMode(captures=True),
    CUDA_GRAPHS: CompileMode(captures=True, requested=True),
    True: CompileMode(compiles=True, captures=True),
}
