"""What a TaskSpec consists of. None of these raises: the TaskSpec or the estimator reports problems."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, Sequence

from ..arguments import with_known_arguments


class _OneLineRepr:
    """Shows a dataclass in one line, without the fields that have their default."""

    def __repr__(self) -> str:
        values = ((field, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        shown = (f"{field.name}={_short(value)}" for field, value in values if value is not field.default)
        return f"{type(self).__name__}({', '.join(shown)})"


@with_known_arguments
@dataclass(frozen=True, repr=False)
class LossSpec(_OneLineRepr):
    """A loss: its function, the outputs and labels that it takes, and its weight.

    Parameters
    ----------
    fn : callable, optional
        A ``gluon.loss.Loss``, a Block or a function on arrays, called with the outputs, then the labels, in
        the order declared. None: the one output named is the loss itself.
    outputs, labels : str or sequence of str, optional
        What `fn` takes. With neither: the output and the label named like the loss. With outputs alone: a
        loss without labels. An input of the net may be taken as a label.
    weight : float or callable
        Finite and at least 0, or a function of the :class:`~multifit.RunState` that returns such a number.
    returns : sequence of str, optional
        Names of the parts if `fn` returns several; each part is logged as the figure ``<loss>.<part>``.
    minimize : str, optional
        The part that enters the objective. Defaults to the first.
    normalize_by : str or callable, optional
        A slot, or a function of all slots, whose sum over the whole batch divides the loss; at least 0. A
        function is called with each device's slots, and what it returns, an array or a number, is added up
        over all devices and processes. Defaults to the number of samples.
    scope : {"device", "batch"}
        ``"batch"``: `fn` gets lists with one array per device for every argument, and the sum of what it
        returns is taken as divided by `normalize_by` already. Means over batches, and over processes, are
        weighted by `normalize_by`.
    arguments : sequence of str, optional
        Another order of the outputs and labels; ``outputs.x`` and ``labels.x`` if a name is both.
    trainers : str or sequence of str, optional
        The trainers whose parameters its gradient reaches, as if all other parameters were constants.
        Defaults to all.
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
    trainers: str | Sequence[str] | None = None


@with_known_arguments
@dataclass(frozen=True, repr=False)
class MetricSpec(_OneLineRepr):
    """A metric and the outputs, labels or losses that update it.

    Parameters
    ----------
    metric : EvalMetric or callable
        Any ``mx.metric.EvalMetric``, or a function ``(labels, outputs) -> float`` on NumPy arrays, which
        hold what all devices have. An EvalMetric is called as ``update(labels, preds)`` if its second
        parameter is ``preds``, otherwise with the outputs, then the labels. Of several devices, MXNet's own
        metrics get lists of all arrays; others get arrays of the whole batch, or are called for each device
        if an array does not have the batch's samples along an axis.
    outputs, labels : str or sequence of str, optional
        What it takes. Without `outputs`, `labels` and `losses`: the output and label named like the metric.
    losses : str or sequence of str, optional
        Losses whose values it takes in place of outputs.
    mode : {"min", "max"}, optional
        Which direction is better. Known for the stock metrics.
    stage : sequence of {"train", "evaluate"}
        When it is computed.
    transform : callable, optional
        ``transform(*outputs, *labels)`` returns what the metric takes, in the order of its parameters. If an
        item is a list, as in ``[a, b], [c]``, it stays one argument, and `update` is called for each device.
    names : sequence of str, optional
        Names of the figures if the metric returns several without names.
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


@with_known_arguments
@dataclass(frozen=True, repr=False)
class LabelSpec(_OneLineRepr):
    """A label with more than a name.

    Parameters
    ----------
    name : str
        The label's slot.
    dtype : str, optional
        The dtype that the label is cast to, such as ``"int32"``.
    classes : int, optional
        Number of classes: values lie in ``0 … classes - 1``.
    ignore : number, optional
        A value that means "no label" and may lie outside the classes.
    missing : {"nan"}, number, str or callable, optional
        Where the label is missing: where it is NaN, where it has this value, where the slot of this name is
        0, or where ``missing(label)`` is not 0. A batch may also hold None in its place. What is missing has
        no loss and no gradient, and no metric sees it.
    """

    name: str
    dtype: str | None = None
    classes: int | None = None
    ignore: float | None = None
    missing: str | float | Callable[[Any], Any] | None = None


@with_known_arguments
@dataclass(frozen=True, repr=False)
class TrainerSpec(_OneLineRepr):
    """A trainer to build: its parameters and its optimizer.

    Parameters
    ----------
    params : str, Block or ParameterDict
        A regular expression that must match a parameter's whole structural name (``"body.*"``), or a Block
        or ParameterDict that holds the parameters.
    optimizer : str or Optimizer
        As in ``gluon.Trainer``.
    optimizer_params : mapping, optional
        Options of the optimizer, such as ``{"learning_rate": 1e-3}``.
    lr_scheduler : LRScheduler, optional
        The learning rate by number of updates. Its ``base_lr`` is used unless `optimizer_params` has a
        ``learning_rate``.
    clip_norm : float, optional
        The largest global norm of this trainer's gradients; larger ones are scaled down to it.
    every : int
        It moves its parameters after every so many batches of the run. A schedule counts these updates.
    accumulate : bool
        Whether an update uses the mean of the gradients since the last one, as if the batches had been one,
        or those of the last batch alone.
    """

    params: Any
    optimizer: Any = "adam"
    optimizer_params: Mapping[str, Any] | None = None
    lr_scheduler: Any = None
    clip_norm: float | None = None
    every: int = 1
    accumulate: bool = False


def _short(value: object) -> str:
    """Return the `repr`; the name or the type if the `repr` is long, fails, or is just an address."""
    try:
        text = repr(value)
    except Exception:  # of the user's own
        text = ""
    if text and "\n" not in text and " at 0x" not in text and len(text) <= 60:
        return text
    return getattr(value, "__name__", None) or f"{type(value).__name__}(…)"
