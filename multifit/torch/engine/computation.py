"""What programs compute: results, and the backward passes that belong to them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterator, Mapping, NamedTuple, Protocol, Sequence

import torch

from .backward_pass import AutogradPass, BackwardPass
from .tensors import restored


class Branches(NamedTuple):
    """The tensors where tasks branch, each with the tasks' copies of it.

    `backward_pass` passes their gradients back to the parameters of the body. That of the objectives returns
    the gradients of the copies last, tensor by tensor, in the order of the tasks.
    """

    features: Sequence[tuple[torch.Tensor, Mapping[int, torch.Tensor]]]
    backward_pass: BackwardPass


class Computed(NamedTuple):
    """The results for some arguments, and the backward pass of the objectives among them.

    Without gradients, there is none. If they are `captured`, the next run overwrites them.
    """

    results: Sequence[torch.Tensor]
    backward_pass: BackwardPass | None
    branches: Branches | None = None
    captured: bool = False


class AnyComputation(Protocol):
    """Computes results from arguments, all of them tensors."""

    def run(self, arguments: Sequence[torch.Tensor]) -> Computed:
        """Compute."""

    def on_aliases(self) -> AnyComputation:
        """Return the computation on other tensors of the same memory, to which no autograd graph refers yet.

        One of earlier batches would bring in its own stream, on which nothing may run during a capture.
        """

    @property
    def statistics(self) -> list[torch.Tensor]:
        """The tensors that it holds and may change."""


class Computation(NamedTuple):
    """A function with what its backward pass begins and ends at.

    `function` takes the `held` tensors, which keep their memory, then arguments. `trained` are those of the
    held tensors that receive gradients, and `objectives` the places of the results that are differentiated.
    """

    function: Callable[..., Sequence[torch.Tensor]]
    held: Sequence[torch.Tensor]
    trained: Sequence[torch.Tensor]
    objectives: Sequence[int]

    def run(self, arguments: Sequence[torch.Tensor]) -> Computed:
        """Compute."""
        results = self.function(*self.held, *arguments)
        if not torch.is_grad_enabled():
            return Computed(results, None)
        return Computed(results, AutogradPass([results[place] for place in self.objectives], self.trained))

    def on_aliases(self) -> Computation:
        """Return the computation on other parameters of the same memory."""
        parameters = [each for each in self.held if isinstance(each, torch.nn.Parameter)]
        aliases = {id(each): torch.nn.Parameter(each.detach()) for each in parameters}
        held, trained = ([aliases.get(id(each), each) for each in of] for of in (self.held, self.trained))
        return self._replace(held=held, trained=trained)

    @property
    def statistics(self) -> list[torch.Tensor]:
        """The held tensors that are not parameters."""
        return [each for each in self.held if not isinstance(each, torch.nn.Parameter)]


@contextmanager
def undone(computation: AnyComputation, device: torch.device) -> Iterator[None]:
    """Restore running statistics and random numbers after the block."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), restored(computation.statistics):
        yield
