"""A computation in two parts: a body, and the tasks' own parts on copies of its features."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import torch

from .backward_pass import AutogradPass
from .computation import Computed, WholeComputation


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
