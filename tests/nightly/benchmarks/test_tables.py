"""The command, and each table at its smallest."""

import json
import sys

import pytest

from nightly.benchmarks import balance, others, rounds
from nightly.benchmarks.main import TABLES, main

SMALLEST = {
    "step_time": ("MLP", {"multifit", "hand-written", "hand-written, loss hybridized", "Gluon"}),
    "heads": ("1 head", {"multifit", "hand-written", "hand-written, loss hybridized", "fused by hand"}),
}


@pytest.fixture(autouse=True)
def without_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the times; test_rounds.py tests what comes before the rounds that count."""
    monkeypatch.setattr(rounds, "WARM", 0)
    monkeypatch.setattr(rounds, "STEADY", 0.0)


@pytest.mark.parametrize("name", SMALLEST)
def test_a_table(name):
    begin, contenders = SMALLEST[name]
    case = next(case for case in TABLES[name].CASES if str(case).startswith(begin))
    first, *_ = TABLES[name].measure(case, 1)
    assert first.table == name and first.values.keys() == contenders
    assert all(len(values) == 1 and values[0] > 0 for values in first.values.values())


def test_others_run_in_another_environment(tmp_path, monkeypatch):
    """The rival here only reads the data, so it runs in any environment."""
    rival = tmp_path / "rival.py"
    rival.write_text(
        f"import sys; sys.path.insert(0, {str(others.Path(others.__file__).parent / 'rivals')!r})\n"
        "from common import Data, serve\n"
        "data = Data(sys.argv[1])\n"
        "assert len(data.batches()) == 23 and data.batches()[0][0].shape == (64, 1, 8, 8)\n"
        "assert [w.shape for w, b in data.parameters] == [(128, 64), (64, 128), (10, 64), (1, 64)]\n"
        "assert (sys.argv[2], data.kind.dtype, data.odd.shape) == ('sgd', 'int64', (1472, 1))\n"
        "serve(lambda: [2.2304, 0.6694, 0.2527, 0.5666])\n"
    )
    monkeypatch.setattr(others, "PYTHON", sys.executable)
    monkeypatch.setattr(others, "RIVALS", {"rival": (str(rival), {})})
    (row,) = others.measure(others.CASES[0], 1)
    assert row.values.keys() == {"multifit", "rival"} and len(row.ratios()["/ rival"]) == 1


def test_a_rival_that_trains_another_net_is_an_error():
    history = {"train_loss": [3.0, 1.0], "train_a": [2.0, 1.0], "train_b": [0.5, 0.9], "lr": [0.1, 0.1]}
    others.check_alike(history, {"near": [2.001, 0.5]})
    with pytest.raises(ValueError, match=r"far trains another net: .* \[2.1, 0.5\], ours to \[2.0, 0.5\]"):
        others.check_alike(history, {"near": [2.001, 0.5], "far": [2.1, 0.5]})


def test_the_command(tmp_path, capsys):
    assert main(["step_time", "--case", "mlp", "--epochs", "1", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "step_time: MLP done" in said and "/ hand-written" in said and "/ Gluon" in said
    assert "2 heads" not in said
    (kept,) = tmp_path.glob("*.json")
    assert [row["case"] for row in json.loads(kept.read_text())["rows"]] == ["MLP"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["head"], 'there is no table head (did you mean "heads"?)'),
        (["heads", "--epochs", "0"], "0 is not above 0"),
    ],
)
def test_wrong_arguments_are_an_error(arguments, said, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert said in capsys.readouterr().err


def test_balance_has_a_row_for_each_method(monkeypatch):
    monkeypatch.setattr(balance, "GRADIENTS", ("UPGrad",))
    monkeypatch.setattr(balance, "LOSSES", (balance.SUM, "DWA"))
    monkeypatch.setattr(balance, "PYTHON", "")
    net, *_, solvers = balance.CASES
    rows = [*balance.measure(net, 1), *balance.measure(solvers, 1)]
    assert {row.case: set(row.values) for row in rows} == {
        "MLP, 2 tasks, the sum": {"multifit"},
        "MLP, 2 tasks, DWA": {"multifit"},
        "MLP, 2 tasks, UPGrad": {"multifit", "multifit, features"},
        "solver, 40 tasks, UPGrad": {"multifit"},
    }


@pytest.mark.parametrize("case", [balance.CASES[0], balance.CASES[-1]], ids=str)
def test_balance_beside_torchjd_in_another_environment(case, tmp_path, monkeypatch):
    """The rival here only reads its arrays, so it runs in any environment."""
    rivals = tmp_path / "rivals"
    rivals.mkdir()
    (rivals / "torchjd_balance.py").write_text(
        f"import sys; sys.path.insert(0, {str(others.Path(others.__file__).parent / 'rivals')!r})\n"
        "import numpy as np\n"
        "from common import Line\n"
        "arrays = np.load(sys.argv[1])\n"
        "shapes = [arrays[name].shape for name in arrays.files]\n"
        "net = [(1472, 1, 8, 8), (1472,), (1472,)], ['MLP', '64']\n"
        "assert (shapes, sys.argv[2:4]) in (net, ([(40, 40)] * 5, ['', '0']))\n"
        "line = Line(); line.answer('ready')\n"
        "while line.wait(): line.answer(2.0)\n"
    )
    monkeypatch.setattr(balance, "__file__", str(tmp_path / "balance.py"))
    monkeypatch.setattr(balance, "PYTHON", sys.executable)
    monkeypatch.setattr(balance, "GRADIENTS", ("MGDA",))
    monkeypatch.setattr(balance, "LOSSES", ())
    monkeypatch.setattr(balance, "THEIRS", ("MGDA",))
    (row,) = balance.measure(case, 1)
    assert row.case == f"{case}, MGDA" and len(row.values["TorchJD"]) == 1 and "/ TorchJD" in row.ratios()
