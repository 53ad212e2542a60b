"""What the page says of one run."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import PurePath

from ..plan import Plan
from .curves import curves_of
from .diagram import diagram
from .folder import RunFolder
from .markup import Markup, join, tag
from .tables import all_epochs, last_epoch, pairs

__all__ = ["run_section"]


def run_section(run: RunFolder, anchor: str) -> Markup:
    """Return all of a run: what it was, its plan, its curves, its figures and its pictures."""
    return tag("section", tag("h2", run.name), *_missing(run), *_parts(run), id=anchor)


def _parts(run: RunFolder) -> Iterator[Markup]:
    yield _facts(run)
    if run.plan is not None:
        yield tag("h3", "Plan")
        yield _drawings(run.plan)
    if run.plan_text or run.plan is not None:
        yield _folded("The plan as text", tag("pre", run.plan_text or str(run.plan)))
    if run.history:
        yield tag("h3", "Curves")
        yield curves_of(run.history)
        yield tag("h3", f"Figures after epoch {run.history.epochs}")
        yield last_epoch(run.history)
        yield _folded(f"All {run.history.epochs} epochs", tag("div", all_epochs(run.history), class_="wide"))
    if run.pictures:
        yield tag("h3", "Pictures")
        yield from (_picture(name, data) for name, data in run.pictures.items())


def _missing(run: RunFolder) -> Iterator[Markup]:
    if run.missing:
        yield tag("ul", *(tag("li", text) for text in run.missing), class_="missing")


def _facts(run: RunFolder) -> Markup:
    known = ("settings", "versions")
    settings, versions = (run.record.get(name) for name in known)
    facts = {name: value for name, value in run.record.items() if name not in known}
    if "file" in facts:
        facts["file"] = PurePath(str(facts["file"])).name  # the path is of the machine that trained it
    tables = (
        pairs("Run", facts),
        pairs("Settings", settings if isinstance(settings, dict) else {}),
        pairs("Versions", versions if isinstance(versions, dict) else {}),
    )
    return tag("div", *tables, class_="columns")


def _drawings(plan: Plan) -> Markup:
    stages = {"training": plan.train, "evaluating and predicting": plan.evaluate}
    if plan.train is not None and plan.evaluate is not None and plan.train.rows == plan.evaluate.rows:
        stages = {"training and evaluating": plan.train}
    drawn = []
    for title, stage in stages.items():
        if stage is not None:
            trainers = () if stage is not plan.train else plan.trainers
            drawn += [
                tag("h4", f"{title}: {plan.where}"),
                diagram(stage, trainers, plan.frozen if trainers else ()),
                tag("p", stage.how, class_="how"),
            ]
    notices = [tag("ul", *(tag("li", notice) for notice in plan.notices))] if plan.notices else []
    return join(*drawn, *notices)


def _folded(title: str, content: Markup) -> Markup:
    return tag("details", tag("summary", title), content)


def _picture(name: str, data: bytes) -> Markup:
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return tag("figure", tag("figcaption", name), tag("img", src=source, alt=name), class_="picture")
