"""Make matplotlib figures, draw panels of lines over the epochs, and convert them to SVG."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping, Sequence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
LARGEST = 1e300  # matplotlib computes with sums and multiples of the values
MANY = 8  # a longer legend goes below the axes
# Okabe and Ito's palette for all kinds of colour vision, its yellow darkened to be seen on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#000000")
MARKERS = ["", "o", "s", "^", "D", "v", "P", "X", "*", "<", ">"]  # one for each round of colours


@dataclass(frozen=True)
class Line:
    """One line of a panel; values that cannot be drawn are left out."""

    label: str
    values: Sequence[float]  # one per epoch
    style: int  # colour and marker; lines of equal style look alike, unless only one is dashed
    dashed: bool  # and pale, as training is


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure, sizes in inches, that belongs to no window.

    Raises ImportError without matplotlib, or with one that its environment keeps from being imported.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from error
    except ValueError as error:  # matplotlib reads the environment when it is imported
        raise ImportError(f"matplotlib cannot be imported, perhaps because of MPLBACKEND: {error}") from error
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.1))  # between rows of axes


def to_svg(figure: Figure) -> bytes:
    """Return a figure as an SVG file. Equal figures give equal files."""
    from matplotlib import rc_context

    data = io.BytesIO()
    with rc_context({"svg.hashsalt": "multifit"}):  # by default, every file has ids of its own
        figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()


def can_draw(value: float) -> bool:
    """Return whether a value is a number that matplotlib can draw."""
    return abs(value) <= LARGEST  # NaN is not


def draw(panels: Mapping[str, Sequence[Line]]) -> Figure:
    """Draw the lines of each panel, by its title, in a grid; ImportError without matplotlib."""
    columns = min(COLUMNS, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    below = [math.ceil(len(lines) / 3) for lines in panels.values() if len(lines) > MANY]  # rows of legends
    figure = new_figure(4.4 * columns, (3.1 + 0.15 * max(below, default=0)) * rows)
    for number, (title, lines) in enumerate(panels.items(), 1):
        draw_panel(figure.add_subplot(rows, columns, number), title, lines)
    if not panels:
        figure.text(0.5, 0.5, "nothing was measured", ha="center", va="center")
    return figure


def draw_panel(axes: Axes, title: str, lines: Sequence[Line]) -> None:
    """Draw lines over the epochs, with a legend."""
    styles = len({line.style for line in lines})
    for line in lines:
        _draw_line(axes, line, styles)
    axes.set_title(title, fontsize=11, parse_math=False)  # names may hold a $
    axes.set_xlabel("epoch", fontsize=9)
    axes.locator_params(axis="x", integer=True)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) <= MANY:
        legend = axes.legend(fontsize=7, frameon=False)
    else:
        legend = axes.legend(
            fontsize=6, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18)
        )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_line(axes: Axes, line: Line, styles: int) -> None:
    epochs = [epoch for epoch, value in enumerate(line.values, 1) if can_draw(value)]
    marker_round, colour = divmod(line.style, len(COLOURS))
    few = len(epochs) <= 12 and styles <= len(COLOURS)
    axes.plot(
        epochs,
        [line.values[epoch - 1] for epoch in epochs],
        color=COLOURS[colour],
        linestyle="--" if line.dashed else "-",
        marker=MARKERS[marker_round % len(MARKERS)] or ("o" if few else ""),
        markevery=max(1, len(epochs) // 12),
        markersize=3,
        alpha=0.65 if line.dashed else 1.0,
        label=line.label if not line.label.startswith("_") else f" {line.label}",  # legends hide "_..."
    )
