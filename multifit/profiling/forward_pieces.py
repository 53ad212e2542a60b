"""The times of the net, the losses and the figures within a forward pass."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ..errors import raise_problems
from ..gluon.data.batches import Batch
from ..gluon.engine import Engine
from ..gluon.execution.stage import Stage
from ..gluon.validation.first_batch import check_first_batch
from .measurements import Part
from .stopwatch import Stopwatch

__all__ = ["forward_pieces"]


def forward_pieces(engine: Engine, batches: Sequence[Batch], watch: Stopwatch, count: int) -> list[Part]:
    """Time the parts of a forward pass by running it with and without them.

    Inside one graph, nothing can be timed separately. So the net runs alone, with its losses, and with losses
    and figures, in turns, and the pieces are the differences. The engine's training stage must have run
    already; `batches` run over and over, each variant `count` times; `watch` must drain. Returns no parts if
    handlers change the outputs: they would be called more often than there are batches.
    """
    stage = engine.stages["train"]
    if engine.hooks is not None and engine.hooks.active("change_outputs"):
        return []
    runs = {
        "net": lambda batch: _run_net(stage, batch),
        "all": lambda batch: stage.run(batch, engine.state),
    }
    if stage.figures.on_device:
        bare = engine.new_stage("train", [])
        raise_problems(check_first_batch(bare, batches[0])[1])
        runs["losses"] = lambda batch: bare.run(batch, engine.state)
    for batch in [
        *batches,
        *batches,
    ]:  # the first of each signature runs without a graph, the second traces it
        for run in runs.values():
            run(batch)
    watch.drain()
    order = list(runs)
    for i in range(count):
        for name in order[i % len(order) :] + order[: i % len(order)]:  # each is first in turn
            with watch(name):
                result = runs[name](batches[i % len(batches)])
            del result
        watch.lap()
    return _differences([{name: lap[(name,)] for name in order} for lap in watch.laps])


def _run_net(stage: Stage, batch: Batch) -> list[Any]:
    outputs = []
    with stage.recording():
        for context, slots in zip(batch.contexts, batch.slots):
            with context:
                outputs.append(stage.network(slots))
    return outputs


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
