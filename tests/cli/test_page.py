"""``multifit report``: the page is complete, needs no other file, and is safe whatever the runs contain."""

import base64
import json
import math
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from multifit.cli import main
from multifit.cli.diagram import diagrams
from multifit.cli.html_page import best_epoch, page
from multifit.cli.runs import RunFolder, read_run
from multifit.handlers.history import History
from multifit.spec.plan import Plan

from .runs import HISTORY, PLAN, PNG, STAGE, write_run

EVIL = "<script>alert('x')</script>\"&{{ 1 + 1 }}"
RUN = RunFolder(
    "runs/digits",
    history=HISTORY,
    diagrams=diagrams(PLAN.to_dict()),
    plan_text=str(PLAN),
    pictures={"samples": PNG},
)
WITHOUT_CURVES = replace(RUN, history=History())


@pytest.fixture
def titles_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the titles and legends of curves alone: real ones take most of the time."""

    def sketched(figure: Figure) -> bytes:
        texts = [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]
        titles = [axes.get_title() for axes in figure.axes]
        return "".join(f"<!-- {text} -->" for text in (*titles, *texts)).encode()

    monkeypatch.setattr("multifit.cli.html_page.to_svg", sketched)


class Page(HTMLParser):
    """The elements, text, links and ids of a page. Checks that elements are closed in order."""

    VOID = ("meta", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []
        self.text = " ".join(self.texts)
        prefix = "data:image/svg+xml;base64,"  # of curves, in which comments hold the text that is drawn
        drawn = [link.removeprefix(prefix) for link in self.links if link.startswith(prefix)]
        self.curves = [base64.b64decode(data).decode() for data in drawn]

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(name, attributes)
        if name not in self.VOID:
            self._open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        values = dict(attributes)
        self.links += [values[key] or "" for key in ("src", "href", "srcset", "action") if key in values]
        self.ids += [values["id"] or ""] if "id" in values else []
        assert not any(key.startswith("on") for key in values)

    def handle_endtag(self, name: str) -> None:
        assert self._open.pop() == name

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)


def test_one_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    html = page([run])
    shown = Page(html)
    for part in (
        run.name, "digits.py", "rate", "0.1", "cpu(0), cpu(1)", "mxnet", "1.9.1",
        "body.0.weight, body.0.bias",
        "training, evaluating and predicting: batches of 8 on cpu(0), cpu(1)", "a default was used",
        "losses and metrics",
        "Results after epoch 2", "1.5000", "All 2 epochs", "samples", "goes to",
    ):  # fmt: skip
        assert part in shown.text
    assert "Side by side" not in shown.text
    assert html.startswith("<!DOCTYPE html>\n<html") and shown.elements.count("img") == 2
    (curves,) = shown.curves
    assert all(f"<!-- {title} -->" in curves for title in ("loss", "accuracy", "learning rate", "train top1"))


def test_the_results_and_how_they_came_about_are_at_the_top(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    figures = {
        "train_loss": [3.0, 2.0, 1.0],
        "val_loss": [math.nan, 0.5, 0.75],
        "train_accuracy": [0.25, 0.75, 0.5],
        "val_f1": [0.5, 0.5, 0.25],
        "lr": [0.1, 0.2, 0.3],
    }
    History(figures).to_json(folder / "history.json")
    record = json.loads((folder / "settings.json").read_text())
    record.update(command="multifit train digits.py", started="2026-03-01 12:00:00 +0100", seconds=3725.4)
    record["directions"] = {"train_accuracy": "max", "val_f1": "max"}
    (folder / "settings.json").write_text(json.dumps(record))
    html = page([read_run(folder)])
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', html)
    assert {name: re.findall("<td>(.*?)</td>", row) for name, row in rows[:4]} == {
        "loss": ["1.0000", "0.7500", "0.5000", "2"],
        "accuracy": ["0.5000", "", "0.7500", "2"],
        "f1": ["", "0.2500", "0.5000", "1"],
        "lr": ["0.3000", "", "", ""],
    }
    assert "The best epoch is 2 of 3, by val_loss: 0.5000." in html
    assert [name for name, _ in rows[4:7]] == ["command", "started", "duration"]
    assert "<td>1:02:05</td>" in html and "directions" not in html
    assert html.index("Results after epoch 3") < html.index("<h4>Run") < html.index("<h3>Plan")


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        ({"train_loss": [2.0, 1.0], "val_mAP": [0.5, 0.25]}, "The best epoch is 1 of 2, by val_mAP: 0.5000."),
        ({"train_loss": [2.0, 1.0]}, "The best epoch is 2 of 2, by train_loss: 1.0000."),
        ({"val_mine": [2.0, 1.0]}, ""),
    ],
)
def test_the_best_epoch(figures: dict[str, list[float]], best: str) -> None:
    directions = {"train_loss": "min", "val_mAP": "max"}
    assert best_epoch(History(figures), directions) == best


@pytest.mark.usefixtures("titles_alone")
def test_it_needs_no_other_file() -> None:
    html = page([RUN, replace(WITHOUT_CURVES, name="other", diagrams=[])])
    shown = Page(html)
    assert not {"script", "link", "iframe", "object"} & set(shown.elements)
    assert all(link.startswith(("data:image/", "#")) for link in shown.links)
    assert {link[1:] for link in shown.links if link[0] == "#"} <= set(shown.ids)
    assert not any(part in html for part in ("http:", "https:", "url(", "@import"))
    assert html.count('class="diagram"') == 1 and html.count("goes to") >= 2  # one plan is text only


@pytest.mark.usefixtures("titles_alone")
def test_several_runs_are_compared(tmp_path: Path) -> None:
    """A setting may be named like what every run has."""
    same = {"devices": "4", "seed": 1, "mxnet": "4"}
    other = {"rate": 0.5, "depth": [1, 2], "kernel": "(3, 3)", **same, "devices": "8", "mxnet": "8"}
    runs = [write_run(tmp_path / "a", **same), write_run(tmp_path / "b", **other)]
    html = page([read_run(run) for run in runs])
    comparison = html[html.index('id="comparison"') : html.index('id="run-1"')]
    settings = comparison[comparison.index("Where they differ") : comparison.index("Figures after")]
    cells = dict(re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td></tr>', settings))
    assert {name: tuple(values.split("</td><td>")) for name, values in cells.items()} == {
        "rate": ("0.1", "0.5"), "depth": ("", "[1, 2]"), "kernel": ("", "(3, 3)"),
        "settings.devices": ("4", "8"), "mxnet": ("4", "8"),
    }  # fmt: skip
    assert "<td>1.0000</td><td>1.0000</td>" in comparison and "accuracy.top1" in comparison
    curves = Page(html).curves
    assert len(curves) == 3 and "<!-- learning rate body -->" in curves[0] and str(runs[1]) in curves[0]


def test_runs_that_differ_only_in_when_they_were_made_have_the_same_settings() -> None:
    when = {"command": "multifit train a.py", "started": "today", "seconds": 1.5}
    html = page([replace(WITHOUT_CURVES, record=when), replace(WITHOUT_CURVES, name="twin")])
    assert "Nowhere: all settings are the same." in html and "<td>1.5 s</td>" in html


def test_without_matplotlib_everything_else_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    shown = Page(page([RUN, replace(RUN, name="twin")]))
    assert shown.curves == [] and shown.text.count("Curves need matplotlib:") == 3
    assert "pip install matplotlib" in shown.text
    assert all(part in shown.text for part in ("Results after epoch 2", "samples", "losses and metrics"))
    many = History({f"val_VOC.{i}": [math.nan] for i in range(30)})
    html = page([replace(RUN, history=many)])  # in several tables
    assert html.count('<th scope="col">epoch</th>') == 3 and "1 epoch" in html and "1 epochs" not in html
    assert all(f"val_VOC.{i}<" in html for i in range(30))


def test_everything_is_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", **{EVIL: EVIL})
    rows = tuple((what, EVIL, EVIL, EVIL) for what in ("input", "output", "label", "loss", "metric"))
    links = (("output", EVIL, "loss", EVIL, "feeds"), ("label", EVIL, "metric", EVIL, "feeds"))
    trainer = replace(PLAN.trainers[0], name=EVIL, optimizer=EVIL, parameters=(EVIL,))
    stage = replace(STAGE, rows=rows, links=links, how=EVIL)
    plan = Plan((EVIL,), 8, stage, None, (trainer,), (EVIL,), (EVIL,))
    (folder / "plan.json").write_text(json.dumps(plan.to_dict()))
    (folder / "plan.txt").write_text(EVIL)
    History({f"train_{EVIL}": [1.0, 2.0], EVIL: [1.0, 2.0]}).to_json(folder / "history.json")
    run = read_run(folder)
    assert run.missing == []
    run = replace(run, name=EVIL, missing=[EVIL], pictures={EVIL: PNG})
    shown = Page(page([run, replace(run, name=f"{EVIL} 2")]))
    assert "script" not in shown.elements and "<script" not in "".join(shown.curves)
    assert sum(EVIL in text for text in shown.texts) > 20


@pytest.mark.usefixtures("titles_alone")
@pytest.mark.parametrize(
    ("names", "declared", "compared"),
    [
        ([], (), False),
        (["weight_digit", "weight_parity"], (), True),
        (["weight_before", "weight_after"], ("weight_before", "weight_after"), False),  # losses of that name
    ],
)
def test_tasks_are_shown_where_they_were_compared(names, declared, compared) -> None:
    figures = {f"train_{name}{part}": [1.0, 0.5] for name in names for part in ("", ".far" * bool(declared))}
    run = replace(RUN, declared=set(declared), history=History({**HISTORY, **figures}))
    shown = Page(page([run]))
    curves, *tasks = shown.curves
    assert ("What the tasks do to each other" in shown.text) == (len(tasks) == 1) == compared
    assert all(f"<!-- {name} -->" in curves for name in declared)
    assert not compared or ("<!-- weights -->" in tasks[0] and "<!-- weight_digit -->" not in curves)


@pytest.mark.usefixtures("titles_alone")
def test_seeds_are_shown_as_mean_and_spread(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for seed in (0, 1):
        write_run(folder / f"seed-{seed}")
    History({"train_loss": [2.0, 2.0], "val_loss": [2.0, 2.5]}).to_json(folder / "seed-1" / "history.json")
    html = page([read_run(folder), read_run(write_run(tmp_path / "one"))])
    assert html.count("<td>2.0000 ± 0.7071</td>") == 2  # val_loss, in the table of the run and side by side
    assert "<td>2.0000 ± 0.7071</td><td>1.5000</td>" in html
    curves = Page(html).curves[1]
    assert "<!-- val seed-0 -->" in curves and "<!-- val seed-1 -->" in curves


@pytest.mark.usefixtures("titles_alone")
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(write_run(Path("run")), "other")
    Path("part").mkdir()
    Path("part/plan.txt").write_text("the plan")
    Path("old.html").touch()
    assert main(["report", "run", "other", "run", "part", "--output", "pages/one.html"]) == 0
    missing = [
        f"part: {name}: No such file or directory" for name in ("settings.json", "plan.json", "history.json")
    ]
    assert capsys.readouterr().out.splitlines() == [*missing, "wrote pages/one.html"]
    shown = Page(Path("pages/one.html").read_text("utf-8"))
    assert shown.elements.count("section") == 4 and "the plan" in shown.text
    assert "history.json: No such file" in shown.text
    assert main(["report", "run", "--output", "old.html"]) == main(["report", "run"]) == 0
    assert Path("old.html").read_text() == Path("report.html").read_text()
