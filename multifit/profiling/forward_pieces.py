"""The times of the net, the losses and the figures within a forward pass."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ..engines import Runner
from .measurements import Part
from .stopwatch import Stopwatch


def forward_pieces(runner: Runner, batches: Sequence[Any], watch: Stopwatch, count: int) -> list[Part]:
    """Time the parts of a forward pass by running it with and without them.

    Inside one graph, nothing can be timed separately. So the net runs alone, with its losses, and with losses
    and figures, in turns, and the pieces are the differences. Each variant runs `count` times, over the same
    `batches` again and again. The training stage must have run already, and `watch` must wait for the engine.
    Returns no parts if handlers change the outputs: they would be called more often than there are batches.
    """
    variants = runner.forward_variants(batches[0])
    if not variants:
        return []
    # the first batch of each signature runs without a graph, the second traces it
    for batch in (*batches, *batches):
        for run in variants.values():
            run(batch)
    watch.drain()
    names = list(variants)
    for i in range(count):
        for name in names[i % len(names) :] + names[: i % len(names)]:  # each is first in turn
            with watch(name):
                result = variants[name](batches[i % len(batches)])
            del result
        watch.lap()
    return _differences([{name: lap[(name,)] for name in names} for lap in watch.laps])


def _differences(laps: Sequence[Mapping[str, list[float]]]) -> list[Part]:
    """Return the pieces: the net alone, then what each variant takes beyond the one with a piece less."""
    compared: list[tuple[str, str, str | None]] = [("net", "net", None)]
    if "losses" in laps[0]:
        compared += [("losses", "losses", "net"), ("figures", "all", "losses")]
    else:
        compared += [("losses", "all", "net")]
    parts = []
    for piece, more, less in compared:
        python, whole = (
            [max(0.0, lap[more][i] - (lap[less][i] if less else 0.0)) for lap in laps] for i in (0, 1)
        )
        parts.append(Part(f"forward/{piece}", tuple(whole), tuple(map(min, python, whole))))
    return parts
