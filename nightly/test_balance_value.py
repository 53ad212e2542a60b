"""Train with every method of balancing on three problems, over six seeds; write ``balance.md``."""

from pathlib import Path

from .balance_value import METHODS, PROBLEMS, main


def test_balance_value(pytestconfig):
    folder = Path(pytestconfig.getoption("report"))
    assert main(["--output", str(folder)]) == 0
    text = (folder / "balance.md").read_text("utf-8")
    assert all(text.count(name) >= len(PROBLEMS) for name in METHODS) and "nan" not in text
