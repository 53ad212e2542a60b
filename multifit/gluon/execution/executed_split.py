"""A cut graph whose two parts run on MXNet's Executors."""

from __future__ import annotations

from typing import Any, Sequence

from ...protocols import Array
from ..compat import mx
from .bound_executor import BatchArrays, BoundExecutor, Gradients
from .cut_layout import CutLayout
from .graph_cut import Cut
from .shared_features import SharedFeatures, TaskRows


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
        arguments += [batch.bound[place] for place in layout.in_both]
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
    symbol: Any, places: Sequence[int], arguments: Sequence[Array], gradients: Gradients, context: Any
) -> BoundExecutor:
    """Return a symbol bound to the arguments at its places."""
    of_symbol = {at: gradients[place] for at, place in enumerate(places) if place in gradients}
    return BoundExecutor(symbol, [arguments[place] for place in places], of_symbol, context)
