"""A traced graph that runs in two parts, to measure each task's gradients where the tasks branch."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any, Callable, Collection, Hashable, Mapping, Sequence

from ...errors import SpecError, counted, memory
from ...protocols import Array
from ..compat import mx
from ..data.arrays import size_in_bytes
from ..optim.parameters import listing
from .bound_executor import BatchArrays, suits
from .cached_graph import CachedGraph, as_list, has_control_flow
from .cut_layout import CutLayout, cut_layout
from .executed_split import ExecutedSplit
from .graph_cut import Cut, cut_graph
from .shared_features import SharedFeatures, TaskRows

NOTHING_SHARED = (
    "balance: the tasks share no parameter that is trained, so that their gradients cannot be compared; use "
    "a method of losses, such as DWA or Uncertainty, or leave balance= out"
)


REPEATED = (
    'balance: with on="parameters" or a pattern, the shared body runs backward once for each task, and '
)
DROPOUT = (
    "in MXNet, its Dropout is the identity in every backward pass but the first; use "
    'on="features", or in place of nn.Dropout(p) let the net use '
    "x * F.BlockGrad(F.random.uniform_like(x) < 1 - p) / (1 - p) when training"
)
LOOPS = 'MXNet runs F.contrib.foreach backward only once; use on="features", or write the loop in Python'
SPARSE = "sparse gradients are not compared; build the layer with sparse_grad=False"


class SplitGraph(CachedGraph):
    """Runs a graph as two: a body, then the tasks' own parts on copies of the body's outputs.

    Once the graph is traced, `tasks` returns the task of each of its outputs, None for outputs without one,
    and `objectives` the numbers of the outputs that are differentiated. `updated` returns MXNet's names of
    the parameters that trainers update. There is one backward pass through each part, but if the body
    `repeats`, one for each task through the body. Raises SpecError if the tasks share no parameter that
    trainers update, or if the body repeats, but more than one backward pass through it is impossible or
    wrong.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Callable[[], Any],
        signature: Hashable,
        tasks: Callable[[], Sequence[int | None]],
        objectives: Callable[[], Sequence[int]],
        updated: Callable[[], Collection[str]],
        repeats: bool = False,
        exact_dropout: bool = False,
    ) -> None:
        super().__init__(function, parameters, signature)
        self._repeats, self._exact_dropout = repeats, exact_dropout
        self._tasks, self._objectives, self._updated = tasks, objectives, updated
        self._body_parameters: list[Any] = []
        self._cut: Cut | None = None
        self._operators: dict[bool, tuple[Any, Any]] = {}
        self._rows: dict[Any, list[TaskRows]] = {}  # by device
        self._layout: CutLayout | None = None
        self._recorded: SharedFeatures | None = None

    @property
    def features(self) -> SharedFeatures | None:
        """The features where the tasks branch, in the last run."""
        return self._recorded if self._executed.running is None else self._executed.running.features

    def describe(self, names: Mapping[str, str]) -> str:
        """Return what the tasks share, for the plan; `names` are structural names, by MXNet's names."""
        assert self._cut is not None and self.features is not None
        used = [{task for task in taken if task is not None} for taken in self._cut.copies]
        counts = counted(len(self._cut.shared), "parameter"), counted(sum(map(bool, used)), "array")
        shared = [parameter for parameter in self._body_parameters if parameter.name in self._cut.shared]
        size = sum(map(size_in_bytes, (parameter.data() for parameter in shared)))
        tasks = sorted(set().union(*used))
        gradients = (
            sum(size_in_bytes(each.values) for each in self.features.rows) + self._repeats * len(tasks) * size
        )
        texts = [
            "tasks share {} and branch at {}".format(*counts),
            f"shared: {listing([names.get(p.name, p.name) for p in shared])} ({memory(size)})",
            f"the tasks' gradients take {memory(gradients)}",
        ]
        apart = [pair for pair in combinations(tasks, 2) if not any(set(pair) <= taken for taken in used)]
        if apart:
            many = (
                "pair of tasks has none of these in common and counts",
                "pairs of tasks have none of these in common and count",
            )
            texts.insert(1, f"{counted(len(apart), *many)} as orthogonal")
        return "; ".join(texts)

    def _call(self, arguments: list[Any], planned: Hashable, context: Any) -> list[Any]:
        layout, is_planned = self._cut_layout(), planned is not None
        body, rest = self._operators.get(is_planned) or self._new_operators(is_planned)
        arrays = as_list(body(*[arguments[place] for place in layout.body]))
        copies = [arrays[number].detach() for number in layout.copied]
        # detached: after the rest's backward pass, MXNet frees what it recorded of the inputs of the rest,
        # and the body's backward pass still needs it
        again = [arguments[place].detach() for place in layout.in_both]
        features = [arrays[number] for number in layout.features]
        rows, taken = self._rows_for(features, context), [copies[place] for place in layout.taken]
        mx.autograd.mark_variables(taken, [view for each in rows for view in each.views])
        train_mode = self._repeats and mx.autograd.is_training()
        self._recorded = SharedFeatures(rows, features, self._body_parameters, train_mode)
        arguments += copies + again
        return as_list(rest(*[arguments[place] for place in layout.rest]))

    def _rows_for(self, features: Sequence[Array], context: Any) -> list[TaskRows]:
        """Return the arrays for the tasks' gradients: the same as in the last run if the shapes are."""
        rows = self._rows.get(context, [])
        if [each.shape for each in rows] != [array.shape for array in features]:
            assert self._layout is not None
            rows = self._rows[context] = [TaskRows(*pair) for pair in zip(features, self._layout.tasks)]
        return rows

    def _cut_layout(self) -> CutLayout:
        """Return which arrays go where between the two parts; the first call cuts the graph."""
        if self._layout is None:
            self._cut, self._layout = self._new_cut()
        return self._layout

    def _new_cut(self) -> tuple[Cut, CutLayout]:
        parameters, updated = self._parameters().values(), self._updated()
        trained = {p.name for p in parameters if p.grad_req != "null" and p.name in updated}
        # tojson() leaves out casts to a lower precision, in which MXNet cannot combine gradients
        cut = cut_graph(self._cached_graph[1].tojson(), self._tasks(), trained)
        if cut is None:
            raise SpecError(NOTHING_SHARED)
        names = set(cut.body.list_inputs())
        self._body_parameters = [p for p in parameters if p.name in names & trained]
        if self._repeats:
            self._check_repeated(cut)
        return cut, cut_layout(cut, self._cached_graph[1].list_inputs())

    def _check_repeated(self, cut: Cut) -> None:
        if not self._exact_dropout and _drops(cut.body):
            raise SpecError(REPEATED + DROPOUT)
        if has_control_flow(cut.body):
            raise SpecError(REPEATED + LOOPS)
        if any(parameter._grad_stype != "default" for parameter in self._body_parameters):
            raise SpecError(REPEATED + SPARSE)

    def _new_operators(self, planned: bool) -> tuple[Any, Any]:
        assert self._cut is not None
        body, rest = (self._new_operator(symbol, planned) for symbol in (self._cut.body, self._cut.rest))
        self._operators[planned] = body, rest
        return body, rest

    def _new_operator(self, symbol: Any, planned: bool) -> Any:
        if not planned:
            return mx.nd.CachedOp(symbol, ())
        names = self._cached_graph[1].list_inputs()
        parameters = {name for name, (is_data, _) in zip(names, self._cached_op_args) if not is_data}
        is_data = [name not in parameters for name in symbol.list_inputs()]
        return self._planned_operator(symbol, is_data)

    def _new_step(self, arguments: Sequence[Array], context: Any) -> ExecutedSplit | None:
        layout = self._cut_layout()
        assert self._arguments is not None and self._cut is not None
        places = self._arguments.places
        if self._repeats or not self._arguments.dense:
            return None
        if not suits(self._cached_graph[1], arguments, places.values()):
            return None
        return ExecutedSplit(
            self._cut,
            layout,
            BatchArrays(arguments, places),
            self._arguments.gradients(arguments),
            self._body_parameters,
            self._objectives(),
            context,
        )

    def _release_plans(self) -> None:
        super()._release_plans()
        self._operators.pop(True, None)


def _drops(symbol: Any) -> bool:
    """Whether a graph contains Dropout, which MXNet computes wrongly in a second backward pass."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return any(node["op"] == "Dropout" and float(node.get("attrs", {}).get("p", 0.5)) > 0 for node in nodes)
