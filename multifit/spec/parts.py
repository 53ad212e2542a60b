"""What a TaskSpec is made of. None of these raises: the TaskSpec or the estimator reports their problems."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, Sequence

__all__ = ["LabelSpec", "LossSpec", "MetricSpec", "TrainerSpec"]


class _Declared:
    """A declaration whose `repr` is one line: what was declared, without the defaults."""

    def __repr__(self) -> str:
        own = ((item, getattr(self, item.name)) for item in fields(self))  # type: ignore[arg-type]
        said = (f"{item.name}={_short(value)}" for item, value in own if value is not item.default)
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, repr=False)
class LossSpec(_Declared):
    """A loss, with the outputs and labels that it takes and the weight that it bears.

    Parameters
    ----------
    fn : callable or None
        Called with the outputs, then the labels, in the order declared: a ``gluon.loss.Loss``, a Block or a
        function on arrays. None: the one output named is the loss itself.
    outputs, labels : str or sequence of str, optional
        What `fn` takes. With neither: the output and the label that bear the loss's key. With outputs alone:
        a term without labels. An input of the net may be taken as a label.
    weight : float or callable
        At least 0 and finite, or a function of the :class:`~multifit.RunState` that returns such a number.
    returns : sequence of str, optional
        Names of the parts where `fn` returns several; each part is a figure ``<loss>.<part>``.
    minimize : str, optional
        The part that enters the objective; the first by default.
    normalize_by : str or callable, optional
        A slot, or a function of all slots, whose sum over the whole batch divides the loss; default: the
        number of samples.
    scope : {"device", "batch"}
        ``"batch"``: `fn` gets a list per device of every argument at once, and the sum of what it returns
        is taken as normalised already.
    arguments : sequence of str, optional
        Another order of the outputs and labels; ``outputs.x`` and ``labels.x`` where a name is both.
    """

    fn: Callable[..., Any] | None = None
    outputs: str | Sequence[str] | None = None
    labels: str | Sequence[str] | None = None
    weight: float | Callable[[Any], float] = 1.0
    returns: Sequence[str] | None = None
    minimize: str | None = None
    normalize_by: str | Callable[[Mapping[str, Any]], Any] | None = None
    scope: str = "device"
    arguments: Sequence[str] | None = None


@dataclass(frozen=True, repr=False)
class MetricSpec(_Declared):
    """A metric, with the outputs, labels or losses that it is fed.

    Parameters
    ----------
    metric : EvalMetric or callable
        Any ``mx.metric.EvalMetric``, or a function ``(labels, outputs) -> float`` on NumPy arrays. An
        EvalMetric is called as ``update(labels, preds)`` where its second parameter is ``preds``, otherwise
        with the outputs, then the labels.
    outputs, labels : str or sequence of str, optional
        What it is fed. With none of `outputs`, `labels` and `losses`: the output and label of its key.
    losses : str or sequence of str, optional
        Losses whose values it is fed in place of outputs.
    mode : {"min", "max"}, optional
        Which direction is better. Known for the stock metrics.
    stage : sequence of {"train", "evaluate"}
        When it is measured.
    transform : callable, optional
        ``transform(*outputs, *labels)`` returns what the metric takes, in the order of its parameters.
    names : sequence of str, optional
        Names of the figures where the metric returns several without names.
    arguments : sequence of str, optional
        Another order of the outputs and labels, as in :class:`LossSpec`.
    """

    metric: Any
    outputs: str | Sequence[str] | None = None
    labels: str | Sequence[str] | None = None
    losses: str | Sequence[str] | None = None
    mode: str | None = None
    stage: str | Sequence[str] = ("train", "evaluate")
    transform: Callable[..., Any] | None = None
    names: Sequence[str] | None = None
    arguments: Sequence[str] | None = None


@dataclass(frozen=True, repr=False)
class LabelSpec(_Declared):
    """A label of which more is known than its name.

    Parameters
    ----------
    name : str
        The label's slot.
    dtype : str, optional
        The dtype that the label is cast to, for example ``"int32"``.
    classes : int, optional
        Number of classes: values lie in ``0 … classes - 1``.
    ignore : number, optional
        A value that stands for "no label" and may lie outside the classes.
    """

    name: str
    dtype: str | None = None
    classes: int | None = None
    ignore: float | None = None


@dataclass(frozen=True, repr=False)
class TrainerSpec(_Declared):
    """A trainer to be built: which parameters it moves, and how.

    Parameters
    ----------
    params : str, Block or ParameterDict
        A regular expression that must match a parameter's structural name wholly (``"body.*"``), or a Block
        or ParameterDict that holds the parameters.
    optimizer : str or Optimizer
        As ``gluon.Trainer`` takes it.
    optimizer_params : mapping, optional
        Options of the optimizer, such as ``{"learning_rate": 1e-3}``.
    lr_scheduler : LRScheduler, optional
        The learning rate by number of updates. Its ``base_lr`` holds unless `optimizer_params` has a
        ``learning_rate``.
    clip_norm : float, optional
        The largest global norm of this trainer's gradients; larger ones are scaled down to it.
    """

    params: Any
    optimizer: Any = "adam"
    optimizer_params: Mapping[str, Any] | None = None
    lr_scheduler: Any = None
    clip_norm: float | None = None


def _short(value: Any) -> str:
    """Return what a value is called where its own `repr` is long or says no more than its address."""
    text = repr(value)
    if "\n" not in text and " at 0x" not in text and len(text) <= 60:
        return text
    return getattr(value, "__name__", None) or f"{type(value).__name__}(…)"
