"""What programs compute: values by name, and the backward passes from them."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Protocol, Sequence

import torch

from .backward_pass import AutogradPass, BackwardPass
from .tensors import Tensors


class Computed(NamedTuple):
    """Values by name, and the backward passes from them; without gradients, there are none.

    The first pass is that of the objectives. Where tasks branch, `copies` are the tasks' copies of each
    feature; the first pass returns their gradients after those of the parameters, and a second one passes
    gradients of the features back through the body. `captured` says whether the next run overwrites values
    and gradients.
    """

    values: Tensors
    backward_passes: Sequence[BackwardPass] = ()
    copies: Sequence[Mapping[int, torch.Tensor]] = ()
    captured: bool = False


class Computation(Protocol):
    """Computes values from the tensors of its inputs."""

    @property
    def inputs(self) -> Sequence[str]:
        """The names of the tensors that it takes."""

    def run(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Return the values for tensors by name, and the backward passes."""

    def on_aliases(self) -> Computation:
        """Return the computation on other parameters of the same memory, to which no autograd graph refers.

        One of earlier batches would bring in its own stream, on which nothing may run during a capture.
        """

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The tensors besides parameters that it holds, and may change."""


class WholeComputation(NamedTuple):
    """A function with what its backward pass begins and ends at.

    `function` takes the `held` tensors, which keep their memory, then those of the `inputs`, and returns the
    `outputs`. `trained` are those of the held tensors that receive gradients, and `objectives` those of the
    outputs that are differentiated.
    """

    function: Callable[..., Sequence[torch.Tensor]]
    held: Sequence[torch.Tensor]
    trained: Sequence[torch.Tensor]
    inputs: Sequence[str]
    outputs: Sequence[str]
    objectives: Sequence[str]

    def run(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Return the outputs, and the backward pass of the objectives."""
        values = self.values(given)
        return Computed(values, [self.backward_pass(values)] if torch.is_grad_enabled() else [])

    def values(self, given: Mapping[str, torch.Tensor]) -> Tensors:
        """Return the outputs."""
        return dict(zip(self.outputs, self.function(*self.held, *[given[name] for name in self.inputs])))

    def backward_pass(self, values: Tensors, leaves: Sequence[torch.Tensor] = ()) -> AutogradPass:
        """Return the backward pass of the objectives to what is trained, and to other leaves."""
        return AutogradPass([values[name] for name in self.objectives], [*self.trained, *leaves])

    def on_aliases(self) -> WholeComputation:
        """Return the computation on other parameters of the same memory."""
        parameters = [each for each in self.held if isinstance(each, torch.nn.Parameter)]
        aliases = {id(each): torch.nn.Parameter(each.detach()) for each in parameters}
        held, trained = ([aliases.get(id(each), each) for each in of] for of in (self.held, self.trained))
        return self._replace(held=held, trained=trained)

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The held tensors that are not parameters."""
        return [each for each in self.held if not isinstance(each, torch.nn.Parameter)]
