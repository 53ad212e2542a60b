"""The specs of losses, metrics, labels and trainers. The TaskSpec or the estimator reports their problems."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..utils.arguments import with_known_arguments
from ..utils.protocols import Array, Metric, Optimizer, Parameters, Schedule, Slots


class _OneLineRepr:
    """Shows a dataclass in one line, without the fields that have their default."""

    def __repr__(self) -> str:
        given = {field: _short(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]
        shown = (f"{field.name}={text}" for field, text in given.items() if text != _short(field.default))
        return f"{type(self).__name__}({', '.join(shown)})"


@with_known_arguments
@dataclass(frozen=True, repr=False)
class LossSpec(_OneLineRepr):
    """A loss: its function, the outputs and labels that it takes, and its weight.

    Parameters
    ----------
    fn : callable, optional
        A loss of PyTorch or Gluon, a Module, a Block or a function on arrays, called with each device's
        outputs, then its labels, in the order declared. A single number counts as the mean over the device's
        samples; values are added up. None: the net returns the loss itself, as the only output that the loss
        takes.

        Where labels may be missing, or there are `class_weights`, `sample_weight` or `normalize_by`, the loss
        must return a value for each sample, or for each value of the label; a module of PyTorch with a
        `reduction` is then called with "none".
    outputs, labels : str or sequence of str, optional
        The outputs and labels that `fn` takes. If both are left out, `fn` takes the output and the label
        that are named like the loss. If only `outputs` is given, the loss takes no labels. An input of the
        net may be taken as a label.
    weight : float or callable
        The loss's factor in the objective: a finite number of at least 0, or a function of the
        :class:`~multifit.RunState` that returns such a number.
    returns : sequence of str, optional
        Names of the parts if `fn` returns several; each part is logged as the figure ``<loss>.<part>``.
    minimize : str, optional
        The part that enters the objective. Defaults to the first.
    normalize_by : str or callable, optional
        What divides the loss: a slot, whose sum over the whole batch is used, or a function of all slots. The
        function is called with each device's slots and returns an array or a number; what it returns is
        summed over all devices and processes. Values must be at least 0. Defaults to the number of samples;
        for gluoncv's ``SSDMultiBoxLoss``, to the number of anchors that are matched with an object.
    class_weights : sequence of float, mapping of int to float, or "balanced", optional
        The weight of each class, by which the loss of a value of the first label is multiplied before it is
        divided as usual; 1 for classes that a mapping leaves out. With "balanced", `fit` first reads the
        training data once: the weight is the number of labels, over that of the classes that occur times
        that of the class's labels; 1 for classes that do not occur.
    sample_weight : str, optional
        A slot by which the loss is multiplied: a number for each sample, or for each value of the label.
    arguments : sequence of str, optional
        All outputs and labels in the order in which `fn` takes them, if the outputs do not come first. Write
        ``outputs.x`` or ``labels.x`` if a name is both.
    trainers : str or sequence of str, optional
        The loss trains only the parameters of these trainers; all others are constants for its gradient.
        Defaults to all trainers.
    """

    fn: Callable[..., Array | Sequence[Array]] | None = None
    outputs: str | Sequence[str] | None = None
    labels: str | Sequence[str] | None = None
    weight: float | Callable[..., float] = 1.0
    returns: Sequence[str] | None = None
    minimize: str | None = None
    normalize_by: str | Callable[[Slots], Array | float] | None = None
    class_weights: Sequence[float] | Mapping[int, float] | str | None = None
    sample_weight: str | None = None
    arguments: Sequence[str] | None = None
    trainers: str | Sequence[str] | None = None


@with_known_arguments
@dataclass(frozen=True, repr=False)
class MetricSpec(_OneLineRepr):
    """A metric and the outputs, labels or losses that update it.

    Parameters
    ----------
    metric : str, Metric or callable
        A name, such as ``"accuracy"``, ``"top_5"``, ``"binary_accuracy"``, ``"f1"`` or ``"rmse"``, or that of
        a function of scikit-learn's, such as ``"sklearn.f1_score"``. For Gluon nets, all names that
        ``mx.metric.create`` takes are valid; PyTorch nets have ``"mean_iou"``, ``"pixel_accuracy"`` and
        ``"perplexity"`` too. Or any ``torchmetrics.Metric`` or, for Gluon nets, ``mx.metric.EvalMetric``. Or
        a function ``(labels, outputs) -> float``, such as those of ``sklearn.metrics``, which get classes or
        probabilities where they take these. Or an object of your own.

        The figure of a metric with a name, or of one of MXNet's own, is that of all samples of the pass,
        whatever the class itself does batch by batch: the same as after a single update with the whole pass.
        Most are summed on the device. A function is called once at the end of the pass, with NumPy arrays
        that join those of all batches, devices and processes: one each for labels and outputs, or lists if
        several are named. They are kept until then, which takes as much memory on the host as the arrays of
        the whole pass; so are those of the few metrics of MXNet that are no sums, such as PearsonCorrelation.
        Within a pass, each reading of the figures calls the function with the arrays so far; it may then
        raise ValueError, which makes the figure NaN.

        For PyTorch nets, an object of your own has ``update(labels, outputs)``, with tensors, or lists of
        these if several are named, ``compute()`` and ``reset()``; ``state_dict()`` and ``load_state_dict()``
        let it resume in mid-epoch. It is updated batch by batch.

        For Gluon nets, any other EvalMetric is updated batch by batch, and its figure may depend on how
        samples are cut into batches. If its second parameter is named ``preds``, it is called as
        ``update(labels, preds)`` with arrays of the whole batch, or for each device if an array has no axis
        along which the batch's samples lie. Otherwise it is called with the outputs, then the labels, each as
        a list with one array per device.
    outputs, labels : str or sequence of str, optional
        The outputs and labels that the metric takes. If `outputs`, `labels` and `losses` are all left out, it
        takes the output and the label that are named like the metric, or the only ones.
    losses : str or sequence of str, optional
        Losses whose values the metric takes in place of outputs.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better. Known for MXNet's own metrics and some of gluoncv's; for
        others, it is needed only if a handler monitors them.
    stage : sequence of {"train", "evaluate"}
        The stages in which the metric is computed. Defaults to both.
    transform : callable, optional
        ``transform(*outputs, *labels)`` returns the arguments of the metric, in the order of its parameters;
        for PyTorch nets, the labels and the outputs.
        If an item is a list, as in ``[a, b], [c]``, the list is one argument, and `update` is called for each
        device.
    names : sequence of str, optional
        Names of the figures if the metric returns several without names.
    sample_weight : str, optional
        A slot that is passed to a function as ``sample_weight=``.
    arguments : sequence of str, optional
        All outputs and labels in another order, as in :class:`LossSpec`.
    """

    metric: str | Metric | Callable[..., float]
    outputs: str | Sequence[str] | None = None
    labels: str | Sequence[str] | None = None
    losses: str | Sequence[str] | None = None
    mode: str | None = None
    stage: str | Sequence[str] = ("train", "evaluate")
    transform: Callable[..., Array | Sequence[Array | Sequence[Array]]] | None = None
    names: Sequence[str] | None = None
    sample_weight: str | None = None
    arguments: Sequence[str] | None = None


@with_known_arguments
@dataclass(frozen=True, repr=False)
class LabelSpec(_OneLineRepr):
    """A label that needs more than a name.

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
    missing : {"nan"}, number or str, optional
        Says where the label is missing. ``"nan"``: where it is NaN. A number: where it has this value. The
        name of another slot: where that slot is 0. A batch may also hold None in place of the label. Losses,
        gradients and metrics leave out missing labels, except functions and classes of your own that also
        take the slot `missing`: these get all samples.
    """

    name: str
    dtype: str | None = None
    classes: int | None = None
    ignore: float | None = None
    missing: str | float | None = None


@with_known_arguments
@dataclass(frozen=True, repr=False)
class TrainerSpec(_OneLineRepr):
    """A trainer to build: its parameters and its optimizer.

    Parameters
    ----------
    params : str, net, parameters or sequence of these
        A regular expression that must match a parameter's whole structural name (``"body.*"``); or a part of
        the net or a ParameterDict, which hold the parameters. For a PyTorch net also a parameter, or several
        of these.
    optimizer : str, class or function
        For a PyTorch net, a name or class of ``torch.optim``, or a function that is called with a list of
        parameters, and with the options as keywords, and returns an optimizer. For a Gluon net, as in
        ``gluon.Trainer``, or "adamw", "radam" or "lion", which multifit adds; an Optimizer of MXNet is
        copied, with its counts so far.
    optimizer_params : mapping, optional
        Options of the optimizer, such as ``{"learning_rate": 1e-3, "wd": 0.01}``; ``lr`` and ``weight_decay``
        are other names for these two.
    lr_scheduler : callable, optional
        Sets the learning rate by the number of updates: a schedule of :mod:`multifit.schedules` or of MXNet,
        which is copied. If `optimizer_params` has a ``learning_rate``, this replaces its ``base_lr``, as if
        it had been created with it. For a PyTorch net also a function that is called with the optimizer and
        returns a scheduler of ``torch.optim.lr_scheduler``, such as ``functools.partial(CosineAnnealingLR,
        T_max=1000)``. That is stepped after each update of this trainer.
    clip_norm : float, optional
        The largest global norm of this trainer's gradients; larger ones are scaled down to it.
    every : int
        The number of batches per update: 2 updates the parameters after every second batch of the run. A
        schedule counts the updates.
    accumulate : bool
        Whether an update is that of one batch of all samples since the last update. What is left at the end
        of an epoch is an update of its own. Otherwise, an update uses the last batch alone.
    """

    params: Parameters | Sequence[Any]
    optimizer: str | Optimizer | Callable[..., Any] = "adam"
    optimizer_params: Mapping[str, Any] | None = None
    lr_scheduler: Schedule | Callable[[Any], Any] | None = None
    clip_norm: float | None = None
    every: int = 1
    accumulate: bool = False


def _short(value: object) -> str:
    """Return the `repr`; the name or the type if the `repr` is long, or just an address."""
    text = repr(value)
    if "\n" not in text and " at 0x" not in text and len(text) <= 60:
        return text
    return getattr(value, "__name__", None) or f"{type(value).__name__}(…)"
