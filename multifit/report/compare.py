"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from ..history import figure_text
from .curves import curves_over_each_other
from .folder import RunFolder
from .markup import Markup, tag
from .tables import comparison, value_text

__all__ = ["comparison_section"]


def comparison_section(runs: Sequence[RunFolder]) -> Markup:
    """Return the settings in which the runs differ, their last figures, and their curves over each other."""
    settings = {run.name: _flat(run) for run in runs}
    names = dict.fromkeys(name for each in settings.values() for name in each)
    differ = [name for name in names if len({each.get(name) for each in settings.values()}) > 1]
    differing = {run: {name: each[name] for name in differ if name in each} for run, each in settings.items()}
    last = {run.name: {name: figure_text(value) for name, value in run.history.last.items()} for run in runs}
    return tag(
        "section",
        tag("h2", "Side by side"),
        tag("h3", "Where they differ"),
        comparison("setting", differing) if differ else tag("p", "Nowhere: all settings are the same."),
        tag("h3", "Figures after the last epoch"),
        tag("div", comparison("figure", last), class_="wide"),
        tag("h3", "Curves"),
        curves_over_each_other({run.name: run.history for run in runs}),
        id="comparison",
    )


def _flat(run: RunFolder) -> dict[str, str]:
    """Return all that ``settings.json`` holds, in one level."""
    flat: dict[str, str] = {}
    for name, value in run.record.items():
        inner = value if isinstance(value, dict) else {name: value}
        flat.update({key: value_text(item) for key, item in inner.items()})
    return flat
