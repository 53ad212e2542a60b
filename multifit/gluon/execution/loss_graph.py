"""What comes after the net on one device: losses, the objective, and the sums from which figures are made.

The same functions run on NDArrays and, traced once, on symbols.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Mapping, Sequence

from ...spec.names import OUTPUTS, Ref
from ...spec.terms import MetricTerm, Term
from ..compat import mx
from ..user_code import user_code

__all__ = ["SAMPLES", "LossGraph", "LossOutputs", "anchored", "call_term", "fetch", "joined", "named_parts"]


SAMPLES = "samples"  # where the number of samples stands among the statistics


@dataclass
class LossOutputs:
    """What a head makes of one device's outputs.

    Attributes
    ----------
    objective : array of shape (1,) or None
        The weighted sum of the minimised parts; None for a head without terms.
    parts : dict
        What the losses returned, element by element, by figure; ``<loss>`` is the part that is minimised.
    statistics : array of shape (width,), float64, or None
        Sums of every part, then each metric's statistics.
    """

    objective: Any = None
    parts: dict[str, Any] = field(default_factory=dict)
    statistics: Any = None


class LossGraph:
    """Some of a spec's terms and metrics, computed together.

    Parameters
    ----------
    terms : sequence of Term
        Each adds one sum per part to the statistics.
    metrics : sequence of (MetricTerm, DeviceMetric)
        Metrics with a device-side path; each adds its `width` statistics.
    faster : mapping of str to callable
        By term, what computes the same as its loss in less time.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        metrics: Sequence[tuple[MetricTerm, Any]],
        faster: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.terms, self.metrics, self.faster = list(terms), list(metrics), dict(faster or {})
        self.small = [pair for pair in metrics if pair[1].small]
        self.large = [pair for pair in metrics if not pair[1].small]
        self.samples = 1  # of the first batch; with more than one, a scalar can be told from a row
        self.scalar: set[tuple[str, int]] = set()
        self.rows: set[str] = set()  # terms whose losses are a row: one for each sample
        self.layout = tuple(
            [(t.where, len(t.parts)) for t in terms]
            + [(m.where, 1) for m, _ in self.small]
            + [(SAMPLES, 1)] * bool(self.small)
            + [(m.where, d.width) for m, d in self.large]
        )
        self.slices: dict[str, slice] = {}
        self.width = 0
        for where, width in self.layout:
            self.slices[where] = slice(self.width, self.width + width)
            self.width += width

    def __call__(self, F: Any, arrays: Mapping[Ref, Any], weights: Any, size: Any) -> LossOutputs:
        """Compute everything.

        Parameters
        ----------
        F : module
            ``mx.nd`` or ``mx.sym``.
        arrays : mapping of Ref to array
            The outputs and slots of one device.
        weights : array of shape (number of terms,) or None
            Weight over normaliser of each term; None when only measuring.
        size : float or array
            The device's number of samples: what a scalar loss counts for.
        """
        result, every = LossOutputs(), []
        for term in self.terms:
            every.append(call_term(term, arrays, self.faster.get(term.key)))
            result.parts.update(named_parts(term, every[-1]))
        losses, pieces = self._sums(F, every, size)
        if weights is not None and self.terms:
            products = losses * (anchored(weights) if F is mx.nd else weights)
            result.objective = products if len(self.terms) == 1 else F.sum(products)
        with mx.autograd.pause(train_mode=mx.autograd.is_training()):
            measured = partial(self._measured, F, arrays, result.parts)
            small = [agreeing(F, measured(self.small)), size] if self.small else []
            if pieces + small:
                pieces = [F.cast(joined(F, pieces + small), "float64")]
            pieces += measured(self.large)
            if pieces:
                result.statistics = F.BlockGrad(joined(F, pieces))
        return result

    def _measured(
        self, F: Any, arrays: Mapping[Ref, Any], parts: Mapping[str, Any], metrics: Sequence[Any]
    ) -> list[Any]:
        """Return metrics' statistics, piece by piece."""
        found: list[Any] = []
        for metric, device in metrics:
            labels = [arrays[ref] for ref in metric.labels]
            outputs = [arrays[ref] for ref in metric.outputs] + [parts[name] for name in metric.losses]
            with user_code(lambda metric=metric: metric.where):  # type: ignore[misc]
                pieces = device.statistics(F, labels, outputs)
                found += [device.fold(F, joined(F, pieces))] if device.per_batch else pieces
        return found

    def _sums(self, F: Any, every: Sequence[Sequence[Any]], size: Any) -> tuple[Any, list[Any]]:
        """Return the sums of what is minimised as one vector, and those of all parts in pieces."""
        if F is mx.nd:
            self._learn(every)
        if self.terms and self.rows == {term.key for term in self.terms}:
            losses = rows_summed(F, [values[0] for values in every])
            return losses, [losses]
        sums = [
            [self._sum(F, (term.key, i), value, size) for i, value in enumerate(values)]
            for term, values in zip(self.terms, every)
        ]
        losses = joined(F, [values[term.minimized] for term, values in zip(self.terms, sums)])
        single = all(len(values) == 1 for values in sums)  # then each is in `losses` already
        return losses, [losses] * bool(sums) if single else [value for values in sums for value in values]

    def _learn(self, every: Sequence[Sequence[Any]]) -> None:
        # from the first batch, before anything is traced: symbols have no size
        for term, values in zip(self.terms, every):
            if self.samples > 1:
                self.scalar |= {(term.key, i) for i, value in enumerate(values) if value.size == 1}
                stock = type(term.spec.fn).__module__ == mx.gluon.loss.__name__
                if stock and [value.shape for value in values] == [(self.samples,)]:
                    self.rows.add(term.key)

    def _sum(self, F: Any, part: tuple[str, int], value: Any, size: Any) -> Any:
        return F.sum(value) * size if part in self.scalar else F.sum(value)


