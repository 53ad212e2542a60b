"""What the ranks of a fit compare and agree on before its first batch."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import numpy as np

from ..engines import Runner
from ..errors import Problem, raise_problems
from ..events import attribute, unwrapped
from ..seeding import seed_everything, seed_of_rank
from .handler_states import by_name, options_of


def start_together(
    runner: Runner, handlers: Iterable[object], log_once: Callable[[str], None], **limits: int | None
) -> None:
    """Compare spec, net, trainers, handlers and limits of all ranks, and give each its own random numbers.

    `log_once` logs what may be unintended. The first rank keeps its random generators, as if it were alone;
    the generators of all other ranks are seeded from them. Raises SpecError, on all ranks, with what differs.
    """
    engine, snapshot, world = runner.engine, runner.snapshot, runner.engine.world
    if world.alone:
        return
    own: dict[str, Any] = {
        "versions": snapshot.versions(),
        "limits": limits,
        "handlers": _acting_everywhere(handlers),
    }
    if not engine.trainers.build():  # else the first batch's check says what is wrong
        own.update(snapshot.identity())
    every: list[dict[str, Any]] = world.gather(own)
    common = [key for key in own if all(key in other for other in every)]
    trees = [{key: other[key] for key in common} for other in every]
    raise_problems(
        Problem("spec", line)
        for rank, tree in enumerate(trees)
        for line in snapshot.differing(trees[0], tree, "on rank 0", f"on rank {rank}")
    )
    if "trainers" in common and not engine.shared.are_shared:
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
    return {name: _common_options(handler) if _is_own(handler) else {} for name, handler in named.items()}


def _common_options(handler: object) -> dict[str, str]:
    return {key: text for key, text in options_of(handler).items() if key != "val_data"}


def _is_own(handler: object) -> bool:
    """Whether a handler is one of multifit's own."""
    return type(unwrapped(handler)).__module__.startswith(f"{__name__.partition('.')[0]}.")
