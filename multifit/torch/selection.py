"""The parameters and running statistics of a net by name: how to select and to freeze some of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..spec.checks.trainers import select_by_pattern, selects_nothing
from ..utils.errors import Problem
from ..utils.text import shown

Named = dict[str, nn.Parameter]
Selected = tuple[list[str], list[Problem]]
"""The names that are selected, and the problems found."""


class Selection:
    """Selects parameters and running statistics of a model, and keeps frozen BatchNorm layers as they are.

    As in Keras, a frozen BatchNorm layer normalises by its running statistics in training too, and so does
    not change them. A layer is frozen if everything that it learns is; or if its running statistics are
    selected, as it may learn nothing.

    `named` are all parameters and running statistics by name; `sparse` names the parameters with sparse
    gradients. `frozen` are the names that ``frozen=`` selects, and `still` the running statistics among them,
    and among what was frozen later.
    """

    def __init__(self, model: Any, frozen: Any) -> None:
        self.parameters: Named = dict(model.parameters)
        self.named: dict[str, Tensor] = {**self.parameters}
        self._net, self.sparse = model.net, set[str]()
        self._norms: list[tuple[nn.Module, list[str], list[nn.Parameter]]] = []
        names = {id(each): name for name, each in self.parameters.items()}
        for prefix, module in model.net.named_modules():
            learns = list(module.parameters(recurse=False))
            if isinstance(module, _NormBase) and module.running_mean is not None:
                statistics = dict(module.named_buffers(prefix))
                self.named.update(statistics)
                self._norms.append((module, list(statistics), learns))
            if getattr(module, "sparse", False):
                self.sparse.update(names[id(each)] for each in learns)
        self._in_eval: set[nn.Module] = set()  # the layers that are frozen
        self._read: list[tuple[Any, list[Any]]] = []  # iterators, such as net.parameters(), with their items
        selected, self.problems = self.select("frozen", () if frozen is None else frozen, self.named)
        self.frozen = frozenset(selected)
        self.still = set(self.frozen - self.parameters.keys())

    def select(self, where: str, params: Any, named: Mapping[str, Any]) -> Selected:
        """Return the names that a pattern, module, tensor or several of these select from `named`.

        `where` says in messages where the selection was declared.
        """
        every = {**dict(self._net.named_buffers()), **self.named}
        if isinstance(params, str):
            first = {id(each): name for name, each in every.items()}
            names = self._net.named_parameters(remove_duplicate=False)
            others = {name: first[id(each)] for name, each in names if name not in every}
            return select_by_pattern(where, params, named, every, others)
        if isinstance(params, (nn.Module, Tensor)):
            module = isinstance(params, nn.Module)
            ids = set(map(id, [*params.parameters(), *params.buffers()] if module else [params]))
            chosen = [name for name, each in named.items() if id(each) in ids]
            constant = [name for name, each in every.items() if id(each) in ids]
            what = f"the {type(params).__name__}"
            return chosen, [] if chosen else [selects_nothing(where, what, named, constant)]
        if not isinstance(params, Iterable) or isinstance(params, (bytes, Mapping)):
            way_out = "give a pattern (several are joined by |), a module or parameters"
            return [], [Problem("trainer", f"{where}: {shown(params)} selects no parameters; {way_out}")]
        items = next((items for read, items in self._read if read is params), None)
        if items is None:
            items = list(params)
            self._read.append((params, items))
        both = [self.select(where, each, named) for each in items]
        chosen_names = {name for names, _ in both for name in names}
        return [name for name in named if name in chosen_names], [each for _, more in both for each in more]

    def apply(self) -> None:
        """Put frozen layers into evaluation mode, and those that no longer are into the net's mode."""
        before, self._in_eval = self._in_eval, {norm for norm, *rest in self._norms if self._is_still(*rest)}
        for norm in before - self._in_eval:
            norm.train(self._net.training)
        for norm in self._in_eval:
            norm.eval()

    def frozen_statistics(self) -> list[str]:
        """Return the names of the running statistics of frozen layers."""
        return [name for _, *rest in self._norms if self._is_still(*rest) for name in rest[0]]

    def _is_still(self, statistics: list[str], learns: list[nn.Parameter]) -> bool:
        frozen = {id(self.parameters[name]) for name in self.frozen & self.parameters.keys()}
        fixed = all(id(each) in frozen or not each.requires_grad for each in learns)
        return bool(learns) and fixed or not self.still.isdisjoint(statistics)
