"""What a profile's figures clearly say could be done about a step's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

from .parts import Part, median

if TYPE_CHECKING:
    from .profile import Profile

__all__ = ["advice"]

CLEAR = 0.2  # of a step: below that a change might not be seen
IDLE, BUSY = 0.5, 0.85  # of a step, for the engine


def advice(profile: Profile) -> list[str]:
    """Return at most two sentences, the one with the most to gain first; none where nothing is clear."""
    if not profile.wall:
        return []
    found = [*_data(profile), *_handlers(profile), *_host_metrics(profile), *_not_hybridized(profile)]
    # all these make Python faster, which gains no more than the engine is idle
    clear = [(share, line) for share, line in found if min(share, profile.idle) >= CLEAR]
    lines = [line for _, line in sorted(clear, key=lambda each: -each[0])]
    return (lines or list(_engine(profile)))[:2]


def _data(profile: Profile) -> Iterator[tuple[float, str]]:
    loader = profile.part("data/loader")
    # what it takes longer in training than by itself is waiting for the engine: arrays of MXNet's are made
    share = min(loader.ms, median(loader.undisturbed)) / profile.wall
    yield (
        share,
        (
            f"the loader takes {share:.0%} of a step, and the engine is idle for {profile.idle:.0%}: "
            "DataLoader(..., num_workers=2) loads beside the training, or more workers where there are some; "
            "work done for every sample anew may be done once, before the training"
        ),
    )


def _handlers(profile: Profile) -> Iterator[tuple[float, str]]:
    for part in _within(profile, "handlers"):
        share = part.mean / profile.wall  # the mean: a handler with a rhythm comes in bursts
        name = part.name.partition("/")[2]
        way = f'Every(10, "batch", {name}(...))'
        yield (
            share,
            f"{name} takes {share:.0%} of a step; what it does at a batch's begin or end can be rarer: {way}",
        )


def _host_metrics(profile: Profile) -> Iterator[tuple[float, str]]:
    for part in _within(profile, "figures"):
        share = median(part.undisturbed) / profile.wall
        waits = f", {part.waits:.3g} ms of it waiting for the engine" if part.waits > part.ms / 10 else ""
        yield (
            share,
            (
                f'the metric "{part.name.partition("/")[2]}" is updated on the host, which takes {share:.0%} '
                f'of a step{waits}: MetricSpec(..., stage="evaluate") measures it in validation only; stock '
                "metrics without a transform are summed on the device"
            ),
        )


def _not_hybridized(profile: Profile) -> Iterator[tuple[float, str]]:
    if profile.hybridizable:
        share = sum(profile.part(name).python_ms for name in ("forward", "backward")) / profile.wall
        yield (
            share,
            (
                "the net is not hybridized, and Python hands the engine each operator by itself: "
                "net.hybridize() makes one graph of net, losses and figures"
            ),
        )


def _engine(profile: Profile) -> Iterator[str]:
    busy = 1 - profile.idle
    if busy >= BUSY:
        first = profile.operators[0]
        yield (
            f"the engine is busy for {busy:.0%} of a step: its operators are the limit, first of all "
            f"{first.name} with {first.ms / profile.engine / len(profile.devices):.0%} of their time"
        )
    elif profile.operators and profile.idle >= IDLE and profile.python >= IDLE * profile.wall:
        yield (
            f"the engine is idle for {profile.idle:.0%} of a step, as Python is the limit: "
            "a larger batch costs little more time"
        )


def _within(profile: Profile, name: str) -> list[Part]:
    return [part for part in profile.parts if part.name.startswith(name + "/")]
