"""What of a forward pass is the net, what the losses, and what the figures within its graph."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...errors import raise_problems
from ...profile import Part
from ..data.batches import Batch
from ..engine import Engine
from ..execution.stage import Stage
from .stopwatch import Stopwatch

__all__ = ["pieces_of_forward"]


def pieces_of_forward(engine: Engine, batches: Sequence[Batch], watch: Stopwatch, count: int) -> list[Part]:
    """Return the parts within the forward pass, told by running it with and without them.

    Within one graph nothing can be seen by itself. So the net runs alone, with its losses, and with losses
    and figures, in turns, and the pieces are the differences.

    Parameters
    ----------
    engine : Engine
        Its training stage has run already.
    batches : sequence of Batch
        Run over and over.
    watch : Stopwatch
        One that drains.
    count : int
        How often each runs.

    Returns
    -------
    list of Part
        None where handlers change the outputs: they would be asked more often than there are batches.
    """
    stage = engine.stages["train"]
    if engine.hooks is not None and engine.hooks.active("change_outputs"):
        return []
    runs = {"net": lambda batch: _net(stage, batch), "all": lambda batch: stage.run(batch, engine.state)}
    if any(measure.on_device for measure in stage.measures):
        bare = Stage(engine.net, engine.spec, "train", [], engine.contexts, engine.hooks)
        raise_problems(bare.bind(batches[0]))
        runs["losses"] = lambda batch: bare.run(batch, engine.state)
    for batch in [*batches, *batches]:  # the first of each form runs without a graph, the second traces it
        for run in runs.values():
            run(batch)
    watch.drain()
    order = list(runs)
    for i in range(count):
        for name in order[i % len(order) :] + order[: i % len(order)]:  # none is always the first
            with watch(name):
                held = runs[name](batches[i % len(batches)])
            del held
        watch.lap()
    return _differences([{name: lap[(name,)] for name in order} for lap in watch.laps])


def _net(stage: Stage, batch: Batch) -> list[Any]:
    found = []
    with stage.recording():
        for context, slots in zip(batch.contexts, batch.slots):
            with context:
                found.append(stage.network(slots))
    return found


def _differences(laps: Sequence[Mapping[str, list[float]]]) -> list[Part]:
    ways = [("net", "net", None)]
    if "losses" in laps[0]:
        ways += [("losses", "losses", "net"), ("figures", "all", "losses")]
    else:
        ways += [("losses", "all", "net")]
    parts = []
    for piece, with_it, without in ways:
        both = [
            [max(0.0, lap[with_it][i] - (lap[without][i] if without else 0.0)) for lap in laps]
            for i in (0, 1)
        ]
        parts.append(Part(f"forward/{piece}", tuple(both[1]), tuple(map(min, *both))))
    return parts