def call_term(term: Term, arrays: Mapping[Ref, Any], instead: Callable[..., Any] | None = None) -> list[Any]:
    """Return the parts that a term's loss, or what is called in its place, returns."""
    args = [arrays[ref] for ref in term.args]
    if term.spec.fn is None:
        return args[:1]
    with user_code(lambda: term.where, *zip(map(str, term.args), args)):
        value = (instead or term.spec.fn)(*args)
    return list(value) if isinstance(value, (list, tuple)) else [value]


def named_parts(term: Term, values: Sequence[Any]) -> dict[str, Any]:
    """Return a term's parts by figure; ``<loss>`` is the part that is minimised."""
    parts = {f"{term.key}.{part}": value for part, value in zip(term.parts, values) if part}
    return {term.key: values[term.minimized], **parts}


def fetch(outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[Ref, Any]:
    """Return outputs and slots by reference."""
    arrays = {Ref(OUTPUTS, name): array for name, array in outputs.items()}
    arrays.update({Ref("labels", name): array for name, array in slots.items()})
    return arrays


def anchored(weights: Any) -> Any:
    """Return the weights as a variable of their own.

    Then an objective is part of the recorded graph even where all its losses are constants (no sample had
    anything to learn), and can be differentiated: no parameter is reached.
    """
    if mx.autograd.is_recording():
        weights = weights.copy()
        weights.attach_grad()
    return weights


def rows_summed(F: Any, rows: Sequence[Any]) -> Any:
    """Return each row's sum, as one vector: less work than to sum each by itself."""
    return F.sum(F.stack(*rows, axis=0), axis=1) if len(rows) > 1 else F.sum(rows[0])


def agreeing(F: Any, rows: Sequence[Any]) -> Any:
    """Return how often the first row is as the second, the third as the fourth …, as one vector."""
    if len(rows) == 2:
        return F.sum(F.broadcast_equal(rows[0], F.trunc(rows[1])))
    said, labels = (F.stack(*own, axis=0) for own in (rows[::2], rows[1::2]))
    return F.sum(F.broadcast_equal(said, F.trunc(labels)), axis=1)


def joined(F: Any, pieces: Sequence[Any]) -> Any:
    """Return vectors as one; None for none."""
    return F.concat(*pieces, dim=0) if len(pieces) > 1 else next(iter(pieces), None)
