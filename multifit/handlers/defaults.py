"""The default handlers of a fit, and which handlers act on a rank."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..distributed import World
from ..utils.protocols import MultiEstimator
from ..utils.text import quoted, shown
from .checked_handlers import checked_handlers
from .handler import Handler, Priority, attribute, handler_name, unwrapped
from .metric import MetricHandler
from .printing import LoggingHandler, ProgressBar
from .stopping import InterruptHandler, StoppingHandler
from .validation import ValidationHandler

_REPLACEABLE: tuple[type, ...] = (InterruptHandler, LoggingHandler, ProgressBar, ValidationHandler)


class StopAgreement(Handler):
    """Tells the other ranks that this one was asked to stop, and stops if another one was.

    It is called after the handlers that stop a fit, and before the checkpoint of where it stopped is saved.
    """

    priority = (Priority.STOPPING + Priority.CHECKPOINT) / 2

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Agree on whether this was the last batch, or the last epoch."""
        estimator.state.agree()

    epoch_end = batch_end


def with_defaults(handlers: object, val_data: Any, val_batches: int | None = None) -> list[object]:
    """Return `handlers` and the default handlers that they do not replace.

    Stopping and metrics are always added. Interrupts, logging, progress bars and (with `val_data`) validation
    are added unless one of `handlers` is of that class, or has it as its attribute `replaces`. Raises
    ValueError if some of the handlers cannot be used.
    """
    users = checked_handlers(handlers)
    replaced = {kind for handler in users for kind in _replaced(handler)}
    defaults: list[object] = [StoppingHandler(), MetricHandler()]
    if val_data is not None and ValidationHandler not in replaced:
        defaults.append(ValidationHandler(val_data, batches=val_batches))
    return [*users, *defaults, *(kind() for kind in _REPLACEABLE[:3] if kind not in replaced)]


def _replaced(handler: object) -> list[type]:
    """Return the default handlers that a handler replaces."""
    replaces = attribute(handler, "replaces")
    kinds = replaces if isinstance(replaces, tuple) else (replaces,)
    if not all(kind in _REPLACEABLE for kind in kinds):
        valid = quoted(kind.__name__ for kind in _REPLACEABLE)
        raise ValueError(
            f"{handler_name(handler)} replaces {shown(replaces)}; valid is one of the classes {valid}, or a "
            "tuple of them"
        )
    return [kind for kind in _REPLACEABLE if kind in kinds or isinstance(unwrapped(handler), kind)]


def acting_on(world: World, handlers: Sequence[object]) -> list[object]:
    """Return the handlers that act on this rank, and one that lets all ranks agree on when to stop.

    Handlers that show or write something have ``first_rank_only = True``, and act only on the first rank.
    """
    if world.alone:
        return list(handlers)
    acting = [each for each in handlers if world.first or not attribute(each, "first_rank_only")]
    return [*acting, StopAgreement()]


def validating(handlers: Iterable[object]) -> Any:
    """Return the first handler that has `val_data`, without the `Every` around it, or None."""
    return next((unwrapped(each) for each in handlers if attribute(each, "val_data") is not None), None)
