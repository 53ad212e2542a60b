"""``multifit report`` writes a page on runs that ``multifit train`` made."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from multifit.cli import report
from multifit.cli.record import write_record
from multifit.cli.results import write_pictures, write_plan, write_results
from multifit.cli.run import Run, add_task_arguments
from multifit.plots import new_figure
from multifit.taskfile import UsageError


def run(*arguments: Any) -> None:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    report.run(parser.parse_args([str(argument) for argument in arguments]))


def train(path: Path, folder: Path, setting: str) -> None:
    parser = argparse.ArgumentParser()
    add_task_arguments(parser)
    task = Run(parser.parse_args([str(path), "--set", setting, "--quiet"]))
    history = task.fit([])
    write_plan(folder, task.estimator.plan)
    write_results(folder, history, task.estimator.net)
    write_record(folder, path, task.task.settings, seed=task.seed)
    write_pictures(folder, history, lambda: {"mine": new_figure(1, 1)})


def test_real_runs_side_by_side(write, tmp_path, capsys):
    for rate in (0.01, 0.1):
        train(write(), tmp_path / f"rate-{rate}", f"rate={rate}")
    capsys.readouterr()
    run("rate-0.01", "rate-0.1", "rate-0.01")
    assert capsys.readouterr().out == "wrote report.html\n"
    page = Path("report.html").read_text("utf-8")
    for part in (
        "Side by side",
        "<td>0.01</td><td>0.1</td>",
        "SoftmaxCrossEntropyLoss",
        "trainer",
        "val_loss",
    ):
        assert part in page
    assert page.count("data:image/png;base64,") == 2 and page.count("<section") == 3


def test_what_is_missing_is_said_and_the_page_is_written(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.txt").write_text("the plan")
    run("run", "--output", "pages/one.html")
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "run: settings.json: No such file or directory",
        "run: plan.json: No such file or directory",
        "run: history.json: No such file or directory",
        "wrote pages/one.html",
    ]
    assert "the plan" in Path("pages/one.html").read_text("utf-8")


def test_what_is_no_run_is_refused_and_nothing_is_written():
    with pytest.raises(UsageError, match="nowhere is not the folder of a run"):
        run("nowhere")
    assert not Path("report.html").exists()


def test_a_page_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.txt").write_text("the plan")
    with pytest.raises(UsageError, match=r"cannot write the report to run/plan\.txt/a\.html: "):
        run("run", "--output", "run/plan.txt/a.html")
