"""A profile as text."""

from __future__ import annotations

import textwrap

from ..errors import counted
from ..tables import table, terminal_width
from .advice import advice
from .measurements import Operator, Part
from .step_times import StepTimes

BAR = 16  # characters of a whole bar
ROOM_FOR_BARS = 100  # narrower terminals show no bars
EIGHTHS = " ▏▎▍▌▋▊▉"
LEGEND = (
    "ms: the part alone, until the engine has finished (median, quartiles and mean of the batches). "
    "Python: the time that Python works in training, without extra synchronisation. "
    "waits: the time that it waits for the engine or for the loader's workers. "
    "Reading the figures, once per epoch: {:.3g} ms."
)


def summary(times: StepTimes, operators: int) -> str:
    """Return a table of the parts, what overlaps, at most `operators` operators and the advice."""
    blocks = [_title(times), _parts(times), _fill(LEGEND.format(times.reading)), _fill(_overlap(times))]
    if times.operators and operators:
        blocks.append(_operators(times, operators))
    blocks += map(_fill, times.notes)
    blocks += [_fill(line, "=> ") for line in advice(times)]
    return "\n\n".join(blocks)


def _title(times: StepTimes) -> str:
    samples, batches = counted(times.samples, "sample"), counted(times.batches, "batch", "batches")
    step = f"a step of {samples} on {', '.join(times.devices)} takes {times.wall:.3g} ms ({batches})"
    return "\n".join([step, *([_fill(times.how)] if times.how else [])])


def _parts(times: StepTimes) -> str:
    headers = ["part", "ms", "25 %", "75 %", "mean", "Python", "waits", "share"]
    rows = [_row(times, part) for part in times.notable_parts]
    if terminal_width() >= ROOM_FOR_BARS:
        headers.append("")
        for row, part in zip(rows, times.notable_parts):
            row.append("" if part.is_piece else _bar(times.share(part)))
    rows.append(["sum of the parts", _number(times.total), "", "", "", _number(times.python)])
    return table(headers, rows)


def _row(times: StepTimes, part: Part) -> list[str]:
    low, high = part.quartiles
    return [
        f"  {part.short_name}" if part.is_piece else part.name,
        _number(part.ms),
        _number(low),
        _number(high),
        _number(part.mean),
        _number(part.python_ms) if part.python else "",
        _number(part.waits) if part.in_training else "",
        f"{times.share(part):.0%}",
    ]


def _overlap(times: StepTimes) -> str:
    engine = f" and the engine for {_of(times.engine, times.wall)}" if times.operators else ""
    return f"of {times.wall:.3g} ms, Python works for {_of(times.python, times.wall)}{engine}"


def _operators(times: StepTimes, count: int) -> str:
    total = times.engine * len(times.devices) or 1.0
    headers = ("operator", "kind", "count", "ms", "µs each", "share")
    rows = [_operator_row(operator, total) for operator in times.operators[:count]]
    rest = len(times.operators) - count
    return table(headers, rows) + (f"\n… and {rest} more" if rest > 0 else "")


def _operator_row(operator: Operator, total: float) -> list[str]:
    return [
        operator.name,
        operator.kind,
        f"{operator.count:g}",
        _number(operator.ms),
        f"{1000 * operator.ms / operator.count:.1f}",
        f"{operator.ms / total:.0%}",
    ]


def _bar(share: float) -> str:
    whole, eighths = divmod(round(share * BAR * 8), 8)
    return ("█" * whole + EIGHTHS[eighths]).rstrip()


def _number(ms: float) -> str:
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}"


def _of(ms: float, wall: float) -> str:
    if ms > wall > 0:  # operators run side by side, and other steps were measured
        return "all of it"
    return f"{ms:.3g} ms ({ms / wall:.0%})" if wall else f"{ms:.3g} ms"


def _fill(text: str, indent: str = "") -> str:
    width = min(100, terminal_width())
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=" " * len(indent))
