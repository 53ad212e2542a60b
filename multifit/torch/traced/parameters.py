"""The parameters of a net as tensors, while torch trains or evaluates it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...gluon.optim.gradients import pending_gradients, set_pending
from ...gluon.optim.numbers import UpdateNumbers, set_values, values_of
from .tensors import copy_into, on_device, on_host, restored


class Parameters:
    """The values of a net's parameters on a device of torch, by structural name.

    Between runs, the net itself holds the values. A run takes them, and gives them back whenever other code
    may read them. `stale` says that other code may have set values in the net since: :meth:`take_if_stale`
    then takes them again before a batch.

    `tensors` are the values; those that receive gradients are a `torch.nn.Parameter`.
    """

    def __init__(self, parameters: Mapping[str, Any], device: torch.device) -> None:
        self._parameters, self.device = parameters, device
        self.tensors: dict[str, torch.Tensor] = {}
        self.stale = True

    def variables(self) -> dict[str, str]:
        """Return the structural name of each variable of a symbol that is a parameter."""
        return {parameter.name: name for name, parameter in self._parameters.items()}

    @property
    def trained(self) -> set[str]:
        """The names of the parameters that receive gradients."""
        return {name for name, tensor in self.tensors.items() if isinstance(tensor, torch.nn.Parameter)}

    def numbers(self, trainer: Any, names: Sequence[str]) -> UpdateNumbers:
        """Return the numbers with which a trainer updates some of the parameters."""
        return UpdateNumbers(trainer, [self._parameters[name] for name in names])

    def take(self) -> None:
        """Copy the values from the net."""
        self.stale = False
        values = values_of(self._parameters)
        for name, value in values.items():
            new, tensor = torch.from_numpy(value), self.tensors.get(name)
            if tensor is None or tensor.shape != new.shape or tensor.dtype != new.dtype:
                self.tensors[name] = self._empty(name, new)
        copy_into([self.tensors[name] for name in values], list(values.values()))

    def take_if_stale(self) -> None:
        """Copy the values from the net if other code may have set some."""
        if self.stale:
            self.take()

    def follow(self) -> None:
        """Let those tensors receive gradients whose parameters do, as handlers may have changed that.

        A new tensor shares the memory of the old one.
        """
        for name, tensor in self.tensors.items():
            learns = self._parameters[name].grad_req != "null"
            if learns != isinstance(tensor, torch.nn.Parameter):
                values = tensor.detach()
                self.tensors[name] = torch.nn.Parameter(values) if learns else values

    @contextmanager
    def kept_statistics(self) -> Iterator[None]:
        """Restore running statistics after the block, without waiting for them."""
        with restored([self.tensors[name] for name in self.tensors.keys() - self.trained]):
            yield

    def give_back(self) -> None:
        """Copy the values to the net; this waits for the device."""
        self._give_back(self.tensors)

    def give_back_losses(self) -> None:
        """Copy the values of the losses' own parameters to the losses, for handlers that call these."""
        self._give_back({name: each for name, each in self.tensors.items() if name.startswith("losses.")})

    def adds(self, name: str) -> bool:
        """Whether a parameter's gradients are added up over batches."""
        return bool(self._parameters[name].grad_req == "add")

    def gradients(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the net's own gradients of some parameters."""
        return {name: self._parameters[name].list_grad()[0] for name in names}

    def take_gradients(self) -> dict[str, torch.Tensor]:
        """Return copies of the net's gradients that no trainer has used."""
        gradients = pending_gradients(self._parameters)
        return dict(zip(gradients, on_device([*gradients.values()], self.device)))

    def give_back_gradients(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy gradients to the net, and mark all its other gradients as used; waits for the device."""
        set_pending(self._parameters, dict(zip(tensors, on_host([*tensors.values()]))))

    def _give_back(self, tensors: Mapping[str, torch.Tensor]) -> None:
        set_values(self._parameters, dict(zip(tensors, on_host([*tensors.values()]))))

    def _empty(self, name: str, like: torch.Tensor) -> torch.Tensor:
        tensor = torch.empty_like(like, device=self.device)
        return tensor if self._parameters[name].grad_req == "null" else torch.nn.Parameter(tensor)
