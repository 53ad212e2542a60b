"""A profile as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ..errors import counted
from ..tables import table
from .parts import Part

if TYPE_CHECKING:
    from .profile import Profile

__all__ = ["NEGLIGIBLE", "summary"]

WIDTH = 24  # of a whole bar
EIGHTHS = " ▏▎▍▌▋▊▉"
NEGLIGIBLE = 0.005  # ms: pieces of a part below that are left out


def summary(profile: Profile, operators: int) -> str:
    """Return the table of the parts, what overlaps, the longest operators and the advice.

    Parameters
    ----------
    profile : Profile
        What was measured.
    operators : int
        How many operators at most.
    """
    where = ", ".join(profile.devices)
    step = f"a step of {counted(profile.samples, 'sample')} on {where} takes {profile.wall:.3g} ms"
    over = f"{counted(profile.batches, 'batch', 'batches')}, nothing waited for"
    blocks = [f"{step}   ({over})\n{profile.how}".rstrip(), _parts(profile), _overlap(profile)]
    if profile.operators and operators:
        blocks.append(_operators(profile, operators))
    blocks += [textwrap.fill(note, 100) for note in profile.notes]
    blocks += [
        textwrap.fill(line, 100, initial_indent="=> ", subsequent_indent="   ") for line in profile.advice
    ]
    return "\n\n".join(blocks)


def _parts(profile: Profile) -> str:
    header = (
        "part",
        "ms".rjust(8),
        "quartiles".center(16),
        "mean".rjust(8),
        "share",
        "",
        "Python".rjust(8),
        "waits".rjust(8),
    )
    rows = [_row(profile, part) for part in profile.parts if part.whole or _counts(part)]
    rows.append(["sum of the parts", _number(profile.total), "", "", "", "", _number(profile.python)])
    return table(header, rows, 110)


def _row(profile: Profile, part: Part) -> list[str]:
    name = part.name if part.whole else "  " + part.name.partition("/")[2]
    share, (low, high) = profile.share(part), part.quartiles
    bar = _bar(share) if part.whole else ""
    python = _number(part.python_ms) if part.python else ""
    waits = _number(part.waits) if part.undisturbed else ""
    quartiles = f"{_number(low)}{_number(high)}"
    return [name, _number(part.ms), quartiles, _number(part.mean), f"{share:4.0%}", bar, python, waits]


def _overlap(profile: Profile) -> str:
    lines = [
        "ms: each part by itself, until the engine was done; median, quartiles and mean over the batches.",
        '"Python" works so long in training, where nothing waits that need not, and "waits" so long for the',
        f"engine, or a loader's workers. Reading the figures, once an epoch: {profile.reading:.2g} ms.",
        "",
        f"of {profile.wall:.3g} ms Python works {_of(profile.python, profile.wall)}"
        + (f", the engine {_of(profile.engine, profile.wall)}" if profile.operators else ""),
    ]
    return "\n".join(lines)


def _operators(profile: Profile, count: int) -> str:
    every = profile.engine * len(profile.devices) or 1.0
    rows = [
        [
            each.name,
            each.kind,
            f"{each.count:g}".rjust(6),
            _number(each.ms),
            f"{1000 * each.ms / each.count:.1f}".rjust(8),
            f"{each.ms / every:4.0%}",
        ]
        for each in profile.operators[:count]
    ]
    header = ("operator", "kind", " count", "ms".rjust(8), "µs each".rjust(8), "share")
    rest = len(profile.operators) - count
    return table(header, rows) + (f"\n… and {rest} more" if rest > 0 else "")


def _counts(part: Part) -> bool:
    return max(part.ms, part.mean) >= NEGLIGIBLE


def _bar(share: float) -> str:
    whole, eighths = divmod(round(share * WIDTH * 8), 8)
    return ("█" * whole + EIGHTHS[eighths]).rstrip().ljust(WIDTH)


def _number(ms: float) -> str:
    return f"{ms:.3f}".rjust(8) if ms < 10 else f"{ms:.1f}".rjust(8)


def _of(ms: float, wall: float) -> str:
    return f"{ms:.3g} ms ({ms / wall:.0%})" if wall else f"{ms:.3g} ms"
