"""What is checked and prepared before a fit: its limits, loaders, handlers and the figures they monitor."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from ..checks import one_shot
from ..engines import FirstBatches, Peeked, Runner
from ..errors import limited, quoted, suggest
from ..events import EventDispatcher, attribute, handler_name, unwrapped
from ..handlers import acting_on, validation_data, with_defaults
from ..sampling import TaskLoaders
from ..seeding import preserve_rng
from ..stages import EVALUATE, TRAIN, figure_name
from ..threads import oversubscription
from .data import check_evaluated, each_loader


def fit_events(
    estimator: Any, event_handlers: Any, val_data: Any, runner: Runner
) -> tuple[EventDispatcher, Peeked | FirstBatches | None]:
    """Return the handlers of a fit, and the first validation batch (of each loader), or None without any.

    The batch is read before training begins, because training and validation may read from the same
    DataIter. Raises ValueError if a handler cannot be used, and DataError if a handler's validation data is
    empty, or can be read only once.
    """
    first, reader = None, runner.engine.readers[EVALUATE]
    with preserve_rng():
        if val_data is not None and one_shot(val_data):
            first, val_data = reader.peek(val_data, "val_data")
        handlers = with_defaults(event_handlers, val_data)
        events = EventDispatcher(estimator, acting_on(runner.engine.world, handlers))
        own_data = validation_data(events.handlers)  # of a ValidationHandler that the user passed
        if val_data is not None and own_data is not val_data:
            message = "val_data= is not evaluated: the ValidationHandler that was given evaluates its own"
            estimator.logger.warning(message)
        if own_data is not None and first is None:
            if own_data is not val_data:
                own_data = check_evaluated(own_data, runner.engine.world, "val_data", once=False)
            if isinstance(own_data, TaskLoaders):
                return events, runner.first_batches(EVALUATE, own_data, "val_data")
            first, _ = reader.peek(own_data, "val_data")
    return events, first


def log_oversubscription(log_once: Callable[[str], None], reader: Any, train_data: Any) -> None:
    """Log once that OpenMP's threads and the loader's workers outnumber the cores, if they do."""
    message = oversubscription(sum(map(reader.workers, each_loader("train_data", train_data).values())))
    if message is not None:
        log_once(message)


def check_monitors(engine: Any, handlers: Iterable[Any], evaluated: bool) -> None:
    """Check the figures that handlers monitor, after the engine's dry run.

    Raises ValueError if a handler's `monitor` is not a figure of this run, or if its `mode` is None and the
    figure's direction is unknown. `evaluated` says whether there is validation data. An unknown figure is
    accepted if another handler may record it; the handler that monitors it warns if none does.
    """
    handlers = list(handlers)
    directions = {}
    for stage in (TRAIN, EVALUATE) if evaluated else (TRAIN,):
        figures = engine.stages[stage].figures
        directions.update({figure_name(stage, name): figures.direction(name) for name in figures.names()})
    directions.update(dict.fromkeys(engine.trainers.learning_rates()))
    messages = []
    for handler in handlers:
        monitored, has_mode = attribute(handler, "monitor"), attribute(handler, "mode")
        kind = handler_name(handler)
        for figure in monitored if isinstance(monitored, (list, tuple)) else [monitored]:
            if not isinstance(figure, str):
                continue
            if figure not in directions:
                others = [other for other in handlers if other is not handler and _may_record(other)]
                if others and has_mode:
                    continue
                hint = "" if evaluated else "; val_ figures need validation data"
                if others:
                    hint += f'; for one that {handler_name(others[0])} records, give mode="min" or mode="max"'
                near = suggest(figure, directions)
                messages.append(
                    f'{kind}: there is no figure "{figure}"{near}; figures are {quoted(directions)}{hint}'
                )
            elif directions[figure] is None and not has_mode:
                messages.append(
                    f'{kind}: it is not known whether a lower or a higher "{figure}" is better; '
                    'give mode="min" or "max" in the MetricSpec or in the handler'
                )
    if messages:
        raise ValueError("\n".join(limited(messages)))


def _may_record(handler: Any) -> bool:
    """Whether a handler may record figures of its own: the user's may."""
    return not type(unwrapped(handler)).__module__.startswith("multifit.")
