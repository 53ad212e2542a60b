"""A profile as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ..plots import new_figure
from .measurements import KINDS, Part
from .step_times import StepTimes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OPERATORS = 12
COLOURS = dict(zip(KINDS, ("C0", "C1", "C2", "0.6")))
PYTHON, ENGINE = "#0f4c75", "#8fc1e3"
# lines pass behind the labels
BACKGROUND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
LABEL: dict[str, Any] = {"va": "center", "fontsize": 8, "color": "0.25", "bbox": BACKGROUND}
ROW = 0.27  # inches per bar


def plot(times: StepTimes) -> Figure:
    """Draw the parts of a step above the longest operators; raises ImportError without matplotlib."""
    parts = times.notable_parts
    operators = times.operators[:OPERATORS]
    heights = [len(parts) + 3.5, *([len(operators) + 3.0] if operators else [])]
    figure = new_figure(8.0, ROW * sum(heights) + 0.6)
    panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    devices = ", ".join(times.devices)
    figure.suptitle(f"a step of {times.samples} samples on {devices}: {times.wall:.3g} ms", fontsize=12)
    _draw_parts(panels[0], times, parts)
    if operators:
        _draw_operators(panels[1], times)
    return figure


def _draw_parts(axes: Axes, times: StepTimes, parts: Sequence[Part]) -> None:
    """Draw the parts as stairs: each starts where the one before it ended, with its pieces inside it."""
    part_start = piece_start = right = 0.0
    for row, part in enumerate(parts):
        left = piece_start if part.is_piece else part_start
        end = piece_start = left + part.ms
        _draw_bar(axes, row, left, part)
        text, right = f"{part.ms:.3g} ms", max(right, end)
        if not part.is_piece:
            low, high = part.quartiles
            axes.hlines(row, left + low, left + high, color="0.15", linewidth=1.2)
            text, part_start, piece_start = f"{text}  {times.share(part):.0%}", end, left
            end = max(end, left + high)
        axes.annotate(text, (end, row), (4, 0), textcoords="offset points", **LABEL)
    _style(axes, [part.short_name for part in parts])
    for label, part in zip(axes.get_yticklabels(), parts):
        label.set_color("0.45" if part.is_piece else "black")
    axes.axvline(
        times.wall, color="C3", linestyle="--", linewidth=1.2, zorder=1, label="a whole step in training"
    )
    _title(axes, "each part alone, until the engine has finished")
    axes.set_xlabel("ms (medians; thin lines: quartiles)", fontsize=9)
    axes.set_xlim(0, 1.16 * max(right, times.wall))
    _legend(axes, {"Python": PYTHON, "engine and waiting": ENGINE})


def _draw_bar(axes: Axes, row: int, left: float, part: Part) -> None:
    height, alpha = (0.4, 0.5) if part.is_piece else (0.74, 1.0)
    python = min(part.python_ms, part.ms)
    axes.barh(row, python, height, left=left, color=PYTHON, alpha=alpha)
    axes.barh(row, part.ms - python, height, left=left + python, color=ENGINE, alpha=alpha)


def _draw_operators(axes: Axes, times: StepTimes) -> None:
    operators = times.operators[:OPERATORS]
    colours = [COLOURS[operator.kind] for operator in operators]
    axes.barh(range(len(operators)), [operator.ms for operator in operators], 0.72, color=colours)
    for row, operator in enumerate(operators):
        text = f"{operator.ms:.3g} ms  ({operator.count:g} per step)"
        axes.annotate(text, (operator.ms, row), (4, 0), textcoords="offset points", **LABEL)
    _style(axes, [operator.name for operator in operators])
    _title(axes, f"the engine's operators: {times.engine:.3g} ms per step on each device")
    axes.set_xlabel("ms per step, all devices", fontsize=9)
    axes.set_xlim(0, 1.3 * operators[0].ms or 1)
    kinds = {operator.kind for operator in operators}
    _legend(axes, {kind: COLOURS[kind] for kind in KINDS if kind in kinds})


def _style(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(alpha=0.25, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, loc="left", pad=22)  # above the legend


def _legend(axes: Axes, colours: Mapping[str, str]) -> None:
    """Draw the legend above the axes: inside, it could cover bars, or their labels, of any row."""
    for name, colour in colours.items():
        axes.barh(0, 0, color=colour, label=name)
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(KINDS))
