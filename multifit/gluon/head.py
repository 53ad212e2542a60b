"""What comes after the net on one device: losses, the objective, and the sums from which figures are made.

The same functions run on NDArrays and, traced once, on symbols.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

from ..spec.names import OUTPUTS, Ref
from ..spec.terms import MetricTerm, Term
from .compat import mx
from .network import calling

__all__ = ["Head", "HeadResult", "anchored", "call_term", "fetch", "joined", "named_parts"]


@dataclass
class HeadResult:
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


class Head:
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
        # those whose sums float32 holds come first: they are joined with the losses' before a cast
        self.metrics = sorted(metrics, key=lambda pair: not pair[1].small)
        self.terms, self.faster = list(terms), dict(faster or {})
        self.several = False  # whether devices get more than one sample, so that a scalar can be told
        self.scalar: set[tuple[str, int]] = set()
        self.layout = tuple(
            [(t.where, len(t.parts)) for t in terms] + [(m.where, d.width) for m, d in self.metrics]
        )
        self.slices: dict[str, slice] = {}
        self.width = 0
        for where, width in self.layout:
            self.slices[where] = slice(self.width, self.width + width)
            self.width += width

    def __call__(self, F: Any, arrays: Mapping[Ref, Any], weights: Any, size: Any) -> HeadResult:
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
        result, sums = HeadResult(), []
        for term in self.terms:
            values = call_term(term, arrays, self.faster.get(term.key))
            result.parts.update(named_parts(term, values))
            sums.append([self._sum(F, (term.key, i), value, size) for i, value in enumerate(values)])
        minimised = [values[term.minimized] for term, values in zip(self.terms, sums)]
        losses = joined(F, minimised)
        if weights is not None and self.terms:
            products = losses * (anchored(weights) if F is mx.nd else weights)
            result.objective = products if len(self.terms) == 1 else F.sum(products)
        with mx.autograd.pause(train_mode=mx.autograd.is_training()):
            small, large = self._measured(F, arrays, result.parts, size)
            if len(self.terms) == sum(map(len, sums)):  # each is in `losses` already
                small = [losses, *small] if sums else small
                pieces = [F.cast(joined(F, small), "float64")] if small else []
            else:
                pieces = [F.cast(value, "float64") for own in [*sums, small] for value in own]
            if pieces + large:
                result.statistics = F.BlockGrad(joined(F, pieces + large))
        return result

    def _measured(
        self, F: Any, arrays: Mapping[Ref, Any], parts: Mapping[str, Any], size: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return the metrics' statistics: those in float32, then those in float64."""
        found: tuple[list[Any], list[Any]] = [], []
        for metric, device in self.metrics:
            labels = [arrays[ref] for ref in metric.labels]
            outputs = [arrays[ref] for ref in metric.outputs] + [parts[name] for name in metric.losses]
            with calling(lambda metric=metric: metric.where):  # type: ignore[misc]
                pieces = device.statistics(F, labels, outputs, size)
                pieces = [device.fold(F, joined(F, pieces))] if device.per_batch else pieces
            found[not device.small].extend(pieces)
        return found

    def _sum(self, F: Any, part: tuple[str, int], value: Any, size: Any) -> Any:
        # learnt from the first batch, before anything is traced: symbols have no size
        if F is mx.nd and self.several and value.size == 1:
            self.scalar.add(part)
        total = F.sum(value)
        return total * size if part in self.scalar else total


def call_term(term: Term, arrays: Mapping[Ref, Any], instead: Callable[..., Any] | None = None) -> list[Any]:
    """Return the parts that a term's loss, or what is called in its place, returns."""
    args = [arrays[ref] for ref in term.args]
    if term.spec.fn is None:
        return args[:1]
    with calling(lambda: term.where, *zip(map(str, term.args), args)):
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


def joined(F: Any, pieces: Sequence[Any]) -> Any:
    """Return vectors as one; None for none."""
    return F.concat(*pieces, dim=0) if len(pieces) > 1 else next(iter(pieces), None)
