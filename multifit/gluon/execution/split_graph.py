"""A traced graph that runs in two parts, so that each task's gradients are known where the tasks part."""

from __future__ import annotations

from itertools import combinations
from typing import Any, Callable, Hashable, Mapping, Sequence

import numpy as np

from ...errors import SpecError, counted, memory
from ...protocols import Array
from ..compat import mx
from ..optim.parameters import listing
from .cached_graph import CachedGraph
from .graph_cut import Cut, cut_graph
from .parting import Parting, TaskRows
from .second_backward import drops

NOTHING_SHARED = (
    "balance: the tasks share no parameter, so that their gradients cannot be compared; use a method of "
    "losses, such as DWA or Uncertainty, or leave balance= out"
)


REPEATED = (
    'balance: on="parameters" or a pattern passes the body that tasks share back once for each task, and '
)
DROPOUT = (
    "its Dropout is the identity in every backward pass of MXNet's but the first; use "
    'on="features", or in place of nn.Dropout(p) let the net use '
    "x * F.BlockGrad(F.random.uniform_like(x) < 1 - p) / (1 - p) when training"
)
SPARSE = "sparse gradients are not compared; build the layer with sparse_grad=False"


class SplitGraph(CachedGraph):
    """Runs a graph as two: a body, and the tasks' own parts on copies of what the body computes.

    `tasks` returns the task of each output of the graph once it is traced, None for outputs without one. Each
    operator is passed back once, unless the body `repeats`. Raises SpecError if the tasks share no parameter,
    or if a body that repeats cannot be passed back several times.

    `parting` is that of the last run.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Callable[[], Any],
        signature: Hashable,
        tasks: Callable[[], Sequence[int | None]],
        repeats: bool = False,
        exact_dropout: bool = False,
    ) -> None:
        super().__init__(function, parameters, signature)
        self._repeats, self._exact_dropout = repeats, exact_dropout
        object.__setattr__(self, "_body_parameters", [])
        object.__setattr__(self, "_tasks", tasks)
        self._cut: Cut | None = None
        self._operators: dict[bool, tuple[Any, Any]] = {}
        self._rows: dict[Any, list[TaskRows]] = {}  # by device
        self._inputs: list[list[str]] = []  # the names of the whole graph's, the body's and the rest's
        self._in_both: set[str] = set()  # of these: data that the body and the rest take
        self.parting: Parting | None = None

    def describe(self, names: Mapping[str, str]) -> str:
        """Return what the tasks share, for the plan; `names` are structural names, by MXNet's."""
        assert self._cut is not None and self.parting is not None
        used = [{task for task in taken if task is not None} for taken in self._cut.copies]
        counts = counted(len(self._cut.shared), "parameter"), counted(sum(map(bool, used)), "array")
        shared = [parameter for parameter in self._body_parameters if parameter.name in self._cut.shared]
        size = sum(map(_bytes, (parameter.data() for parameter in shared)))
        tasks = sorted(set().union(*used))
        gradients = sum(_bytes(each.values) for each in self.parting.rows) + self._repeats * len(tasks) * size
        texts = [
            "tasks share {} and part at {}".format(*counts),
            f"shared: {listing([names.get(p.name, p.name) for p in shared])} ({memory(size)})",
            f"the tasks' gradients take {memory(gradients)}",
        ]
        apart = [pair for pair in combinations(tasks, 2) if not any(set(pair) <= taken for taken in used)]
        if apart:
            many = (
                "pair of tasks takes none in common and counts",
                "pairs of tasks take none in common and count",
            )
            texts.insert(1, f"{counted(len(apart), *many)} as orthogonal")
        return "; ".join(texts)

    def _call(self, arguments: list[Any], planned: bool) -> list[Any]:
        cut = self._cut = self._cut or self._new_cut()
        body, rest = self._operators_for(cut, planned)
        named = dict(zip(self._inputs[0], arguments))
        arrays = body(*[named[name] for name in self._inputs[1]])
        arrays = arrays if isinstance(arrays, list) else [arrays]
        # MXNet frees what it recorded of the rest's inputs before it passes back through the body
        named.update({name: named[name].detach() for name in self._in_both})
        copies = []
        for array, variables in zip(arrays, cut.copies):
            taken = {task: array.detach() for task in variables}
            named.update({name: taken[task] for task, name in variables.items()})
            copies.append({task: copy for task, copy in taken.items() if task is not None})
        used = [number for number, taken in enumerate(copies) if taken]
        ends = [(arrays[number], copies[number]) for number in used]
        self.parting = Parting(self._rows_for(ends), ends, self._body_parameters)
        outputs = rest(*[named[name] for name in self._inputs[2]])
        return outputs if isinstance(outputs, list) else [outputs]

    def _rows_for(self, ends: Sequence[tuple[Array, Mapping[int, Array]]]) -> list[TaskRows]:
        """Return where the tasks' gradients go: the same arrays again if the shapes are those of before."""
        context = mx.context.current_context()
        rows = self._rows.get(context, [])
        if [each.shape for each in rows] != [array.shape for array, _ in ends]:
            rows = self._rows[context] = [TaskRows(array, sorted(copies)) for array, copies in ends]
        return rows

    def _new_cut(self) -> Cut:
        parameters = self._parameters().values()
        trained = {parameter.name for parameter in parameters if parameter.grad_req != "null"}
        cut = cut_graph(self._cached_graph[1], self._tasks(), trained)
        if cut is None:
            raise SpecError(NOTHING_SHARED)
        self._inputs = [symbol.list_inputs() for symbol in (self._cached_graph[1], cut.body, cut.rest)]
        names = set(self._inputs[1])
        self._in_both = names & set(self._inputs[2])
        self._body_parameters[:] = [p for p in parameters if p.name in names & trained]
        if self._repeats:
            self._check_repeated(cut)
        return cut

    def _check_repeated(self, cut: Cut) -> None:
        if not self._exact_dropout and drops(cut.body):
            raise SpecError(REPEATED + DROPOUT)
        if any(parameter._grad_stype != "default" for parameter in self._body_parameters):
            raise SpecError(REPEATED + SPARSE)

    def _operators_for(self, cut: Cut, planned: bool) -> tuple[Any, Any]:
        if planned not in self._operators:
            pair = [self._new_operator(symbol, planned) for symbol in (cut.body, cut.rest)]
            self._operators[planned] = pair[0], pair[1]
        return self._operators[planned]

    def _new_operator(self, symbol: Any, planned: bool) -> Any:
        if not planned:
            return mx.nd.CachedOp(symbol, ())
        names = self._cached_graph[1].list_inputs()
        parameters = {name for name, (is_data, _) in zip(names, self._cached_op_args) if not is_data}
        is_data = [name not in parameters for name in symbol.list_inputs()]
        return self._planned_operator(symbol, is_data)

    def _release_plans(self) -> None:
        self._operators.pop(True, None)


def _bytes(array: Array) -> int:
    return int(array.size * np.dtype(array.dtype).itemsize)
