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
    lines = [line for _, line in sorted(found, key=lambda each: -each[0])]
    return (lines or list(_engine(profile)))[:2]


def _data(profile: Profile) -> Iterator[tuple[float, str]]:
    loader = profile.part("data/loader")
    share = median(loader.undisturbed) / profile.wall
    # a loader is no limit where Python has the time to wait for the engine afterwards
    if share >= CLEAR and profile.wall - profile.python < share * profile.wall / 2:
        yield share, (
            f"the loader takes {share:.0%} of a step, and the engine has nothing to do meanwhile: "
            "DataLoader(..., num_workers=2) loads beside the training, or more workers where there are some; "
            "work done for every sample anew may be done once, before the training"
        )


def _handlers(profile: Profile) -> Iterator[tuple[float, str]]:
    for part in _within(profile, "handlers"):
        # the mean: a handler with a rhythm comes in bursts
        share = part.mean / profile.wall
        if share >= CLEAR:
            name = part.name.partition("/")[2]
            yield share, f'{name} takes {share:.0%} of a step: Every(10, "batch", {name}(...)) calls it less often'


def _host_metrics(profile: Profile) -> Iterator[tuple[float, str]]:
    for part in _within(profile, "figures"):
        share = max(median(part.undisturbed), part.ms) / profile.wall
        if share >= CLEAR:
            waits = f", {part.waits:.3g} ms of it waiting for the engine" if part.waits > part.ms / 10 else ""
            yield share, (
                f'the metric "{part.name.partition("/")[2]}" is updated on the host, which takes {share:.0%} '
                f'of a step{waits}: MetricSpec(..., stage="evaluate") measures it in validation only; stock '
                "metrics without a transform are summed on the device"
            )


def _not_hybridized(profile: Profile) -> Iterator[tuple[float, str]]:
    parts = [profile.part("forward"), profile.part("backward")]
    share = sum(part.python_ms for part in parts) / profile.wall
    if profile.hybridizable and share >= CLEAR:
        yield share, (
            "the net is not hybridized, and Python hands the engine each operator by itself: net.hybridize() "
            "makes one graph of net, losses and figures"
        )


def _engine(profile: Profile) -> Iterator[str]:
    busy = profile.engine / profile.wall
    if busy >= BUSY:
        first = profile.operators[0]
        yield (
            f"the engine is busy for {min(busy, 1):.0%} of a step: its operators are the limit, first of all "
            f"{first.name} with {first.ms / profile.engine / len(profile.devices):.0%} of their time"
        )
    elif profile.operators and busy <= 1 - IDLE and profile.python >= IDLE * profile.wall:
        yield (
            f"the engine is idle for {1 - busy:.0%} of a step, as Python is the limit: "
            "a larger batch costs little more time"
        )


def _within(profile: Profile, name: str) -> list[Part]:
    return [part for part in profile.parts if part.name.startswith(name + "/")]
