"""The page: one file that needs no other, and no script."""

from __future__ import annotations

from collections.abc import Sequence

from .compare import comparison_section
from .folder import RunFolder
from .markup import Markup, tag
from .sections import run_section
from .style import STYLE

__all__ = ["page"]


def page(runs: Sequence[RunFolder]) -> str:
    """Return runs as one HTML page, which holds its pictures and its style.

    Parameters
    ----------
    runs : sequence of RunFolder
        One run, or several, which are then compared first.
    """
    title = ", ".join(run.name for run in runs)
    several = len(runs) > 1
    links = [tag("a", run.name, href=f"#run-{i}") for i, run in enumerate(runs, 1)]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width"),
        tag("title", f"multifit: {title}"),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        tag("header", tag("h1", "multifit report"), tag("nav", *links) if several else None),
        comparison_section(runs) if several else None,
        *(run_section(run, f"run-{i}") for i, run in enumerate(runs, 1)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"
