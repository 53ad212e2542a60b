"""How programs run: what the argument `compile` means."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...engines import AUTO, CUDA_GRAPHS

CAPTURES = {"cuda"}  # kinds of devices


class Execution(NamedTuple):
    """How a program runs.

    If it `compiles`, torch compiles it. If it `captures`, it runs as CUDA graphs on a GPU; if it also
    `insists`, a warning says why it cannot, and it is captured even if little of the memory is free.
    """

    compiles: bool = False
    captures: bool = False
    insists: bool = False

    @property
    def of_part(self) -> Execution:
        """How a program runs whose backward pass begins at gradients that are computed elsewhere."""
        return Execution(self.compiles)

    def on(self, device: torch.device) -> Execution:
        """How it runs on a device."""
        return self if device.type in CAPTURES else Execution(self.compiles)


EXECUTIONS: dict[bool | str, Execution] = {
    False: Execution(),
    AUTO: Execution(captures=True),
    CUDA_GRAPHS: Execution(captures=True, insists=True),
    True: Execution(compiles=True, captures=True),
}
