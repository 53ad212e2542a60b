"""The page: whole, by itself, and safe whatever the runs hold."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Callable

import pytest

from multifit.history import History
from multifit.plan import Plan
from multifit.report import RunFolder, page, read_run

EVIL = "<script>alert('x')</script>\"&"


class Page(HTMLParser):
    """Reads a page: its elements, its text, and what it points to; elements must be closed in order."""

    EMPTY = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(name, attributes)
        self._open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        found = dict(attributes)
        self.links += [found[key] or "" for key in ("src", "href", "srcset", "action") if key in found]
        self.ids += [found["id"] or ""] if "id" in found else []
        assert not any(key.startswith("on") for key in found)

    def handle_endtag(self, name: str) -> None:
        assert self._open.pop() == name

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text.append(data)


def shown(text: str) -> str:
    return " ".join(Page(text).text)


@pytest.fixture
def run(write: Callable[..., Path]) -> RunFolder:
    return read_run(write())


def test_one_run(run: RunFolder) -> None:
    text = page([run])
    found = Page(text)
    shown = " ".join(found.text)
    for part in (
        run.name, "digits.py", "rate", "0.1", "cpu(0), cpu(1)", "mxnet", "1.9.1",
        "body.0.weight, body.0.bias",
        "training and evaluating: batches of 8 on cpu(0), cpu(1)", "a default was used", "losses and metrics",
        "Figures after epoch 2", "1.5000", "All 2 epochs", "samples", "where it goes",
    ):  # fmt: skip
        assert part in shown
    assert "/somewhere" not in shown and "Side by side" not in shown
    assert found.elements.count("img") == 1 and text.startswith("<!DOCTYPE html>\n<html")


def test_it_needs_nothing_else(run: RunFolder) -> None:
    text = page([run, replace(run, name="other")])
    found = Page(text)
    assert not {"script", "link", "iframe", "object"} & set(found.elements)
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in found.links)
    assert {link[1:] for link in found.links if link[0] == "#"} <= set(found.ids)
    assert "http:" not in text and "https:" not in text and "url(" not in text and "@import" not in text


def test_several_runs_are_compared(write: Callable[..., Path]) -> None:
    text = page([read_run(write("a")), read_run(write("b", rate=0.5, depth=[1, 2]))])
    compared = text[text.index('id="comparison"') : text.index('id="run-1"')]
    where = compared[compared.index("Where they differ") : compared.index("Figures after")]
    for part in ("<td>0.1</td><td>0.5</td>", "<td></td><td>[1, 2]</td>"):
        assert part in where
    assert "mxnet" not in where and "seed" not in where  # these are the same
    for part in ("<td>1.0000</td><td>1.0000</td>", "learning rate body", "accuracy.top1"):
        assert part in compared


def test_runs_that_do_not_differ(run: RunFolder) -> None:
    assert "Nowhere: all settings are the same." in shown(page([run, replace(run, name="twin")]))


def test_evaluating_is_drawn_where_it_differs(run: RunFolder, plan: Plan) -> None:
    assert plan.train is not None
    other = replace(plan, evaluate=replace(plan.train, rows=plan.train.rows[:5], links=plan.train.links[:2]))
    text = page([replace(run, plan=other)])
    assert text.count('class="diagram"') == 2
    assert "evaluating and predicting: batches of 8" in text and text.count("trainer body") == 1
    assert page([replace(run, plan=replace(plan, evaluate=None))]).count('class="diagram"') == 1


def test_what_is_missing_is_told() -> None:
    text = shown(page([RunFolder("empty", missing=["history.json: No such file or directory"])]))
    assert "history.json: No such file" in text
    assert not any(title in text for title in ("Plan", "Curves", "Figures", "Pictures", "Settings"))


def test_the_plan_as_text_is_there_without_its_structure(run: RunFolder) -> None:
    text = page([replace(run, plan=None)])
    assert "where it goes" in text and 'class="diagram"' not in text


def test_everything_is_escaped(write: Callable[..., Path], plan: Plan) -> None:
    folder = write(**{EVIL: EVIL})
    assert plan.train is not None
    rows = tuple((what, EVIL, EVIL, EVIL) for what in ("input", "output", "label", "loss", "metric"))
    links = (("output", EVIL, "loss", EVIL, "feeds"), ("label", EVIL, "metric", EVIL, "feeds"))
    trainer = replace(plan.trainers[0], name=EVIL, optimizer=EVIL, parameters=(EVIL,))
    evil = Plan(
        (EVIL,), 8, replace(plan.train, rows=rows, links=links, how=EVIL), None, (trainer,), (EVIL,), (EVIL,)
    )
    (folder / "plan.json").write_text(json.dumps(evil.to_dict()))
    (folder / "plan.txt").write_text(EVIL)
    History({f"train_{EVIL}": [1.0, 2.0], EVIL: [1.0, 2.0]}).to_json(folder / "history.json")
    run = read_run(folder)
    assert run.missing == []
    run = replace(run, name=EVIL, missing=[EVIL], pictures={EVIL: run.pictures["samples"]})
    found = Page(page([run, replace(run, name=f"{EVIL} 2")]))
    assert "script" not in found.elements
    assert sum(EVIL in text for text in found.text) > 20


def test_many_figures_are_shown_in_several_tables(run: RunFolder) -> None:
    history = History({f"val_VOC.{i}": [float(i), math_nan] for i in range(30)})
    text = page([replace(run, history=history)])
    assert text.count('<th scope="col">epoch</th>') == 3
    assert all(f"val_VOC.{i}<" in text for i in range(30))


math_nan = float("nan")
