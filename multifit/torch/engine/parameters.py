"""The parameters of a net as tensors, while torch trains or evaluates it."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch

from ...gluon.optim.parameters import set_values, trainable, values_of
from ...gluon.optim.update_numbers import UpdateNumbers


class Parameters:
    """The values of a net's parameters on a device of torch, by structural name.

    Between runs the net itself holds the values. A run takes them, and gives them back when somebody may look
    at them.

    `tensors` are the values; those that receive gradients are `torch.nn.Parameter`.
    """

    def __init__(self, parameters: Mapping[str, Any], device: torch.device) -> None:
        self._parameters, self._device = parameters, device
        self.tensors: dict[str, torch.Tensor] = {}

    def variables(self) -> dict[str, str]:
        """Return the structural name of each variable of a symbol that is a parameter."""
        return {parameter.name: name for name, parameter in self._parameters.items()}

    def numbers(self, trainer: Any, names: Sequence[str]) -> UpdateNumbers:
        """Return the numbers by which a trainer moves some of them."""
        return UpdateNumbers(trainer.trainer, [self._parameters[name] for name in names])

    def take(self) -> None:
        """Copy the values from the net."""
        with torch.no_grad():
            for name, value in values_of(self._parameters).items():
                tensor, new = self.tensors.get(name), torch.from_numpy(value)
                if tensor is None or tensor.shape != new.shape or tensor.dtype != new.dtype:
                    self.tensors[name] = self._tensor(name, new)
                else:
                    tensor.copy_(new)

    def take_new(self) -> None:
        """Copy the values of parameters that were initialised since :meth:`take`."""
        new = {name: p for name, p in self._parameters.items() if name not in self.tensors}
        for name, value in values_of(new).items():
            self.tensors[name] = self._tensor(name, torch.from_numpy(value))

    def give_back(self) -> None:
        """Copy the values to the net; this waits for the device."""
        values = {name: tensor.detach().cpu().numpy() for name, tensor in self.tensors.items()}
        set_values(self._parameters, values)

    def _tensor(self, name: str, value: torch.Tensor) -> torch.Tensor:
        value = value.to(self._device)
        return torch.nn.Parameter(value) if name in trainable(self._parameters) else value
