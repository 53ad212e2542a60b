"""The figures that handlers monitor, checked by name before the first update."""

from __future__ import annotations

from typing import Any, Iterable

from ..errors import names, suggest
from ..gluon.engine import Engine
from ..stages import EVALUATE, TRAIN, figure_name

__all__ = ["check_monitors"]


def check_monitors(engine: Engine, handlers: Iterable[Any], evaluated: bool) -> None:
    """Check the figures that handlers monitor, after the engine's dry run.

    Raises ValueError if a handler's `monitor` is not a figure of this run, or if its `mode` is None and the
    figure's direction is unknown. `evaluated` says whether there is validation data.
    """
    directions = {}
    for stage in (TRAIN, EVALUATE) if evaluated else (TRAIN,):
        figures = engine.stages[stage].figures
        directions.update({figure_name(stage, name): figures.direction(name) for name in figures.names()})
    directions.update(dict.fromkeys(engine.trainers.get().learning_rates()))
    messages = []
    for handler in handlers:
        monitor = getattr(handler, "monitor", None)
        if not isinstance(monitor, str):
            continue
        kind = type(handler).__name__
        if monitor not in directions:
            hint = "" if evaluated else "; val_ figures need validation data"
            near = suggest(monitor, directions)
            messages.append(
                f'{kind}: there is no figure "{monitor}"{near}; figures are {names(directions)}{hint}'
            )
        elif directions[monitor] is None and getattr(handler, "mode", None) is None:
            messages.append(
                f'{kind}: it is not known whether "{monitor}" is better low or high; '
                'say mode="min" or "max" in the MetricSpec or in the handler'
            )
    if messages:
        raise ValueError("\n".join(messages))
