"""The table that says what balancing is worth, at its smallest."""

import re

from nightly.balance_value import main


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
