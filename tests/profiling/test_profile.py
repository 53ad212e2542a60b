"""A profile's text, picture, JSON and advice, from given measurements."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from multifit.profiling import Operator, Part, Profile
from multifit.profiling.measurements import kind_of


def part(name: str, python: float, engine: float = 0.0, waits: float = 0.0, known: bool = True) -> Part:
    """Return a part of three steps, in which Python waits for `waits` ms in training."""
    times, works, in_training = (
        tuple(ms * factor for factor in (0.9, 1.0, 1.2)) for ms in (python + engine, python, python + waits)
    )
    return Part(name, times, works, in_training if known else ())


OPERATORS = (
    Operator("_backward_Convolution", 4, 6.0),
    Operator("Convolution", 4, 3.0),
    Operator("adam_update", 8, 0.8),
    Operator("DeleteVariable", 20, 0.01),
)


def profile(*more: Part, wall: float = 10.0, operators: Any = OPERATORS, **facts: Any) -> Profile:
    """Return the profile of a step in which the engine is the limit, with some parts replaced."""
    usual = {
        each.name: each
        for each in (
            part("data", 0.5), part("data/loader", 0.4), part("forward", 0.3, 3.0),
            part("forward/net", 0.2, 2.0, known=False), part("backward", 0.3, 6.0), part("update", 0.3, 0.5),
            part("figures", 0.0), part("handlers", 0.0), part("handlers/Tiny", 0.001),
        )
    }  # fmt: skip
    usual.update({each.name: each for each in more})
    parts = sorted(
        usual.values(), key=lambda each: (list(usual).index(each.name.partition("/")[0]), each.name)
    )
    return Profile(wall, tuple(parts), tuple(operators), 0.2, 50, 64, how="all is one graph", **facts)


def test_figures() -> None:
    times = profile()
    forward = times.part("forward")
    assert forward.ms == pytest.approx(3.3) and forward.quartiles == pytest.approx((3.135, 3.63))
    assert forward.mean == pytest.approx(3.41) and forward.python_ms == pytest.approx(0.3)
    assert times.total == pytest.approx(10.9) and times.python == pytest.approx(1.4)
    assert times.engine == pytest.approx(9.81) and times.share(forward) == pytest.approx(3.3 / 10.9)
    assert profile(devices=("cpu(0)", "cpu(1)")).engine == pytest.approx(9.81 / 2)
    assert part("figures", 1.0, waits=3.0).waits == pytest.approx(3.0)
    nothing = times.part("figures/none")
    assert (nothing.ms, nothing.mean, nothing.quartiles, nothing.waits) == (0, 0, (0, 0), 0)
    assert repr(times) == "Profile(50 batches, 10 ms per step: backward 58%, forward 30%, update 7%)"


def test_a_profile_without_measurements() -> None:
    empty = Profile(0.0, (Part("forward", ()),))
    assert empty.share(empty.parts[0]) == 0 and empty.advice == []
    assert "sum of the parts" in empty.summary()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Convolution", "forward"), ("_backward_Convolution", "backward"), ("add_n", "backward"),
        ("multi_sgd_mom_update", "update"), ("CopyCPU2CPU", "engine"), ("DeleteVariable", "engine"),
    ],
)  # fmt: skip
def test_kinds_of_operators(name: str, kind: str) -> None:
    assert kind_of(name) == Operator(name, 1, 1.0).kind == kind


@pytest.mark.parametrize(("columns", "bars"), [(80, 0), (100, 3)])
def test_summary(monkeypatch: pytest.MonkeyPatch, columns: int, bars: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = profile(notes=("a note",)).summary(operators=2)
    lines, running = text.splitlines(), " ".join(text.split())
    assert lines[0] == "a step of 64 samples on cpu(0) takes 10 ms (50 batches)"
    assert max(map(len, lines)) <= columns
    (forward,) = (line.split() for line in lines if line.startswith("forward"))
    assert forward[:8] == ["forward", "3.300", "3.135", "3.630", "3.410", "0.300", "0.000", "30%"]
    assert sum("█" in line for line in lines) == bars
    assert "  net " in text and "Tiny" not in text  # pieces that take no time are left out
    assert "of 10 ms, Python works for 1.4 ms (14%) and the engine for 9.81 ms (98%)" in running
    (operator,) = (line.split() for line in lines if line.startswith("Convolution"))
    assert operator == ["Convolution", "forward", "4", "3.000", "750.0", "31%"]
    assert "… and 2 more" in text and "a note" in text and "adam_update" not in text
    assert "=> the engine is busy for 98% of a step" in running


def test_no_share_exceeds_the_whole() -> None:
    slow = part("handlers", 28.0), part("handlers/One", 14.0), part("handlers/Two", 14.0)
    metric = part("figures/f1", 13.0), part("figures", 13.0)
    for more in (slow, metric, (part("data", 15.0), part("data/loader", 15.0))):
        for operators in (OPERATORS, [Operator("Convolution", 4, 13.8)]):
            for times in (profile(*more, operators=operators), profile(*more, operators=operators[:0])):
                text = " ".join(times.summary().split())
                assert max(int(number) for number in re.findall(r"(\d+) ?%", text)) <= 100
                assert ("the engine for all of it" in text) == (times.engine > 10)


def test_a_summary_of_less() -> None:
    assert "Convolution  " not in profile().summary(operators=0)
    assert "1 sample on cpu(0) takes 1 ms (1 batch)" in Profile(1.0, (), batches=1, samples=1).summary()


IDLE = {"operators": OPERATORS[2:]}  # the engine works for 0.8 of 10 ms
ADVICE = {
    "engine": (profile(),
               "the engine is busy for 98% of a step, so its operators are the limit; the longest is "
               "_backward_Convolution with 61% of their time"),
    "python": (profile(part("forward", 6.0), **IDLE), "the engine is idle for 92% of a step"),
    "loader": (profile(part("data", 9.0), part("data/loader", 8.9), wall=11.0, **IDLE),
               "the loader takes 81% of a step, and the engine is idle for 93%"),
    "handler": (profile(part("handlers", 4.0), part("handlers/Slow", 4.0), **IDLE),
                "Slow takes 41% of a step"),
    "metric": (profile(part("figures", 0.5, waits=8.0), part("figures/f1", 0.5, waits=8.0), **IDLE),
               'the metric "f1" is updated on the host, which takes 85% of a step, 8 ms of it waiting'),
    "busy metric": (profile(part("figures", 5.0), part("figures/f1", 5.0), **IDLE),
                    "which takes 50% of a step: MetricSpec"),
    "hybridize": (profile(part("forward", 3.0), hybridizable=True, **IDLE),
                  "the net is not hybridized, so Python"),
}  # fmt: skip


@pytest.mark.parametrize("case", ADVICE)
def test_advice(case: str) -> None:
    times, message = ADVICE[case]
    assert len(times.advice) == 1 and message in times.advice[0]


def test_no_advice_if_nothing_is_clear() -> None:
    assert profile(operators=()).advice == []
    assert profile(part("forward", 3.0, 3.0), operators=OPERATORS[:1]).advice == []
    # Python work while the engine is busy costs nothing
    parts = [part("data/loader", 5.0), part("handlers/A", 5.0), part("figures/f1", 5.0), part("forward", 5.0)]
    assert profile(*parts, hybridizable=True).advice == profile().advice


def test_a_loader_that_waits_for_the_engine_is_not_blamed() -> None:
    assert "loader" not in "".join(profile(part("data/loader", 0.5, waits=8.0), **IDLE).advice)


def test_at_most_two_sentences_with_the_most_rewarding_first() -> None:
    parts = [part("handlers", 9.0), part("handlers/A", 2.5), part("handlers/B", 3.5), part("handlers/C", 3.0)]
    assert [line.split()[0] for line in profile(*parts, **IDLE).advice] == ["B", "C"]


def test_json(tmp_path: Path) -> None:
    content = json.loads(profile().to_json(tmp_path / "profile.json"))
    assert json.loads((tmp_path / "profile.json").read_text()) == content
    assert content["wall_ms"] == 10 and content["parts"]["forward"]["ms"] == pytest.approx(3.3)
    assert content["parts"]["forward/net"]["waits_ms"] is None
    first = {"name": "_backward_Convolution", "kind": "backward", "count": 4, "ms": 6.0}
    assert content["operators"][0] == first
    assert json.loads(profile(operators=()).to_json())["engine_ms"] is None


def test_plot(tmp_path: Path) -> None:
    figure = profile().plot(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    parts, operators = figure.axes
    labels = [label.get_text() for label in parts.get_yticklabels()]
    assert labels == ["data", "loader", "forward", "net", "backward", "update", "figures", "handlers"]
    assert [label.get_text() for label in operators.get_yticklabels()] == [each.name for each in OPERATORS]
    # stairs: backward starts where forward ended
    bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in parts.patches if bar.get_width() > 0.25}
    assert bars[4].get_x() + bars[4].get_width() == pytest.approx(0.5 + 3.3 + 6.3)
    assert len(profile(operators=()).plot().axes) == 1


def test_the_legends_of_a_plot_cover_nothing() -> None:
    figure = profile(part("forward", 0.0), part("backward", 0.0), part("update", 5.0)).plot()
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend, title = axes.get_legend().get_window_extent(), axes._left_title.get_window_extent()
        assert axes.bbox.y1 <= legend.y0 and legend.y1 <= title.y0


def test_a_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install"):
        profile().plot()
