"""The table of floors and its reports, which show slow declines; what balancing is worth."""

import json
import re

import pytest

from multifit.cli.taskfile import TaskFile
from nightly import balance_value
from nightly.report import Result, Summary, markdown, provenance, read_summaries, write_summary
from nightly.table import LOWERED, ROWS
from nightly.test_quality import ROOT, error_of


def test_every_task_has_a_floor_on_a_cpu_and_names_are_unique():
    tasks = {path.stem for path in (ROOT / "tasks").glob("*.py")}
    assert {row.task for row in ROWS if row.device == "cpu"} == tasks
    assert len({(row.device, row.name) for row in ROWS}) == len(ROWS)
    assert {row.name for row in ROWS if row.precision != "float32"} == {
        f"{name} bfloat16" for name in LOWERED
    }


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.device},{row.name}".replace(" ", ",") for row in ROWS])
def test_rows_use_settings_of_their_task(row):
    if row.library == "torch":
        pytest.importorskip("torch")
    settings = row.settings.split() + ([f"dataset={row.data}", "root=."] if row.data else [])
    TaskFile(ROOT / "tasks" / f"{row.task}.py").set(settings)
    assert row.device in ("cpu", "gpu") and row.epochs > 0
    assert row.floors and all(0 < floor < 1 for floor in row.floors.values())
    assert all(figure.startswith("val_") for figure in row.floors)


# ---- reports -----------------------------------------------------------------------------------------------


def summary(time: str, value: float, device: str = "cpu") -> Summary:
    result = Result("classification model=mlp", "val_accuracy", value, 0.97, 20, 12.3, 340.2)
    return Summary(time, device, {"commit": "abc"}, [result])


def cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.strip().split("\n")[-1].strip("|").split("|")]


def test_a_report_compares_with_floors_and_earlier_reports():
    text = markdown(summary("1", 0.98), [])
    assert "1 of 1 figures reach their floor. commit abc" in text
    assert cells(text) == [
        "classification model=mlp", "val_accuracy", "0.9800", "0.97", "+0.0100", "", "", "20", "12", "340",
    ]  # fmt: skip
    text = markdown(summary("1", 0.96), [])
    assert "0 of 1 figures reach" in text and cells(text)[2:5] == ["**0.9600**", "0.97", "-0.0100"]
    days = [summary(str(day), 0.99 - 0.004 * day) for day in range(5)]
    assert cells(markdown(days[1], days[:1]))[5:7] == ["-0.0040", "-0.0040"]
    assert cells(markdown(days[4], days[:4]))[5:7] == ["-0.0040", "**-0.0160**"]  # a slow decline


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


def test_reports_are_saved_by_device_with_versions_and_commit(tmp_path, monkeypatch):
    write_summary(tmp_path, summary("2026-01-01", 0.98), [])
    write_summary(tmp_path, summary("2026-01-03", 0.99, "gpu"), [])
    path = write_summary(tmp_path, summary("2026-01-02", 0.97), read_summaries(tmp_path, "cpu"))
    assert path.name == "report-cpu.md" and cells(path.read_text())[5] == "-0.0100"
    assert read_summaries(tmp_path, "cpu") == [summary("2026-01-01", 0.98), summary("2026-01-02", 0.97)]
    saved = json.loads((tmp_path / "2026-01-02-cpu.json").read_text())
    assert saved["results"][0]["value"] == 0.97 and saved["provenance"] == {"commit": "abc"}
    monkeypatch.setenv("PATH", "/nowhere")  # without git
    versions = provenance()
    assert versions["mxnet"].startswith("1.9") and set(versions) >= {"commit", "multifit", "numpy", "python"}
    assert versions["commit"] == "unknown"


def test_the_table_of_what_balancing_is_worth(tmp_path, monkeypatch):
    """At its smallest; nothing is trained twice."""
    fits, fitted = [], balance_value.Problem.fitted
    monkeypatch.setattr(
        balance_value.Problem, "fitted", lambda *arguments: fits.append(arguments) or fitted(*arguments)
    )
    monkeypatch.setattr(balance_value, "FORMS", {"parameters": {"on": "parameters"}})
    small = balance_value.PROBLEMS["few digits"]._replace(forms=("parameters",), rounds={})
    monkeypatch.setitem(balance_value.PROBLEMS, "few digits", small)
    options = ["--problem", "few digits", "--method", "UPGrad", "DWA", "--seeds", "1", "--epochs", "1"]
    assert balance_value.main([*options, "--output", str(tmp_path)]) == 0
    written = (tmp_path / "balance.md").read_text("utf-8")
    assert len(fits) == 5 and len([*(tmp_path / "balance").iterdir()]) == 4  # two of them for single tasks
    assert "few digits, 1 seeds" in written and "nan" not in written
    values = {line.split("  ")[0]: len(re.findall(r"[+-]\d+\.\d", line)) for line in written.splitlines()}
    assert values["UPGrad"] == values["DWA"] == values["sum of losses"] == 1
    assert balance_value.main([*options, "--output", str(tmp_path)]) == 0 and len(fits) == 5
    assert (tmp_path / "balance.md").read_text("utf-8") == written
