"""A graph that is cut where the tasks branch, and the tasks' gradients there."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from ...balance.balancers import NOTHING_SHARED
from ...spec.checks.trainers import listing
from ...utils.errors import SpecError
from ...utils.protocols import Array, Numbers
from ...utils.text import counted, memory
from ..compat import mx
from ..data.arrays import InPlaceCall, new_array, size_in_bytes
from ..graph.cut import Cut, CutLayout, cut_graph, cut_layout, has_operator, repeatable
from .cached_graph import CachedGraph, as_list, has_control_flow
from .executor import BatchArrays, BoundExecutor, Gradients, suits

PLANNED = (("static_alloc", True), ("static_shape", True))


class TaskRows:
    """The gradients of some tasks with respect to an array, as rows of one array; each batch rewrites them.

    `tasks` are the tasks, in the order of the rows, and `shape` is that of a gradient. `values` is the array
    of rows, and `views` are the rows in the shape of a gradient.
    """

    def __init__(self, array: Array, tasks: Sequence[int]) -> None:
        def zeros(rows: int, columns: int) -> Array:
            return mx.nd.zeros((rows, columns), ctx=array.context, dtype=array.dtype)

        self.tasks, self.shape, count = list(tasks), array.shape, len(tasks)
        self.values = zeros(count, array.size)
        self.views = [self.values[number].reshape(self.shape) for number in range(count)]
        combined = zeros(1, array.size)
        self._head, self._last = combined.reshape(self.shape), [0.0] * count  # the last weights
        self._combine = InPlaceCall("dot", [zeros(1, count), self.values], [combined])
        self.is_float = np.dtype(array.dtype).kind == "f"

    def combined(self, weights: Numbers) -> Array:
        """Return the weighted sum of the gradients; `weights` are those of all tasks."""
        task_weights = weights[self.tasks]
        values = task_weights.tolist()
        if values != self._last:
            self._last = values
            self._combine.take(new_array(task_weights[np.newaxis], self.values.context, self.values.dtype))
        self._combine()
        return self._head


class SharedFeatures:
    """The arrays where the tasks branch, for one device and batch; `rows` are the tasks' gradients for each.

    After a backward pass of the losses, the rows hold each task's gradient. `parameters` are those of the
    body. ``pass_back(arrays, heads)`` computes their gradients; by default, autograd does.
    """

    def __init__(
        self,
        rows: Sequence[TaskRows],
        arrays: Sequence[Array],
        parameters: Sequence[Any],
        train_mode: bool = False,
        pass_back: Callable[[Sequence[Array], Sequence[Array]], None] = mx.autograd.backward,
    ) -> None:
        self.rows, self.arrays, self.parameters = rows, arrays, parameters
        self._train_mode = train_mode  # of the backward pass, on which the gradients of some layers depend
        self._pass_back = pass_back

    def measure(self, losses: Sequence[Array]) -> tuple[list[Any], list[float]]:
        """Return the tasks and the Gramian of each array's gradients, and the losses, all read in one go."""
        measure = measuring(len(losses), tuple([each.is_float for each in self.rows]))
        values = measure(*[each.values for each in self.rows], *losses).asnumpy()
        ends = np.cumsum([len(each.tasks) ** 2 for each in self.rows])
        *gramians, read = np.split(values, ends)
        pairs = [(each.tasks, g.reshape(len(each.tasks), -1)) for each, g in zip(self.rows, gramians)]
        return pairs, read.tolist()

    def backward(self, weights: Numbers) -> None:
        """Pass the weighted sum of the tasks' gradients back through the body."""
        self._pass_back(self.arrays, [each.combined(weights) for each in self.rows])

    def backward_of(self, task: int, retains: bool) -> None:
        """Pass the gradients of one task back through the body; autograd `retains` it for another pass."""
        heads = [each.views[each.tasks.index(task)] if task in each.tasks else None for each in self.rows]
        pairs = [pair for pair in zip(self.arrays, heads) if pair[1] is not None]
        mx.autograd.backward(*map(list, zip(*pairs)), retains, self._train_mode)


@cache
def measuring(losses: int, are_floats: tuple[bool, ...]) -> Any:
    """Return an operator that computes Gramians of rows, and appends losses."""
    rows = [mx.sym.var(f"rows{number}") for number in range(len(are_floats))]
    exact = [each if is_float else mx.sym.cast(each, "float32") for each, is_float in zip(rows, are_floats)]
    gramians = [mx.sym.reshape(mx.sym.dot(each, each, transpose_b=True), shape=(-1,)) for each in exact]
    numbers = [*gramians, *(mx.sym.var(f"loss{number}") for number in range(losses))]
    return mx.nd.CachedOp(mx.sym.concat(*(mx.sym.cast(each, "float64") for each in numbers), dim=0), PLANNED)


REPEATED = (
    'balance: with on="parameters" or a pattern, the shared body runs backward once for each task, and {}; '
    'use on="features", which needs one pass, or {}'
)
LOOPS = "MXNet runs F.contrib.foreach backward only once", "write the loop in Python"
RECURRENT = "on GPUs, the first pass through an RNN overwrites what the next one needs", 'engine="torch"'
SPARSE = "sparse gradients are not compared", "build the layer with sparse_grad=False"


