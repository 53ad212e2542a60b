"""Line charts: every measured point is where it belongs."""

from __future__ import annotations

import math
import xml.etree.ElementTree as xml

import pytest

from multifit.report.chart import Line, chart, ticks

NAN = math.nan


def parsed(*lines: Line) -> xml.Element:
    return xml.fromstring(chart("loss", lines))


def curves(figure: xml.Element) -> list[list[tuple[float, float]]]:
    """Return the points of each curve, as they stand on the page."""
    found = figure.find("svg").iter("polyline")  # type: ignore[union-attr]
    return [
        [tuple(map(float, point.split(","))) for point in each.get("points", "").split()]  # type: ignore[misc]
        for each in found
        if each.get("class") == "curve"
    ]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.93, 0.98, [0.93, 0.94, 0.95, 0.96, 0.97, 0.98]),
        (-3, 12, [0, 5, 10]),
        (2e-4, 9e-4, [2e-4, 4e-4, 6e-4, 8e-4]),
        (0, 3e6, [0, 1e6, 2e6, 3e6]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_and_within(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_ticks_of_epochs_are_whole() -> None:
    assert ticks(1, 3, 6, whole=True) == [1, 2, 3]


def test_a_curve_is_drawn_to_scale() -> None:
    (points,) = curves(parsed(Line("val", [1.0, 3.0, 2.0])))
    (x1, y1), (x2, y2), (x3, y3) = points
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2) and x1 < x2
    assert y1 - y2 == pytest.approx(2 * (y1 - y3), abs=0.2) and y2 < y3 < y1  # downwards on the page


def test_what_was_not_measured_is_left_out() -> None:
    figure = parsed(Line("val", [NAN, 1.0, math.inf, 2.0]), Line("train", [NAN, NAN, 1.5, NAN]))
    assert [len(points) for points in curves(figure)] == [2]  # one point alone is a mark, and no line
    titles = [each.text for each in figure.iter("title")]
    assert titles == ["val, epoch 2: 1.0000", "val, epoch 4: 2.0000", "train, epoch 3: 1.5000"]


@pytest.mark.parametrize(
    "values", [[], [NAN], [0.0], [5.0, 5.0], [-2.0, -2.0], [1e-30, 1e-30], [1e30, -1e30]]
)
def test_any_values_stay_within_the_frame(values: list[float]) -> None:
    figure = parsed(Line("val", values))
    for points in curves(figure):
        assert all(48 <= x <= 360 and 8 <= y <= 196 for x, y in points)


def test_no_two_of_31_lines_look_alike() -> None:
    lines = [Line(str(style), [1.0, 2.0], style, dashed) for style in range(31) for dashed in (True, False)]
    svg = parsed(*lines).find("svg")
    assert svg is not None
    looks = set()
    strokes = [each for each in svg if each.get("class") == "curve"]
    marks = [each for each in svg if each.tag in ("circle", "polygon")][::2]
    for stroke, mark in zip(strokes, marks):
        shape = len(mark.get("points", "").split()), mark.get("points", "")[:0]
        corner = mark.get("points", "").split()[:1] if shape[0] == 4 else []
        square = (
            bool(corner)
            and mark.get("points", "").split()[0].split(",")[0]
            == (mark.get("points", "").split()[-1].split(",")[0])
        )
        looks.add((stroke.get("stroke"), stroke.get("stroke-dasharray"), shape[0], square))
    assert len(looks) == len(lines)


def test_long_curves_have_no_marks_unless_they_need_them() -> None:
    def marks(style: int) -> int:
        svg = parsed(Line("a", [float(i) for i in range(100)], style)).find("svg")
        assert svg is not None
        return sum(each.tag in ("circle", "polygon") for each in svg)

    assert marks(0) == 0 and 5 <= marks(8) <= 10


def test_the_legend_names_the_lines() -> None:
    figure = parsed(Line("train <a>", [1.0]), Line("val", [2.0]))
    legend = figure.find("div[@class='legend']")
    assert legend is not None and ["".join(each.itertext()) for each in legend] == ["train <a>", "val"]
