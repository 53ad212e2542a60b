"""Render the page from its templates: one file that needs no other, and no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from ..history import figure_text
from ..plots import compare_curves
from .elements import Grid, Image, comparison_grid, curves_image, setting_texts
from .folder import RunFolder
from .run_section import run_section


@dataclass(frozen=True)
class Comparison:
    """What the page shows to compare several runs."""

    settings: Grid  # those in which the runs differ
    figures: Grid  # after the last epoch
    curves: Image | None  # a colour per run; None without matplotlib


def page(runs: Sequence[RunFolder]) -> str:
    """Return an HTML page about runs, with its style and pictures inside; several are also compared."""
    sections = [run_section(run, f"run-{number}") for number, run in enumerate(runs, 1)]
    comparison = _compare(runs) if len(runs) > 1 else None
    return _templates().get_template("page.html").render(sections=sections, comparison=comparison)


def _compare(runs: Sequence[RunFolder]) -> Comparison:
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
    """Return all of ``settings.json`` on one level; a repeated name gets its group's name as a prefix."""
    flat = {
        name: value
        for name, value in run.record.items()
        if not isinstance(value, dict) and name not in ("command", "started", "seconds")
    }
    for group, values in run.record.items():
        if isinstance(values, dict):
            flat.update({f"{group}.{name}" if name in flat else name: values[name] for name in values})
    return setting_texts(flat)


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("multifit.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
