"""Compare several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..history import figure_text
from ..plots import compare_curves
from .folder import RunFolder
from .images import Image, curves_image
from .tables import Grid, comparison_grid, setting_texts


@dataclass(frozen=True)
class Comparison:
    """What the page shows of several runs side by side."""

    settings: Grid  # those in which the runs differ
    figures: Grid  # after the last epoch
    curves: Image | None  # a colour per run; None without matplotlib


def compare(runs: Sequence[RunFolder]) -> Comparison:
    """Return the comparison of two runs or more."""
    figures = {run.name: {name: figure_text(v) for name, v in run.history.last.items()} for run in runs}
    histories = {run.name: run.history for run in runs}
    return Comparison(
        settings=comparison_grid("setting", _differing_settings(runs)),
        figures=comparison_grid("figure", figures),
        curves=curves_image(lambda: compare_curves(histories)),
    )


def _differing_settings(runs: Sequence[RunFolder]) -> dict[str, dict[str, str]]:
    settings = {run.name: _flat_settings(run) for run in runs}
    names = dict.fromkeys(name for values in settings.values() for name in values)
    differing = [name for name in names if len({values.get(name) for values in settings.values()}) > 1]
    return {
        run: {name: values[name] for name in differing if name in values} for run, values in settings.items()
    }


def _flat_settings(run: RunFolder) -> dict[str, str]:
    """Return everything in ``settings.json`` on one level."""
    flat: dict[str, object] = {}
    for name, value in run.record.items():
        flat.update(value if isinstance(value, dict) else {name: value})
    return setting_texts(flat)
