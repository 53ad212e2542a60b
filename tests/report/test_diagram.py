"""The plan's diagram has a box for each name, and an arrow for each link."""

from __future__ import annotations

from dataclasses import replace

from multifit.report.boxes import Box
from multifit.report.diagram import Diagram, diagram

from .runs import LINKS, PLAN, STAGE

WHOLE = diagram(STAGE, PLAN.trainers, PLAN.frozen)


def names(drawing: Diagram) -> list[str]:
    return [f"{box.kind} {box.name}" for box in drawing.boxes]


def overlap(a: Box, b: Box) -> bool:
    return a.x < b.right and b.x < a.right and a.y < b.y + b.height and b.y < a.y + a.height


def test_every_name_has_a_box() -> None:
    assert sorted(names(WHOLE)) == [
        "frozen frozen", "input image", "input image", "label digit", "loss digit", "metric accuracy",
        "metric mean", "output digit", "output spare", "trainer body", "trainer head",
    ]  # fmt: skip
    assert [box.name for box in WHOLE.boxes if box.unused] == ["spare"]


def test_boxes_do_not_overlap_and_are_inside_the_diagram() -> None:
    for i, box in enumerate(WHOLE.boxes):
        assert box.x >= 0 and box.right <= WHOLE.width and box.y >= 0 and box.y + box.height <= WHOLE.height
        assert not any(overlap(box, other) for other in WHOLE.boxes[:i])


def test_every_link_has_an_arrow() -> None:
    assert len(WHOLE.arrows) == len(LINKS) + 3  # one input goes into the net, two outputs come out
    assert [arrow.normalises for arrow in WHOLE.arrows].count(True) == 1


def test_boxes_describe_what_they_stand_for() -> None:
    texts = " ".join(text for box in WHOLE.boxes for *_, text in box.texts)
    for part in (
        "(8, 10) float32", "unused", "1 x CrossEntropy(outputs.digit,", "digit.sum: minimised",
        "top1, top5", "2 parameters, 44 numbers", "body.0.weight, body.0.bias", "clipped",
        "1 parameter: frozen.weight", "the input",
    ):  # fmt: skip
        assert part in texts


def test_losses_and_metrics_are_in_the_order_of_what_they_take() -> None:
    rows = [("output", name, "", "") for name in "ab"]
    rows += [("loss", "a", "", ""), ("loss", "b", "", ""), ("metric", "a", "", ""), ("metric", "b", "", "")]
    links = [("output", name, what, name, "feeds") for what in ("loss", "metric") for name in "ab"]
    drawing = diagram(replace(STAGE, rows=tuple(rows), links=tuple(links)))
    terms = [box for box in drawing.boxes if box.column == "term"]
    terms.sort(key=lambda box: box.y)
    assert [f"{box.kind} {box.name}" for box in terms] == ["loss a", "metric a", "loss b", "metric b"]


def test_long_names_and_many_boxes_fit() -> None:
    name = "a_name_that_is_much_too_long_for_its_box"
    rows = tuple(("output", f"{name}_{i}", name * 9, name * 9) for i in range(40))
    drawing = diagram(replace(STAGE, rows=rows, links=()))
    assert len(drawing.boxes) == 40
    assert all(len(box.title) < 22 and box.title.endswith("…") for box in drawing.boxes)