class ExecutedSplit:
    """Runs batches through the body, then the tasks' own parts on the body's outputs, without copying these.

    `gradients` says where the gradients of the `batch`'s arguments go. `parameters` are those of the body,
    and `objectives` are the numbers of the outputs that are differentiated. `features` is always the same
    object; each batch overwrites its arrays.
    """

    def __init__(
        self,
        cut: Cut,
        layout: CutLayout,
        batch: BatchArrays,
        gradients: Gradients,
        parameters: Sequence[Any],
        objectives: Sequence[int],
        context: Any,
    ) -> None:
        self._batch, self._objectives, self._features = batch, objectives, layout.features
        self._body = _bound(cut.body, layout.body, batch.bound, gradients, context)
        features = [self._body.outputs[number] for number in layout.features]
        rows = [TaskRows(*pair) for pair in zip(features, layout.tasks)]
        arguments = [*batch.bound, *(self._body.outputs[number] for number in layout.copied)]
        views = iter([view for each in rows for view in each.views])
        to_rows = {len(batch.bound) + copy: (next(views), "write") for copy in layout.taken}
        arguments += [batch.bound[position] for position in layout.in_both]
        self._rest = _bound(cut.rest, layout.rest, arguments, {**gradients, **to_rows}, context)
        self._ones = [mx.nd.ones_like(self._rest.outputs[number]) for number in objectives]
        self.features = SharedFeatures(rows, features, parameters, pass_back=self._pass_back)

    def forward(self, arguments: Sequence[Array]) -> list[Array]:
        """Return the outputs for a batch."""
        self._batch.take(arguments)
        self._body.forward()
        self._rest.forward()
        return self._rest.copied(but=self._objectives)

    def backward(self, heads: Sequence[Array | None]) -> None:
        """Compute each task's gradients where the tasks branch, and those of the tasks' own parameters."""
        head_gradients = [one if head is None else head for head, one in zip(heads, self._ones)]
        self._rest.backward(dict(zip(self._objectives, head_gradients)))

    def _pass_back(self, _: Sequence[Array], heads: Sequence[Array]) -> None:
        self._body.backward(dict(zip(self._features, heads)))


def _bound(
    symbol: Any, positions: Sequence[int], arguments: Sequence[Array], gradients: Gradients, context: Any
) -> BoundExecutor:
    """Return a symbol bound to the arguments at its positions."""
    of_symbol = {at: gradients[position] for at, position in enumerate(positions) if position in gradients}
    return BoundExecutor(symbol, [arguments[position] for position in positions], of_symbol, context)


class SplitGraph(CachedGraph):
    """Runs a graph as two: a body, then the tasks' own parts on copies of the body's outputs.

    Once the graph is traced, `tasks` returns the task of each of its outputs, None for outputs without one,
    and `objectives` the numbers of the outputs that are differentiated. `updated` returns MXNet's names of
    the parameters that trainers update. There is one backward pass through each part, but if the body
    `repeats`, one for each task through the body. Raises SpecError if the tasks share no parameter that
    trainers update, or if the body repeats, but more than one backward pass through it is impossible.
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
    ) -> None:
        super().__init__(function, parameters, signature)
        self._tasks, self._objectives, self._updated, self._repeats = tasks, objectives, updated, repeats
        self._body_parameters: list[Any] = []
        self._cut: Cut | None = None
        self._operators: dict[bool, tuple[Any, Any]] = {}
        self._rows: dict[Any, list[TaskRows]] = {}  # by device
        self._layout: CutLayout | None = None
        self._recorded: SharedFeatures | None = None

    @property
    def features(self) -> SharedFeatures | None:
        """The features where the tasks branch, in the last run."""
        return self._recorded if self.running is None else self.running.features

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

    def _call(self, arguments: list[Any], plan: Hashable, context: Any) -> list[Any]:
        layout = self._cut_layout()
        operators, recorded = (
            self._operators if plan is None else self._plans[plan],
            mx.autograd.is_recording(),
        )
        if recorded not in operators:
            operators[recorded] = self._new_operators(planned=plan is not None)
        body, rest = operators[recorded]
        arrays = as_list(body(*[arguments[position] for position in layout.body]))
        copies = [arrays[number].detach() for number in layout.copied]
        # detached: after the rest's backward pass, MXNet frees what it recorded of the inputs of the rest,
        # and the body's backward pass still needs it
        again = [arguments[position].detach() for position in layout.in_both]
        features = [arrays[number] for number in layout.features]
        rows, taken = self._rows_for(features, context), [copies[position] for position in layout.taken]
        mx.autograd.mark_variables(taken, [view for each in rows for view in each.views])
        train_mode = self._repeats and mx.autograd.is_training()
        self._recorded = SharedFeatures(rows, features, self._body_parameters, train_mode)
        arguments += copies + again
        return as_list(rest(*[arguments[position] for position in layout.rest]))

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
            cut = cut._replace(body=repeatable(cut.body))
        return cut, cut_layout(cut, self._cached_graph[1].list_inputs())

    def _check_repeated(self, cut: Cut) -> None:
        on_gpu = mx.context.current_context().device_type == "gpu"
        found = {
            LOOPS: has_control_flow(cut.body),
            RECURRENT: on_gpu and has_operator(cut.body, "RNN"),
            SPARSE: any(parameter._grad_stype != "default" for parameter in self._body_parameters),
        }
        for texts in [each for each, is_there in found.items() if is_there]:
            raise SpecError(REPEATED.format(*texts))

    def _new_operators(self, planned: bool) -> tuple[Any, Any]:
        assert self._cut is not None
        body, rest = (self._new_operator(symbol, planned) for symbol in (self._cut.body, self._cut.rest))
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
        positions = self._arguments.positions
        if self._repeats or not self._arguments.dense:
            return None
        if not suits(self._cached_graph[1], arguments, positions.values()):
            return None
        return ExecutedSplit(
            self._cut,
            layout,
            BatchArrays(arguments, positions),
            self._arguments.gradients(arguments),
            self._body_parameters,
            self._objectives(),
            context,
        )
