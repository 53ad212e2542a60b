"""The curves of one run, or of several over each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..history import History
from ..plots import families
from .chart import Line, chart
from .markup import Markup, tag

__all__ = ["curves_of", "curves_over_each_other"]


def curves_of(history: History) -> Markup:
    """Return a panel for each family of figures: parts differ by colour, training is dashed."""
    panels = []
    for title, family in families(_measured(history)).items():
        parts = list(dict.fromkeys(part for _, part in family))
        lines = [
            Line(" ".join(filter(None, [stage, part])), values, parts.index(part), stage == "train")
            for (stage, part), values in family.items()
        ]
        panels.append(chart(title, lines))
    return tag("div", *panels, class_="charts")


def curves_over_each_other(histories: Mapping[str, History]) -> Markup:
    """Return a panel for each figure: runs differ by colour, training is dashed."""
    found: dict[str, list[Line]] = {}
    for style, (run, history) in enumerate(histories.items()):
        for title, family in families(_measured(history)).items():
            for (stage, part), values in family.items():
                name = f"{title}.{part}" if stage and part else title if not part else f"{title} {part}"
                label = f"{stage} {run}" if stage else run
                found.setdefault(name, []).append(Line(label, values, style, stage == "train"))
    panels = [chart(title, lines) for title, lines in found.items()]
    return tag("div", *panels, class_="charts")


def _measured(history: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    return {name: values for name, values in history.items() if any(map(math.isfinite, values))}
