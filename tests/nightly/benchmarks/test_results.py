"""Medians, pairwise ratios, targets and the report."""

import json

import pytest

from nightly.benchmarks.heads import summed_up
from nightly.benchmarks.results import TARGETS, Row, Target, machine, markdown, spread, verdicts, write


def row(table: str = "heads", case: str = "2 heads", **values: list[float]) -> Row:
    return Row(table, case, "ms per step", {name.replace("_", " "): own for name, own in values.items()})


def test_a_ratio_is_taken_pair_by_pair():
    """The machine became ten times slower meanwhile, which ratios of medians would not show."""
    found = row(multifit=[1, 10, 100], slow=[2, 20, 200], fast=[1, 5, 50])
    assert found.ratios() == {"/ slow": [0.5] * 3, "/ fast": [1, 2, 2]}
    assert found.figures()["/ slow"] == (0.5, 0.5, 0.5)
    assert Row.of_seconds("t", "c", {"multifit": [0.5]}, 10).values == {"multifit": [50.0]}


def test_quartiles():
    assert spread([5, 1, 3, 2, 4]) == (3, 1.5, 4.5)
    assert spread([7]) == (7, 7, 7)
    assert str(spread([1.23456])) == "1.23 (1.23 … 1.23)"


@pytest.mark.parametrize(("limit", "met"), [(0.5, True), (0.49, False)])
def test_the_median_decides_whether_a_target_is_met(limit, met):
    target = Target("heads", "2 heads", "/ hand", limit)
    unmeasured = Target("heads", "3 heads", "/ hand", 1)
    (verdict,) = verdicts([row(multifit=[1, 1, 9], hand=[2, 2, 2])], [target, unmeasured])
    assert (verdict.measured, verdict.met) == (0.5, met)


def test_every_target_belongs_to_a_measured_case():
    from nightly.benchmarks.main import TABLES

    for target in TARGETS:
        if target.table != "gpu":  # test_engines.py has these, which need torch
            assert any(target.case.startswith(str(case)) for case in TABLES[target.table].CASES), target
    assert len({target[:3] for target in TARGETS}) == len(TARGETS)


def test_the_cost_of_one_more_head():
    counts = {"1 head": 1, "2 heads": 99, "4 heads": 4, "16 heads": 16}
    rows = [row(case=name, multifit=[n, 2 * n], hand=[2 * n, 2 * n]) for name, n in counts.items()]
    (found,) = summed_up([*rows, row(case="2 heads, adam", multifit=[0, 0])])
    assert found.values["multifit"] == pytest.approx([1000, 2000])
    assert found.values["hand"] == pytest.approx([2000, 2000])
    assert list(summed_up(rows[:1])) == []


def test_the_report(tmp_path):
    rows = [
        Row(table, case, "ms per step", {"multifit": ours, "hand-written": [4.0, 8.0]})
        for table, case, ours in (("heads", "2 heads", [1.0, 2.0]), ("step_time", "MLP", [6.0, 12.0]))
    ]
    path = write(tmp_path / "new", "now", {"cores": "2"}, rows)
    text = path.read_text("utf-8")
    assert text == markdown("now", {"cores": "2"}, rows)
    assert "1 of 2 are met" in text and "cores: 2" in text
    assert "| heads | 2 heads | / hand-written | 0.250 | 0.8 | met |" in text
    assert "| step_time | MLP | / hand-written | 1.500 | 0.85 | **not met** |" in text
    kept = json.loads(path.with_suffix(".json").read_text("utf-8"))
    assert kept["machine"] == {"cores": "2"}
    assert kept["rows"][0]["values"]["hand-written"] == [4.0, 8.0]
    assert kept["rows"][0]["figures"]["/ hand-written"]["median"] == 0.25
    assert [each["met"] for each in kept["targets"]] == [True, False]


def test_the_machine():
    found = machine()
    assert found["memory"].endswith(" GiB") and float(found["memory"][:-4]) > 0
    assert int(found["cores"]) > 0 and found["OMP_NUM_THREADS"] and found["commit"] and found["load average"]
