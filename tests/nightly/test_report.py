"""Nightly reports are saved and compared, and show slow declines."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from nightly.report import Result, Summary, markdown, provenance, read_summaries, write_summary  # noqa: E402
from nightly.test_quality import error_of  # noqa: E402


def summary(time: str, value: float, device: str = "cpu") -> Summary:
    result = Result("classification model=mlp", "val_accuracy", value, 0.97, 20, 12.3, 340.2)
    return Summary(time, device, {"commit": "abc"}, [result])


def cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.strip().split("\n")[-1].strip("|").split("|")]


def test_the_first_report_has_nothing_to_compare_with():
    text = markdown(summary("1", 0.98), [])
    assert "1 of 1 figures reach their floor. commit abc" in text
    assert cells(text) == [
        "classification model=mlp", "val_accuracy", "0.9800", "0.97", "+0.0100", "", "", "20", "12", "340",
    ]  # fmt: skip


def test_figures_below_their_floor_are_marked():
    text = markdown(summary("1", 0.96), [])
    assert "0 of 1 figures reach" in text and cells(text)[2:5] == ["**0.9600**", "0.97", "-0.0100"]


def test_a_slow_decline_is_marked():
    days = [summary(str(day), 0.99 - 0.004 * day) for day in range(5)]
    assert cells(markdown(days[1], days[:1]))[5:7] == ["-0.0040", "-0.0040"]
    assert cells(markdown(days[4], days[:4]))[5:7] == ["-0.0040", "**-0.0160**"]


@pytest.mark.parametrize(
    "listed, heading", [("failures", "These failed"), ("refused", "These are refused by the engine")]
)
def test_rows_that_were_not_trained_are_listed_with_the_reason(listed, heading, tmp_path):
    day = summary("2026-01-01", 0.98)._replace(**{listed: (("detection", "it has no translation"),)})
    text = write_summary(tmp_path, day, []).read_text()
    assert text.endswith(f"\n\n{heading}:\n\n* detection: it has no translation\n")
    assert read_summaries(tmp_path, "cpu") == [day]


def test_an_error_is_what_the_command_says():
    refusal = 'multifit: spec:\n  engine="torch": no;\n  leave it out\n'
    assert error_of(f"Warning: multifit: old\n{refusal}", 1) == 'spec: engine="torch": no; leave it out'
    assert error_of("Traceback\nKeyError: 3\n", 1) == "Traceback KeyError: 3"
    assert error_of("", 9) == "exit status 9"


def test_reports_are_saved_by_device(tmp_path):
    write_summary(tmp_path, summary("2026-01-01", 0.98), [])
    write_summary(tmp_path, summary("2026-01-03", 0.99, "gpu"), [])
    path = write_summary(tmp_path, summary("2026-01-02", 0.97), read_summaries(tmp_path, "cpu"))
    assert path.name == "report-cpu.md" and cells(path.read_text())[5] == "-0.0100"
    assert read_summaries(tmp_path, "cpu") == [summary("2026-01-01", 0.98), summary("2026-01-02", 0.97)]
    saved = json.loads((tmp_path / "2026-01-02-cpu.json").read_text())
    assert saved["results"][0]["value"] == 0.97 and saved["provenance"] == {"commit": "abc"}


def test_a_report_has_versions_and_commit(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")  # without git
    versions = provenance()
    assert versions["mxnet"].startswith("1.9") and set(versions) >= {"commit", "multifit", "numpy", "python"}
    assert versions["commit"] == "unknown"
