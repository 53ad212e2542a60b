"""What a handler is: its events, hooks and attributes, and the order in which handlers are called."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..utils.protocols import Array, MultiEstimator
from .triggers import Every

_OF_BATCH = ("batch", "pred", "label", "loss", "present")

# The arguments that each method may take besides the estimator.
_EVENTS: dict[str, tuple[str, ...]] = {
    "train_begin": (),
    "epoch_begin": ("batches",),
    "batch_begin": ("batch",),
    "batch_end": _OF_BATCH,
    "epoch_end": ("complete",),
    "train_end": (),
    "evaluate_begin": ("batches",),
    "evaluate_batch_begin": ("batch",),
    "evaluate_batch_end": _OF_BATCH,
    "evaluate_end": ("figures",),
}
_HOOKS: dict[str, tuple[str, ...]] = {
    "change_batch": ("slots",),
    "change_outputs": ("outputs", "slots"),
    "change_objective": ("objectives", "pred", "label", "loss", "scale"),
    "hold_update": ("loss",),
    "change_gradients": (),
    "around_step": (),
    "around_evaluation": (),
    "around_fit": (),
}
EVENTS, HOOKS, ARGUMENTS = tuple(_EVENTS), tuple(_HOOKS), {**_EVENTS, **_HOOKS}

# Emitted after the last batch of a fit that was asked to stop within an epoch, before ``epoch_end``, in which
# handlers count the epoch.
AFTER_LAST_BATCH = "after_last_batch"


class PassEvents(NamedTuple):
    """The events of one pass over data."""

    begin: str
    batch_begin: str
    batch_end: str
    end: str


TRAINING_EVENTS = PassEvents("epoch_begin", "batch_begin", "batch_end", "epoch_end")
EVALUATION_EVENTS = PassEvents("evaluate_begin", "evaluate_batch_begin", "evaluate_batch_end", "evaluate_end")

# Called outside of epochs too, where the run's counters are those of the next epoch and of the last batch.
OUTSIDE = ("train_begin", "train_end", "around_fit", "around_evaluation", *EVALUATION_EVENTS)


class Priority:
    """Named values for a handler's ``priority``: handlers with lower numbers are called earlier.

    Handlers of equal priority are called in the order in which they were passed.
    """

    METRICS = -1000.0  # records the epoch's training figures, which all others may read
    VALIDATION = -999.0  # records the validation figures, next to the others
    NORMAL = 0.0  # a handler without a priority
    STOPPING = 1000.0  # after handlers that may give a better reason to stop, or change the limits
    CHECKPOINT = 1500.0  # saves what all handlers before it have changed
    PROGRESS = 2000.0  # closes its bars before anything is printed
    LOGGING = math.inf  # sees what all others did


class Handler:
    """Base class of event handlers: a method for each event and hook, which does nothing, and all attributes.

    Override the methods that you need; the others are never called. An object of any other class is a handler
    too if it has one of these methods; the attributes that it lacks have the defaults of this class.

    Each method is called with the estimator, and with those of its arguments that it has parameters for:
    ``**arguments`` takes all of them, ``**_`` none. See docs/handlers.md for a guide.

    Attributes
    ----------
    priority : float
        The order of calls, lower numbers first; see :class:`Priority`.
    replaces : type or tuple of type
        The default handlers that are left out of a fit with this handler: InterruptHandler, LoggingHandler,
        ProgressBar or ValidationHandler. A subclass of one of them replaces it anyway.
    monitor : str, sequence of str or callable, optional
        The figures that the handler watches; a fit checks these names before its first update.
    mode : {"min", "max"}, optional
        Which values of these figures are better. It is needed for figures whose direction is not known.
    val_data : loader, optional
        The validation data that the handler evaluates; a fit checks its first batch before the first update.
    first_rank_only : bool
        Whether only the first of several processes that train together calls the handler, because it shows
        or writes something.
    blends_losses : bool
        Whether ``change_objective`` replaces a share of each loss by another loss, as MixUp does.
    handles_non_finite : bool
        Whether the handler takes care of batches with NaN or infinity, which are an error otherwise.
    evaluated_parameters : mapping of str to array
        The values that evaluations use in place of parameters, by name, such as averages.
    """

    priority: float = Priority.NORMAL
    replaces: type | tuple[type, ...] = ()
    monitor: str | Sequence[str] | Callable[[Mapping[str, float]], float] | None = None
    mode: str | None = None
    val_data: Any = None
    first_rank_only: bool = False
    blends_losses: bool = False
    handles_non_finite: bool = False
    evaluated_parameters: Mapping[str, Array] = MappingProxyType({})

    # ---- events

    def train_begin(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Begin a fit, before a checkpoint is loaded."""

    def epoch_begin(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Begin an epoch. `batches` is its number of batches; None if the loader does not know it."""

    def batch_begin(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Begin a training batch: `batch`, as the loader returned it."""

    def batch_end(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """End a training batch, after the update: `batch`, `pred`, `label`, `loss`.

        These are lists with an array per device; with several outputs, labels or losses, dicts of such lists
        by name. `present` is a dict of such lists for labels that may be missing: 1 where the label is there,
        and 0 where it is missing, and 0 takes its place. A true return value ends the fit.
        """

    def epoch_end(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """End an epoch. `complete` is False if the fit was asked to stop within it. True ends the fit."""

    def train_end(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """End a fit, even if it failed."""

    def evaluate_begin(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Begin an evaluation of `batches` batches; None if the loader does not know it."""

    def evaluate_batch_begin(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Begin a batch of an evaluation: `batch`."""

    def evaluate_batch_end(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """End a batch of an evaluation; the arguments are those of :meth:`batch_end`."""

    def evaluate_end(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """End an evaluation, with its `figures` by name, without prefix."""

    # ---- hooks, which change a training step; None changes nothing

    def change_batch(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Return the slots of one device to replace, as a dict of arrays.

        `slots` are its inputs and labels. The number of samples must stay the same.
        """

    def change_outputs(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Return the net's outputs on one device to replace, as a dict; autograd records what is computed.

        `outputs` are all of them, and `slots` are the inputs and labels. The dtypes must stay the same.
        """

    def change_objective(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Return a list of arrays of shape (1,), or tensors of one number, whose sum is minimised.

        Autograd records the computation.

        `objectives` are those so far, weighted and normalised; `pred`, `label` and `loss` are dicts of lists,
        always by name; `scale` has the factors by which losses are multiplied.
        """

    def hold_update(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Return true to drop this batch's update and its gradients; `loss` is a dict of lists, by name."""

    def change_gradients(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Change the arrays of ``estimator.gradients()`` in place, before they are clipped."""

    def around_step(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Return a context manager around a training step."""

    def around_evaluation(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Return a context manager around every evaluation."""

    def around_fit(self, estimator: MultiEstimator, *args: Any, **arguments: Any) -> Any:
        """Return a context manager around a fit."""

    # ---- what a checkpoint holds

    def state_dict(self) -> Mapping[str, Any]:
        """Return what must survive a stop, as a tree of plain values and arrays."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; called after :meth:`train_begin`."""


def implements(handler: object, method: str) -> bool:
    """Return whether a handler has a method of this name, other than the empty one of :class:`Handler`."""
    found = getattr(unwrapped(handler), method, None)
    return callable(found) and getattr(found, "__func__", found) is not getattr(Handler, method, None)


def attribute(handler: object, name: str) -> Any:
    """Return an attribute of a handler, by default that of :class:`Handler`."""
    return getattr(unwrapped(handler), name, getattr(Handler, name))


def unwrapped(handler: object) -> object:
    """Return the handler that an `Every` wraps, or the handler itself."""
    while isinstance(handler, Every) and handler.handler is not None:
        handler = handler.handler
    return handler


def handler_name(handler: object) -> str:
    """Return the name of the handler's class; for an `Every`, that of the handler it wraps."""
    return type(unwrapped(handler)).__name__
