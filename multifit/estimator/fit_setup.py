"""What is checked and agreed when a fit starts."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..engines import Engine, FirstBatches, Peeked
from ..handlers import CheckpointHandler, acting_on, validating, with_defaults
from ..handlers.delta_m import DELTA_M, DeltaM
from ..handlers.dispatcher import EventDispatcher
from ..handlers.handler import attribute, handler_name, unwrapped
from ..handlers.state import RunState
from ..sampling import TaskLoaders
from ..spec.checks.data import one_shot
from ..utils.errors import Problem, raise_problems
from ..utils.seeding import preserve_rng, seed_everything, seed_of_rank
from ..utils.stages import EVALUATE, TRAIN, figure_name
from ..utils.text import limited, quoted, suggest
from .data import check_evaluated
from .handler_runner import by_name, options_of


def fit_events(
    estimator: Any, event_handlers: Any, val_data: Any, val_batches: int | None, engine: Engine
) -> tuple[EventDispatcher, Peeked | FirstBatches | None]:
    """Return the handlers of a fit, and the first validation batch (of each loader), or None without any.

    The batch is read before training begins, because training and validation may read from the same
    DataIter. Raises ValueError if a handler cannot be used, and DataError if a handler's validation data is
    empty, or can be read only once.
    """
    first, reader = None, engine.session.readers[EVALUATE]
    with preserve_rng():
        if val_data is not None and one_shot(val_data):
            first, val_data = reader.peek(val_data, "val_data")
        handlers = with_defaults(event_handlers, val_data, val_batches)
        events = EventDispatcher(estimator, acting_on(engine.session.world, handlers))
        validation = validating(events.handlers)
        own_data = None if validation is None else validation.val_data  # of one that the user passed
        if val_data is not None and own_data is not val_data:
            message = "val_data= is not evaluated: the ValidationHandler that was given evaluates its own"
            estimator.logger.warning(message)
        if own_data is not None and first is None:
            if own_data is not val_data:
                limit = "" if getattr(validation, "batches", None) else "ValidationHandler(…, batches=100)"
                own_data = check_evaluated(own_data, engine.session, "val_data", False, limit)
            if isinstance(own_data, TaskLoaders):
                return events, engine.first_batches(EVALUATE, own_data, "val_data")
            first, _ = reader.peek(own_data, "val_data")
    return events, first


def set_seed(state: RunState, handlers: Iterable[object], seed: int | None) -> None:
    """Note a fit's seed; a run whose checkpoints have a schedule is seeded again from it while it trains.

    Raises ValueError if a CheckpointHandler has another seed.
    """
    saving = [each for each in map(unwrapped, handlers) if isinstance(each, CheckpointHandler)]
    for other in (each.seed for each in saving if seed is not None and each.seed not in (None, seed)):
        raise ValueError(f"seed={seed} and CheckpointHandler(seed={other}) differ; leave the latter out")
    state.fit_seed = seed
    if seed is not None:  # not that of an earlier fit
        state.seed = seed if any(each.every is not None for each in saving) else None


def check_monitors(session: Any, handlers: Iterable[Any], evaluated: bool, sets: Iterable[str]) -> None:
    """Check the figures that handlers monitor, after the engine's dry run.

    Raises ValueError if a handler's `monitor` is not a figure of this run, or if its `mode` is None and the
    figure's direction is unknown. `evaluated` says whether there is validation data, and `sets` are its sets,
    if it has any. An unknown figure is accepted if a handler of the user's may record it; the handler that
    monitors it warns if none does. Raises DataError if two sets have a figure of the same name.
    """
    handlers = list(handlers)
    directions: dict[str, str | None] = {}
    for stage in (TRAIN, EVALUATE) if evaluated else (TRAIN,):
        figures = session.stages[stage].figures
        for before in [f"{each}_" for each in sets if stage == EVALUATE] or [""]:
            known = {figure_name(stage, before + name): figures.direction(name) for name in figures.names()}
            message = 'val_data: two sets have a figure "{}"; rename one of the sets'
            raise_problems(Problem("data", message.format(n)) for n in known if n in directions)
            directions.update(known)
    directions.update(dict.fromkeys(session.trainers.learning_rates()))
    if any(isinstance(unwrapped(handler), DeltaM) for handler in handlers):
        directions[DELTA_M] = "max"
    messages = []
    for handler in handlers:
        monitored, has_mode = attribute(handler, "monitor"), attribute(handler, "mode")
        kind = handler_name(handler)
        for figure in monitored if isinstance(monitored, (list, tuple)) else [monitored]:
            if not isinstance(figure, str):
                continue
            if figure not in directions:
                others = [other for other in handlers if other is not handler and not _is_own(other)]
                if others and has_mode:
                    continue
                hint = "" if evaluated else "; val_ figures need validation data"
                if others:
                    hint += f'; for one that {handler_name(others[0])} records, give mode="min" or mode="max"'
                if figure == DELTA_M:
                    hint = "; the handler DeltaM records it"
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


def start_together(
    engine: Engine, handlers: Iterable[object], log_once: Callable[[str], None], **limits: int | None
) -> None:
    """Compare spec, net, trainers, handlers and limits of all ranks, and give each its own random numbers.

    `log_once` logs what may be unintended. The first rank keeps its random generators, as if it were alone;
    the generators of all other ranks are seeded from them. Raises SpecError, on all ranks, with what differs.
    """
    session, snapshot, world = engine.session, engine.snapshot, engine.session.world
    if world.alone:
        return
    own: dict[str, Any] = {
        "versions": snapshot.versions(),
        "limits": limits,
        "handlers": _acting_everywhere(handlers),
    }
    if not session.trainers.build():  # else the first batch's check says what is wrong
        own.update(snapshot.identity())
    every: list[dict[str, Any]] = world.gather(own)
    common = [key for key in own if all(key in other for other in every)]
    trees = [{key: other[key] for key in common} for other in every]
    raise_problems(
        Problem("spec", line)
        for rank, tree in enumerate(trees)
        for line in snapshot.differing(trees[0], tree, "on rank 0", f"on rank {rank}")
    )
    if "trainers" in common and not session.shared.are_shared:
        snapshot.share_trainers()
    seed = world.from_first(int(np.random.get_state(legacy=False)["state"]["key"][0]))
    if not world.first:
        seed_everything(seed_of_rank(seed, world.rank))


def _acting_everywhere(handlers: Iterable[object]) -> dict[str, dict[str, str]]:
    """Return the handlers that act on all ranks, by name, with the options of multifit's own handlers.

    The options of users' handlers may depend on the rank, and are left out; so are loaders. A folder is
    compared by its type alone.
    """
    named = by_name(handler for handler in handlers if not attribute(handler, "first_rank_only"))
    return {name: options_of(handler) if _is_own(handler) else {} for name, handler in named.items()}


def _is_own(handler: object) -> bool:
    """Whether a handler is one of multifit's own."""
    return type(unwrapped(handler)).__module__.startswith(f"{__name__.partition('.')[0]}.")
