"""What the page shows of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath

from ..history import History
from ..plan import Plan, StagePlan
from ..plots import curves, task_curves, task_figures
from ..stages import split_figure
from .diagram import Diagram, diagram
from .elements import (
    Grid,
    Image,
    best_epoch,
    curves_image,
    epoch_grids,
    png_image,
    results_grid,
    setting_texts,
)
from .folder import RunFolder


@dataclass(frozen=True)
class StageDrawing:
    """The diagram of one stage of the plan, with its title and what runs as one graph."""

    title: str
    diagram: Diagram
    how: str


@dataclass(frozen=True)
class RunSection:
    """The content of a run's section. What is empty is not shown."""

    name: str
    anchor: str  # the id that links lead to
    missing: Sequence[str]  # files that are missing or damaged, and why
    facts: Mapping[str, Mapping[str, str]]  # by title: the run, its settings, the versions
    drawings: Sequence[StageDrawing]
    notices: Sequence[str]
    plan_text: str
    epochs: int
    curves: Image | None  # None without matplotlib
    compares_tasks: bool
    tasks: Image | None  # None without matplotlib
    best: str  # which epoch, as a sentence
    results: Grid  # of the last epoch, and the best
    all_epochs: Sequence[Grid]
    pictures: Sequence[Image]


def run_section(run: RunFolder, anchor: str) -> RunSection:
    """Return the section of a run; `anchor` is its id on the page."""
    plan, history = run.plan, run.history
    undeclared = _without_declared(history, plan)
    of_tasks = task_figures(undeclared)
    others = {name: values for name, values in history.items() if name not in of_tasks}
    return RunSection(
        name=run.name,
        anchor=anchor,
        missing=run.missing,
        facts=_facts(run.record),
        drawings=_drawings(plan) if plan is not None else (),
        notices=plan.notices if plan is not None else (),
        plan_text=run.plan_text or ("" if plan is None else str(plan)),
        epochs=history.epochs if history else 0,
        curves=curves_image(lambda: curves(others)) if history else None,
        compares_tasks=bool(of_tasks),
        tasks=curves_image(lambda: task_curves(undeclared)) if of_tasks else None,
        best=best_epoch(history, run.directions),
        results=results_grid(history, run.directions),
        all_epochs=epoch_grids(history),
        pictures=[png_image(name, data) for name, data in run.pictures.items()],
    )


def _without_declared(history: History, plan: Plan | None) -> dict[str, Sequence[float]]:
    """Return all figures but those of losses and metrics, whose names may look like those of task weights."""
    rows = plan.train.rows if plan is not None and plan.train is not None else ()
    declared = {row.name for row in rows if row.what in ("loss", "metric")}
    return {
        name: values
        for name, values in history.items()
        if split_figure(name)[1].partition(".")[0] not in declared
    }


def _facts(record: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """Return what the run was trained with, by title; options that were not used are left out."""
    groups = {"settings": record.get("settings"), "versions": record.get("versions")}
    asked = {name: value for name, value in record.items() if value not in (None, [], "")}
    run = {name: value for name, value in asked.items() if name not in groups and value is not False}
    if "file" in run:
        run["file"] = PurePath(str(run["file"])).name  # its folder says little on another machine
    seconds = run.pop("seconds", None)
    if isinstance(seconds, (int, float)):
        run["duration"] = f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
    first = ("command", "started", "duration")
    run = {name: run[name] for name in (*first, *run) if name in run}
    facts = {"run": run, **{title: group for title, group in groups.items() if isinstance(group, dict)}}
    return {title.capitalize(): setting_texts(values) for title, values in facts.items() if values}


def _drawings(plan: Plan) -> list[StageDrawing]:
    return [
        StageDrawing(f"{title}: {plan.where}", _diagram(plan, stage), stage.how)
        for title, stage in plan.stages.items()
    ]


def _diagram(plan: Plan, stage: StagePlan) -> Diagram:
    return diagram(stage, plan.trainers, plan.frozen) if stage is plan.train else diagram(stage)
