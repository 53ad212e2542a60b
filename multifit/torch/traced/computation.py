"""How a program computes: whole or by branches, and compiled or captured or neither."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from ...engines import AUTO, CUDA_GRAPHS
from ...log_once import LogOnce
from .backward_pass import AutogradPass, BackwardPass
from .tensors import Tensors

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


class BranchedComputation(NamedTuple):
    """A body, and the rest; it runs in training only, to compare gradients.

    `copies` are, for each output of the body, the inputs of the rest that take it, by task; the key None is
    for an input that no task's gradient reaches. If the body `repeats`, it can be passed back several times.
    """

    body: WholeComputation
    rest: WholeComputation
    inputs: Sequence[str]
    copies: Sequence[Mapping[int | None, str]]
    repeats: bool

    def run(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Return the outputs of the rest, and the backward passes of both parts."""
        named, features = dict(given), []
        copies: list[dict[int, torch.Tensor]] = []
        for feature, names in zip(self.body.values(given).values(), self.copies):
            learns = feature.requires_grad
            own = {task: feature.detach().requires_grad_(learns and task is not None) for task in names}
            named.update((name, own[task]) for task, name in names.items())
            taken = {task: own[task] for task in sorted(task for task in own if task is not None)}
            if learns and taken:
                features.append(feature)
                copies.append(taken)
        values = self.rest.values(named)
        leaves = [copy for of_feature in copies for copy in of_feature.values()]
        through_body = AutogradPass(features, self.body.trained, self.repeats)
        return Computed(values, [self.rest.backward_pass(values, leaves), through_body], copies)

    def on_aliases(self) -> BranchedComputation:
        """Return the computation on other parameters of the same memory."""
        return self._replace(body=self.body.on_aliases(), rest=self.rest.on_aliases())

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The tensors held by both parts that are not parameters."""
        return [*self.body.buffers, *self.rest.buffers]
