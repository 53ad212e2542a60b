"""Where the losses of tasks branch in autograd's graph, and the tasks' gradients there.

Autograd's graph of a batch is all that is needed: the net runs as it is, and nothing is traced. So the tasks
may branch anywhere, in any module, and elsewhere in the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..utils.errors import SpecError
from ..utils.protocols import Numbers

SPARSE = (
    'balance: with on="parameters" or a pattern, gradients of parameters are compared, but sparse ones are '
    'not; use on="features", or build the layer with sparse=False'
)
SHARED = -1  # the owner of a node on which several tasks depend


class Feature:
    """The gradients of some tasks, by task, with respect to a tensor where they branch.

    `rows` are the gradients, of shape (tasks, size), in float32 or float64.
    """

    def __init__(self, edge: GradientEdge, gradients: Mapping[int, Tensor]) -> None:
        self.edge, self.tasks = edge, sorted(gradients)
        self._like = gradients[self.tasks[0]]
        rows = torch.stack([gradients[task] for task in self.tasks]).reshape(len(self.tasks), -1)
        self.rows = rows if rows.dtype == torch.float64 else rows.float()

    def combined(self, weights: Numbers) -> Tensor:
        """Return the sum of the gradients; `weights` are those of all tasks."""
        return combined(self.rows, weights[self.tasks]).view(self._like.shape).to(self._like.dtype)


def combined(rows: Tensor, weights: Numbers) -> Tensor:
    """Return the weighted sum of rows."""
    return torch.tensor(weights.tolist(), dtype=rows.dtype, device=rows.device) @ rows


class Branch:
    """The graphs of the losses of several tasks; a task's own part is that on which no other task depends.

    `losses` are those of each task, none for a task that takes no part, and `trained` are the parameters that
    are asked for. An edge is a tensor on which several tasks depend, and which the own part of one reads.

    Attributes
    ----------
    shared : list of Parameter
        The trained parameters on which several tasks depend.
    edges : list of GradientEdge
        Where the tasks branch. An edge may be a parameter, if an own part reads it, or lie behind another.
    nodes : collection of Node
        All nodes of the graphs.
    """

    def __init__(self, losses: Sequence[Sequence[Tensor]], trained: Collection[Tensor]) -> None:
        self._losses = losses
        roots = [[get_gradient_edge(each) for each in of_task] for of_task in losses]
        self.shared: list[Tensor] = []
        self._own: list[Tensor] = []
        self._readers: list[tuple[Any, int, list[tuple[int, int]]]] = []  # nodes, and which edges they read
        numbers: dict[tuple[Any, int], int] = {}
        owners, following = _owners([[edge.node for edge in of_task] for of_task in roots])
        for node, nodes in following.items():
            owner = owners[node]
            if not nodes and (leaf := getattr(node, "variable", None)) is not None and leaf in trained:
                (self.shared if owner == SHARED else self._own).append(leaf)
            if owner != SHARED:
                read = [
                    (place, numbers.setdefault(edge, len(numbers)))
                    for place, edge in enumerate(nodes)
                    if owners.get(edge[0]) == SHARED
                ]
                if read:
                    self._readers.append((node, owner, read))
        self._roots: list[Tensor] = []
        self._read: list[tuple[int, int, Tensor]] = []  # losses on which other tasks depend
        for task, (of_task, edges) in enumerate(zip(losses, roots)):
            for loss, edge in zip(of_task, edges):
                if owners[edge.node] == SHARED:
                    number = numbers.setdefault((edge.node, edge.output_nr), len(numbers))
                    self._read.append((number, task, loss))
                else:
                    self._roots.append(loss)
        self.edges, self.nodes = [GradientEdge(*edge) for edge in numbers], following.keys()

    def features(self, scale: float = 1.0) -> list[Feature]:
        """Run backward through the tasks' own parts; `scale` multiplies all gradients.

        Parameters on which a single task depends get the gradient of its loss. :meth:`pass_back` then goes on
        from the features.
        """
        gradients: list[dict[int, Tensor]] = [{} for _ in self.edges]

        def add(number: int, task: int, gradient: Tensor | None) -> None:
            if gradient is not None:
                before = gradients[number].get(task)
                gradients[number][task] = gradient if before is None else before + gradient

        def hook(task: int, read: Sequence[tuple[int, int]]) -> Callable[..., None]:
            def take(found: Sequence[Tensor | None], _: Any) -> None:
                for place, number in read:
                    add(number, task, found[place])

            return take

        for number, task, loss in self._read:
            add(number, task, torch.full_like(loss, scale))
        # autograd adds up what arrives at an edge; there it ends, as nodes pass nothing on without gradients
        hooks = [node.register_hook(hook(task, read)) for node, task, read in self._readers]
        hooks += [edge.node.register_prehook(lambda given: (None,) * len(given)) for edge in self.edges]
        try:
            inputs = [*self.edges, *self._own]
            if self._roots and inputs:
                backward(self._roots, scale, retain_graph=True, inputs=inputs)
        finally:
            for each in hooks:
                each.remove()
        return [Feature(edge, each) for edge, each in zip(self.edges, gradients) if each]

    def pass_back(self, features: Sequence[Feature], weights: Numbers) -> None:
        """Add the sum of the tasks' gradients, weighted by task, to those of the shared parameters."""
        if features:
            heads = [each.combined(weights) for each in features]
            torch.autograd.backward([each.edge for each in features], heads)

    def parameter_rows(self, shared: Sequence[Tensor], rows: Tensor, scale: float = 1.0) -> None:
        """Set `rows`, of shape (tasks, size), to the tasks' gradients of parameters, one after the other.

        There is a backward pass for each task. All other parameters get their gradients.
        """
        rows.zero_()
        before = [each.grad for each in shared]
        sizes = [each.numel() for each in shared]
        present = [task for task, losses in enumerate(self._losses) if losses]
        try:
            for task in present:
                for each in shared:
                    each.grad = None
                backward(self._losses[task], scale, retain_graph=task != present[-1])
                pairs = zip(rows[task].split(sizes), [each.grad for each in shared])
                found = [(row, gradient) for row, gradient in pairs if gradient is not None]
                if any(gradient.layout != torch.strided for _, gradient in found):
                    raise SpecError(SPARSE)
                if found:
                    torch._foreach_copy_([row for row, _ in found], [each.flatten() for _, each in found])
        finally:
            for each, gradient in zip(shared, before):
                each.grad = gradient


def backward(losses: Sequence[Tensor], scale: float = 1.0, **options: Any) -> None:
    """Add the gradients of losses, multiplied by `scale`; the options are autograd's."""
    heads = None if scale == 1 else [torch.full_like(each, scale) for each in losses]
    torch.autograd.backward(losses, heads, **options)


def _owners(roots: Sequence[Sequence[Any]]) -> tuple[dict[Any, int], dict[Any, Any]]:
    """Return the task of each node of the graphs, or `SHARED`, and the edges that follow on it."""
    owners: dict[Any, int] = {}
    following: dict[Any, Any] = {}
    for task, stack in enumerate(map(list, roots)):
        while stack:
            node = stack.pop()
            before = owners.get(node)
            if before in (task, SHARED):  # so is all that is behind a shared node
                continue
            if before is None:
                owners[node], following[node] = task, node.next_functions
            else:
                owners[node] = SHARED
            stack += [each for each, _ in following[node] if each is not None]
    return owners, following
