"""The plan's drawing has a box for each name, and an arrow for each link."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from dataclasses import replace

import pytest

from multifit.plan import Plan, StagePlan
from multifit.report.diagram import diagram


def boxes(svg: xml.Element) -> dict[str, xml.Element]:
    return {title.text or "": rect for rect in svg.iter("rect") for title in rect.iter("title")}


def frame(rect: xml.Element) -> list[float]:
    return [float(rect.get(name, "nan")) for name in ("x", "y", "width", "height")]


@pytest.fixture
def svg(plan: Plan) -> xml.Element:
    assert plan.train is not None
    return xml.fromstring(diagram(plan.train, plan.trainers, plan.frozen))


def test_every_name_has_its_box(svg: xml.Element) -> None:
    assert set(boxes(svg)) == {
        "input image", "output digit", "output spare", "label digit", "loss digit", "metric accuracy",
        "metric mean", "trainer body", "trainer head", "frozen frozen",
    }  # fmt: skip


def test_boxes_do_not_overlap_and_stay_on_the_page(svg: xml.Element) -> None:
    left, top, width, height = map(float, svg.get("viewBox", "").split())
    frames = [frame(rect) for rect in svg.iter("rect") if list(rect)]
    for i, (x, y, w, h) in enumerate(frames):
        assert left <= x and x + w <= left + width and top <= y and y + h <= top + height
        for x2, y2, w2, h2 in frames[:i]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_every_link_has_its_arrow(svg: xml.Element, stage: StagePlan) -> None:
    arrows = [each.get("class") for each in svg.iter("path")]
    assert len(arrows) == len(stage.links) + 3  # one input goes into the net, two outputs come out
    assert arrows.count("arrow normalises") == 1


def test_boxes_say_what_was_found(svg: xml.Element) -> None:
    text = " ".join("".join(each.itertext()) for each in svg.iter("text"))
    for part in (
        "(8, 10) float32", "unused", "1 x CrossEntropy(outputs.digit,", "digit.sum: minimised",
        "accuracy.top1",
        "2 parameters, 44 numbers", "body.0.weight, body.0.bias", "clipped", "1 parameters: frozen.weight",
        "the input",
    ):  # fmt: skip
        assert part in text


def test_losses_and_metrics_follow_what_they_take(stage: StagePlan) -> None:
    rows = [("output", name, "", "") for name in "ab"]
    rows += [("loss", "a", "", ""), ("loss", "b", "", ""), ("metric", "a", "", ""), ("metric", "b", "", "")]
    links = [("output", name, what, name, "feeds") for what in ("loss", "metric") for name in "ab"]
    svg = xml.fromstring(diagram(replace(stage, rows=tuple(rows), links=tuple(links))))
    terms = {name: frame(rect)[1] for name, rect in boxes(svg).items() if not name.startswith("output")}
    assert sorted(terms, key=terms.__getitem__) == ["loss a", "metric a", "loss b", "metric b"]


def test_long_names_and_many_boxes_fit(stage: StagePlan) -> None:
    name = "a_name_that_is_much_too_long_for_its_box"
    rows = tuple(("output", f"{name}_{i}", name * 9, name * 9) for i in range(40))
    svg = xml.fromstring(diagram(replace(stage, rows=rows, links=())))
    assert len(boxes(svg)) == 40
    titles = [each.text or "" for each in svg.iter("text") if each.get("class") == "name"]
    assert all(len(title) < 22 and title.endswith("…") for title in titles)
