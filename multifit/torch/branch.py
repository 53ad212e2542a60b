"""Where the losses of tasks branch in autograd's graph, and the tasks' gradients there.

Autograd's graph of a batch is all that is needed: the net runs as it is, and nothing is traced. So the tasks
may branch anywhere, in any module, and elsewhere in the next batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..protocols import Numbers

SHARED = -1  # the owner of a node on which several tasks depend


class Feature:
    """The gradients of some tasks, by task, with respect to a tensor where they branch.

    `rows` are the gradients, of shape (tasks, size), in float32 or float64.
    """

    def __init__(self, edge: GradientEdge, gradients: Mapping[int, Tensor]) -> None:
        self.edge, self.tasks, self._like = edge, [*gradients], next(iter(gradients.values()))
        rows = torch.stack([each.flatten() for each in gradients.values()])
        self.rows = rows if rows.dtype == torch.float64 else rows.float()

    def combined(self, weights: Numbers) -> Tensor:
        """Return the sum of the gradients; `weights` are those of all tasks."""
        return combined(self.rows, weights[self.tasks]).view(self._like.shape).to(self._like.dtype)


def combined(rows: Tensor, weights: Numbers) -> Tensor:
    """Return the weighted sum of rows."""
    return torch.from_numpy(weights).to(rows.device, rows.dtype, non_blocking=True) @ rows


class Branch:
    """The graphs of the losses of several tasks; a task's own part is that on which no other task depends.

    `losses` are those of each task, none for a task that takes no part, and `trained` are the parameters that
    are asked for. An edge is a tensor on which several tasks depend, and which the own part of one reads.

    Attributes
    ----------
    shared : list of Parameter
        The trained parameters on which several tasks depend.
    own : list of list of Parameter
        For each task, those on which it alone depends.
    edges : list of GradientEdge
        Where the tasks branch. An edge may be a parameter, if an own part reads it, or lie behind another.
    taken : list of list of int
        For each task, the edges that its own part reads.
    """

    def __init__(self, losses: Sequence[Sequence[Tensor]], trained: Collection[Tensor]) -> None:
        self.losses = losses
        roots = [[get_gradient_edge(each) for each in of_task] for of_task in losses]
        owners = _owners([[edge.node for edge in of_task] for of_task in roots])
        self.shared: list[Tensor] = []
        self.own: list[list[Tensor]] = [[] for _ in losses]
        taken: list[dict[Any, None]] = [{} for _ in losses]
        for node, owner in owners.items():
            following = node.next_functions
            if owner != SHARED:
                taken[owner].update((edge, None) for edge in following if owners.get(edge[0]) == SHARED)
            if not following and (leaf := getattr(node, "variable", None)) is not None and leaf in trained:
                (self.shared if owner == SHARED else self.own[owner]).append(leaf)
        for task, of_task in enumerate(roots):  # a loss may itself be what another task depends on
            taken[task].update(((e.node, e.output_nr), None) for e in of_task if owners[e.node] == SHARED)
        order = {edge: number for number, edge in enumerate(dict.fromkeys(e for each in taken for e in each))}
        self.edges = [GradientEdge(*edge) for edge in order]
        self.taken = [[order[edge] for edge in each] for each in taken]
        self._own_gradients: list[tuple[Tensor, Tensor]] = []

    def features(self, scale: Tensor | None = None) -> list[Feature]:
        """Run backward through the tasks' own parts, once; `scale` multiplies all gradients.

        :meth:`pass_back` then goes on from the features.
        """
        gradients: list[dict[int, Tensor]] = [{} for _ in self.edges]
        with self._stopped() as retain:
            for task, numbers in enumerate(self.taken):
                edges = [self.edges[number] for number in numbers]
                found = self._gradients(task, [*edges, *self.own[task]], scale, retain)
                for number, gradient in zip(numbers, found):
                    if gradient is not None:
                        gradients[number][task] = gradient
                self._keep(self.own[task], found[len(numbers) :])
        return [Feature(edge, each) for edge, each in zip(self.edges, gradients) if each]

    def pass_back(self, features: Sequence[Feature], weights: Numbers) -> None:
        """Add the gradients to those of the parameters: of the shared ones, the sum weighted by task.

        A task's own parameters get the gradient of its loss. There is one backward pass.
        """
        self._add([each.edge for each in features], [each.combined(weights) for each in features])

    def parameter_rows(self, shared: Sequence[Tensor], rows: Tensor, scale: Tensor | None = None) -> None:
        """Set `rows`, of shape (tasks, size), to the tasks' gradients of parameters, one after the other.

        There is a backward pass for each task. A task's own parameters get the gradient of its loss.
        """
        known, present = set(shared), [task for task, losses in enumerate(self.losses) if losses]
        rows.zero_()
        sizes = [each.numel() for each in shared]
        for task in present:
            own = [each for each in self.own[task] if each not in known]
            found = self._gradients(task, [*shared, *own], scale, retain=task != present[-1])
            self._keep(own, found[len(shared) :])
            parts = rows[task].split(sizes)
            reached = [(part, each.flatten()) for part, each in zip(parts, found) if each is not None]
            torch._foreach_copy_(*map(list, zip(*reached)))
        self._add([], [])

    def _gradients(
        self, task: int, inputs: Sequence[Any], scale: Tensor | None, retain: bool
    ) -> Sequence[Tensor | None]:
        losses = self.losses[task]
        heads = None if scale is None else [scale.to(each.dtype) for each in losses]
        options: Any = {"retain_graph": retain, "allow_unused": True}
        return torch.autograd.grad(losses, inputs, heads, **options) if inputs else []

    def _keep(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        pairs = zip(parameters, gradients)
        self._own_gradients += [(each, gradient) for each, gradient in pairs if gradient is not None]

    def _add(self, edges: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
        """Pass gradients of edges back, and add those of the tasks' own parameters to `grad`."""
        own, self._own_gradients = self._own_gradients, []
        tensors: Any = [*edges, *(parameter for parameter, _ in own)]
        if tensors:  # which autograd adds as it adds its own: it copies those that share memory
            torch.autograd.backward(tensors, [*gradients, *(gradient for _, gradient in own)])

    @contextmanager
    def _stopped(self) -> Iterator[bool]:
        """Let no gradient pass an edge in the block; yields whether the graph must outlive a pass.

        If an own part reads two edges, one may lie behind the other: then autograd runs the shared nodes
        between them. They get no gradient, so that they pass nothing on, and cost hardly any time.
        """
        nodes = {edge.node for edge in self.edges if any(len(each) > 1 for each in self.taken)}
        hooks = [node.register_prehook(lambda given: (None,) * len(given)) for node in nodes]
        try:
            yield bool(hooks)
        finally:
            for hook in hooks:
                hook.remove()


def _owners(roots: Sequence[Sequence[Any]]) -> dict[Any, int]:
    """Return the task of each node of the graphs, or `SHARED`."""
    owners: dict[Any, int] = {}
    for task, stack in enumerate(map(list, roots)):
        while stack:
            node = stack.pop()
            before = owners.get(node)
            if before in (task, SHARED):  # so is all that is behind a shared node
                continue
            owners[node] = task if before is None else SHARED
            stack.extend(each for each, _ in node.next_functions if each is not None)
    return owners
