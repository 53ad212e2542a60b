"""A computation in two parts: a body, and the tasks' own parts on copies of the body's results."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import torch

from .backward_pass import AutogradPass
from .computation import Branches, Computation, Computed


class Inputs(NamedTuple):
    """The names of arguments: of the whole, and those that each part takes."""

    of_all: Sequence[str]
    of_body: Sequence[str]
    of_rest: Sequence[str]


class BranchedComputation(NamedTuple):
    """A body, and the rest.

    `copies` are, for each result of the body, the inputs of the rest that take it, by task; the key None is
    for an input that no task's gradient reaches. If the body `repeats`, it can be passed back several times.
    """

    body: Computation
    rest: Computation
    inputs: Inputs
    copies: Sequence[Mapping[int | None, str]]
    repeats: bool

    def run(self, arguments: Sequence[torch.Tensor]) -> Computed:
        """Compute."""
        given = dict(zip(self.inputs.of_all, arguments))
        tensors = self.body.run([given[name] for name in self.inputs.of_body]).results
        features: list[tuple[torch.Tensor, dict[int, torch.Tensor]]] = []
        for tensor, names in zip(tensors, self.copies):
            learns = tensor.requires_grad and torch.is_grad_enabled()
            copies = {task: tensor.detach().requires_grad_(learns and task is not None) for task in names}
            given.update((name, copies[task]) for task, name in names.items())
            taken = {task: copy for task, copy in copies.items() if task is not None}
            if learns and taken:
                features.append((tensor, dict(sorted(taken.items()))))
        computed = self.rest.run([given[name] for name in self.inputs.of_rest])
        if not torch.is_grad_enabled():
            return computed
        leaves = [copy for _, copies in features for copy in copies.values()]
        objectives = [computed.results[place] for place in self.rest.objectives]
        backward_pass = AutogradPass(objectives, [*self.rest.trained, *leaves])
        through_body = AutogradPass([tensor for tensor, _ in features], self.body.trained, self.repeats)
        return Computed(computed.results, backward_pass, Branches(features, through_body))

    def on_aliases(self) -> BranchedComputation:
        """Return the computation on other parameters of the same memory."""
        return self._replace(body=self.body.on_aliases(), rest=self.rest.on_aliases())

    @property
    def statistics(self) -> list[torch.Tensor]:
        """The tensors held by both parts that are not parameters."""
        return [*self.body.statistics, *self.rest.statistics]
