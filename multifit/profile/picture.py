"""A profile as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..plots import new_figure
from .parts import KINDS, Part
from .text import NEGLIGIBLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .profile import Profile

__all__ = ["draw"]

OPERATORS = 12
COLOURS = dict(zip(KINDS, ("C0", "C1", "C2", "0.6")))
PYTHON, ENGINE = "#0f4c75", "#8fc1e3"
PLATE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}  # where a line passes behind
SMALL = {"va": "center", "fontsize": 8, "color": "0.25", "bbox": PLATE}
ROW = 0.27  # inches for a bar


def draw(profile: Profile) -> Figure:
    """Draw the parts of a step above the longest operators.

    Parameters
    ----------
    profile : Profile
        What was measured.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``savefig``.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    parts = [part for part in profile.parts if part.whole or max(part.ms, part.mean) >= NEGLIGIBLE]
    operators = profile.operators[:OPERATORS]
    heights = [len(parts) + 2.5, *([len(operators) + 2.0] if operators else [])]
    figure = new_figure(8.0, ROW * sum(heights) + 0.6)
    panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    where = ", ".join(profile.devices)
    figure.suptitle(f"a step of {profile.samples} samples on {where}: {profile.wall:.3g} ms", fontsize=12)
    _parts(panels[0], profile, parts)
    if operators:
        _operators(panels[1], profile)
    return figure


def _parts(axes: Any, profile: Profile, parts: list[Part]) -> None:
    """Draw the parts as stairs: a part begins where the one before it ended, its pieces within it."""
    start = within = right = 0.0
    for row, part in enumerate(parts):
        left = start if part.whole else within
        height, alpha = (0.74, 1.0) if part.whole else (0.4, 0.5)
        python, end = min(part.python_ms, part.ms), left + part.ms
        axes.barh(row, python, height, left=left, color=PYTHON, alpha=alpha)
        axes.barh(row, part.ms - python, height, left=left + python, color=ENGINE, alpha=alpha)
        text, right = f"{part.ms:.3g} ms", max(right, end)
        if part.whole:
            low, high = part.quartiles
            axes.hlines(row, left + low, left + high, color="0.15", linewidth=1.2)
            text, start, within = f"{text}  {profile.share(part):.0%}", end, left
            end = max(end, left + high)
        else:
            within = end
        axes.annotate(text, (end, row), (4, 0), textcoords="offset points", **SMALL)
    _rows(axes, [part.name if part.whole else part.name.partition("/")[2] for part in parts])
    for label, part in zip(axes.get_yticklabels(), parts):
        label.set_color("black" if part.whole else "0.45")
    axes.axvline(
        profile.wall, color="C3", linestyle="--", linewidth=1.2, zorder=1, label="a whole step in training"
    )
    axes.set_title("each part by itself, until the engine was done", fontsize=10, loc="left")
    axes.set_xlabel("ms, medians; thin lines: quartiles", fontsize=9)
    axes.set_xlim(0, 1.16 * max(right, profile.wall))
    _legend(axes, {"Python": PYTHON, "the engine, and waiting": ENGINE}, "lower left")


def _operators(axes: Any, profile: Profile) -> None:
    found = profile.operators[:OPERATORS]
    axes.barh(range(len(found)), [each.ms for each in found], 0.72, color=[COLOURS[e.kind] for e in found])
    for row, each in enumerate(found):
        text = f"{each.ms:.3g} ms  ({each.count:g} a step)"
        axes.annotate(text, (each.ms, row), (4, 0), textcoords="offset points", **SMALL)
    _rows(axes, [each.name for each in found])
    busy = f"{profile.engine:.3g} of {profile.wall:.3g} ms" if profile.wall else "all"
    axes.set_title(f"the engine's operators: {busy} on each device", fontsize=10, loc="left")
    axes.set_xlabel("ms a step, all devices", fontsize=9)
    axes.set_xlim(0, 1.3 * found[0].ms or 1)
    _legend(
        axes,
        {kind: COLOURS[kind] for kind in KINDS if any(each.kind == kind for each in found)},
        "lower right",
    )


def _rows(axes: Any, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(alpha=0.25, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _legend(axes: Any, colours: dict[str, str], where: str) -> None:
    for name, colour in colours.items():
        axes.barh(0, 0, color=colour, label=name)
    axes.legend(fontsize=8, frameon=False, loc=where)
