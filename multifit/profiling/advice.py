"""What a profile's figures clearly suggest to make a training step faster."""

from __future__ import annotations

from typing import Iterator

from .measurements import median
from .step_times import StepTimes

CLEAR = 0.2  # the share of a step below which a change might go unnoticed
IDLE, BUSY = 0.5, 0.85  # shares of a step, for the engine

Suggestion = tuple[float, str]  # the share of a step that it may gain, and the sentence


def advice(times: StepTimes) -> list[str]:
    """Return at most two sentences, the one with the most to gain first; empty if nothing is clear."""
    if not times.wall:
        return []
    suggestions = [*_data(times), *_handlers(times), *_host_metrics(times), *_not_hybridized(times)]
    # All of these make Python faster, which cannot gain more than the engine's idle time.
    clear = [(share, line) for share, line in suggestions if min(share, times.idle) >= CLEAR]
    lines = [line for _, line in sorted(clear, key=lambda suggestion: -suggestion[0])]
    return (lines or list(_engine(times)))[:2]


def _data(times: StepTimes) -> Iterator[Suggestion]:
    loader = times.part("data/loader")
    # A loader that makes MXNet's arrays takes longer in training than alone, because it waits for the engine.
    share = times.of_step(min(loader.ms, median(loader.in_training)))
    yield (
        share,
        f"the loader takes {share:.0%} of a step, and the engine is idle for {times.idle:.0%}: "
        "load in the background with DataLoader(..., num_workers=2), or with more workers if there are "
        "some already, and do work that is the same for every epoch once before training",
    )


def _handlers(times: StepTimes) -> Iterator[Suggestion]:
    for part in times.pieces("handlers"):
        share = times.of_step(part.mean)  # the mean, because a handler that runs now and then comes in bursts
        yield (
            share,
            f"{part.short_name} takes {share:.0%} of a step: if it need not run at every batch, use "
            f'Every(10, "batch", {part.short_name}(...))',
        )


def _host_metrics(times: StepTimes) -> Iterator[Suggestion]:
    for part in times.pieces("figures"):
        share = times.of_step(median(part.in_training))
        waits = f", {part.waits:.3g} ms of it waiting for the engine" if part.waits > part.ms / 10 else ""
        yield (
            share,
            f'the metric "{part.short_name}" is updated on the host, which takes {share:.0%} of a step'
            f'{waits}: MetricSpec(..., stage="evaluate") measures it in validation only; built-in metrics '
            "without a transform are summed on the device",
        )


def _not_hybridized(times: StepTimes) -> Iterator[Suggestion]:
    if times.hybridizable:
        share = times.of_step(sum(times.part(name).python_ms for name in ("forward", "backward")))
        yield (
            share,
            "the net is not hybridized, so Python calls each operator separately: net.hybridize() makes one "
            "graph of net, losses and figures",
        )


def _engine(times: StepTimes) -> Iterator[str]:
    busy = 1 - times.idle
    if busy >= BUSY:
        longest = times.operators[0]
        share = longest.ms / times.engine / len(times.devices)
        yield (
            f"the engine is busy for {busy:.0%} of a step, so its operators are the limit; the longest is "
            f"{longest.name} with {share:.0%} of their time"
        )
    elif times.operators and times.idle >= IDLE and times.python >= IDLE * times.wall:
        yield (
            f"the engine is idle for {times.idle:.0%} of a step, and Python is the limit: "
            "a larger batch would take little more time"
        )
