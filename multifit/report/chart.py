"""A line chart as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..history import figure_text
from .markup import Markup, join, tag

__all__ = ["Line", "chart", "ticks"]

WIDTH, HEIGHT = 370.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 10.0, 8.0, 24.0  # margins
# Okabe and Ito's palette for all kinds of colour vision, its yellow darkened to be seen on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#000000")
SHAPES = ("circle", "square", "triangle", "diamond")  # a round of colours each


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes
    ----------
    label : str
        What the legend says.
    values : sequence of float
        One per epoch; NaN and infinite ones are left out.
    style : int
        Which colour and which marker: equal numbers look alike, different ones differ up to 31.
    dashed : bool
        Whether the line is dashed.
    """

    label: str
    values: Sequence[float]
    style: int = 0
    dashed: bool = False

    @property
    def colour(self) -> str:
        """The line's colour."""
        return COLOURS[self.style % len(COLOURS)]

    @property
    def points(self) -> list[tuple[int, float]]:
        """What was measured: the epoch, from 1, and the value."""
        return [(epoch, value) for epoch, value in enumerate(self.values, 1) if math.isfinite(value)]


def chart(title: str, lines: Sequence[Line]) -> Markup:
    """Return a figure with a title, the curves over the epochs and a legend."""
    points = [point for line in lines for point in line.points]
    epochs = [epoch for epoch, _ in points] or [1]
    low, high = _range([value for _, value in points])
    across, up = (
        _Scale(min(epochs), max(epochs), LEFT, WIDTH - RIGHT),
        _Scale(low, high, HEIGHT - BOTTOM, TOP),
    )
    drawing = tag(
        "svg",
        *_axes(across, up),
        *(part for line in lines for part in _drawn(line, across, up)),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=f"{title} over the epochs",
    )
    entries = (tag("span", _swatch(line), line.label) for line in lines)
    return tag(
        "figure", tag("figcaption", title), drawing, tag("div", *entries, class_="legend"), class_="chart"
    )


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Return about `count` round numbers from `low` to `high`: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= raw), power * 10)
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


class _Scale:
    """Where a number stands."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = low, high
        self._begin, self._end = begin, end

    def __call__(self, number: float) -> float:
        share = 0.5 if self.high == self.low else (number - self.low) / (self.high - self.low)
        return round(self._begin + share * (self._end - self._begin), 1)


def _range(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = 0.04 * (high - low) or 0.1 * abs(high) or 1.0  # curves do not stick to the frame
    return low - room, high + room


def _axes(across: _Scale, up: _Scale) -> Iterator[Markup]:
    bottom = HEIGHT - BOTTOM
    for value in ticks(up.low, up.high):
        y = up(value)
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", _tick(value), x=LEFT - 5, y=y + 3.5, text_anchor="end")
    for epoch in ticks(across.low, across.high, 6, whole=True):
        yield tag("text", f"{epoch:.0f}", x=across(epoch), y=bottom + 15, text_anchor="middle")
    yield tag("polyline", points=f"{LEFT},{TOP} {LEFT},{bottom} {WIDTH - RIGHT},{bottom}", class_="axis")


def _tick(value: float) -> str:
    return "0" if abs(value) < 1e-12 else f"{value:.4g}"


def _drawn(line: Line, across: _Scale, up: _Scale) -> Iterator[Markup]:
    points = [(across(epoch), up(value)) for epoch, value in line.points]
    if len(points) > 1:
        yield tag(
            "polyline",
            points=" ".join(f"{x:g},{y:g}" for x, y in points),
            stroke=line.colour,
            stroke_dasharray="5 3" if line.dashed else None,
            class_="curve",
        )
    few = len(points) <= 12
    if few or line.style >= len(COLOURS):
        every = max(1, len(points) // 8)
        for (x, y), (epoch, value) in list(zip(points, line.points))[:: 1 if few else every]:
            told = tag("title", f"{line.label}, epoch {epoch}: {figure_text(value)}")
            yield _marker(line, x, y, told)


def _marker(line: Line, x: float, y: float, told: Markup | None = None) -> Markup:
    shape = SHAPES[line.style // len(COLOURS) % len(SHAPES)]
    if shape == "circle":
        return tag("circle", *filter(None, [told]), cx=x, cy=y, r=2.4, fill=line.colour)
    corners = {
        "square": ((-2.6, -2.6), (2.6, -2.6), (2.6, 2.6), (-2.6, 2.6)),
        "triangle": ((0, -3.4), (3.2, 2.4), (-3.2, 2.4)),
        "diamond": ((0, -3.6), (3.6, 0), (0, 3.6), (-3.6, 0)),
    }[shape]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return tag("polygon", *filter(None, [told]), points=points, fill=line.colour)


def _swatch(line: Line) -> Markup:
    dash = "5 3" if line.dashed else None
    stroke = tag("line", x1=0, x2=22, y1=5, y2=5, stroke=line.colour, stroke_dasharray=dash, class_="curve")
    marker = _marker(line, 11, 5) if line.style >= len(COLOURS) else None
    return tag("svg", join(stroke, marker), viewBox="0 0 22 10", width=22, height=10)
