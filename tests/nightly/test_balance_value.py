"""The table that says what balancing is worth, at its smallest."""

import numpy as np
import pytest

from nightly.balance_value import delta_m, main


def test_changes_are_relative_and_more_is_better():
    single = np.array([[0.5, 10.0], [0.5, 10.0]])
    values = np.array([[0.6, 10.0], [0.5, 5.0]])
    assert delta_m(values, single, [True, False]) == pytest.approx([0.1, 0.25])


def test_the_table_of_a_problem(tmp_path, capsys):
    options = ["--problem", "diabetes", "--method", "UPGrad", "--seeds", "1", "--epochs", "1"]
    assert main([*options, "--output", str(tmp_path)]) == 0
    text = (tmp_path / "balance.md").read_text("utf-8")
    assert [name for name in ("single-task nets", "sum of losses", "UPGrad", "MGDA") if name in text] == [
        "single-task nets", "sum of losses", "UPGrad",
    ]  # fmt: skip
    assert "diabetes, 1 seeds" in text and text.count("%") == 3 and "nan" not in text
