"""Render the page from its templates: one file that needs no other, and no script."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from .comparison import compare
from .folder import RunFolder
from .run_section import run_section


def page(runs: Sequence[RunFolder]) -> str:
    """Return an HTML page about runs, with its style and pictures inside; several are also compared."""
    sections = [run_section(run, f"run-{number}") for number, run in enumerate(runs, 1)]
    comparison = compare(runs) if len(runs) > 1 else None
    return _templates().get_template("page.html").render(sections=sections, comparison=comparison)


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("multifit.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
