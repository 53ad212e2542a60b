"""The table that says what balancing is worth, at its smallest."""

import re

import numpy as np
import pytest

from nightly.balance_value import delta_m, main


def test_changes_are_relative_and_more_is_better():
    single = np.array([[0.5, 10.0], [0.5, 10.0]])
    values = np.array([[0.6, 10.0], [0.5, 5.0]])
    assert delta_m(values, single, [True, False]) == pytest.approx([0.1, 0.25])


def test_the_table_of_a_problem(tmp_path):
    options = ["--problem", "diabetes", "--method", "UPGrad", "DWA", "--seeds", "1", "--epochs", "1"]
    assert main([*options, "--output", str(tmp_path)]) == 0
    written = (tmp_path / "balance.md").read_text("utf-8")
    fits = {path: path.stat().st_mtime_ns for path in (tmp_path / "balance").iterdir()}
    assert len(fits) == 7  # single-task nets, the sum, DWA, and UPGrad in four forms
    assert "diabetes, 1 seeds" in written and "nan" not in written
    values = {line.split("  ")[0]: len(re.findall(r"[+-]\d+\.\d", line)) for line in written.splitlines()}
    assert (values["UPGrad"], values["DWA"], values["sum of losses"]) == (4, 1, 1)
    assert main([*options, "--output", str(tmp_path)]) == 0  # nothing is trained again
    assert {path: path.stat().st_mtime_ns for path in fits} == fits
    assert (tmp_path / "balance.md").read_text("utf-8") == written
