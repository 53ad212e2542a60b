"""Benchmarks: contenders take turns and train the same way; figures, targets, the report and the command."""

import json
import sys
from itertools import count
from pathlib import Path

import pytest

from nightly.benchmarks import balance, others, rounds
from nightly.benchmarks.child import Child
from nightly.benchmarks.main import TABLES, main
from nightly.benchmarks.results import TARGETS, Row, Target, machine, markdown, spread, verdicts, write
from nightly.benchmarks.rounds import FEWEST, STEADY, WARM, Rounds, alternate
from nightly.benchmarks.steps import summed_up
from nightly.benchmarks.subjects import HEADS, NMT, SINGLES, SSD

FOLDER = Path(others.__file__).parent

# ---- turns -------------------------------------------------------------------------------------------------


def test_the_second_run_of_a_long_turn_counts_and_short_turns_are_repeated():
    ran, ticks = [], count(1)

    def turn(name: str):
        return lambda: (ran.append(name), next(ticks))[1]

    found = alternate({"a": turn("a"), "b": turn("b")}, 2)
    assert ran == ["a", "a", "b", "b"] * (WARM + 2)
    assert found == {"a": [4 * WARM + 2, 4 * WARM + 6], "b": [4 * WARM + 4, 4 * WARM + 8]}
    ran.clear()
    alternate({"a": lambda: (ran.append("a"), 0.4 * STEADY)[1]}, 1)
    assert ran == ["a"] * 4 * (WARM + 1)


@pytest.mark.parametrize("seconds, number", [(20.0, FEWEST), (1.0, 7), (0.0, 50)])
def test_no_round_begins_after_the_limit(seconds, number):
    ticks = count()
    assert alternate({"a": lambda: 1.0}, 50, 4.0, lambda: seconds * next(ticks)) == {"a": [1.0] * number}


class Estimator:
    """Tells the moments of a fit, and moves a clock by what an epoch takes."""

    now = 0.0

    def __init__(self, epoch: float):
        self.epoch, self.epochs = epoch, 0

    def fit(self, batches, epochs, event_handlers):
        stopped = False
        while not stopped and self.epochs < epochs:
            event_handlers.epoch_begin(self)
            self.epochs += 1
            self.now += self.epoch * self.epochs
            stopped = event_handlers.epoch_end(self)


@pytest.mark.parametrize("epoch, runs", [(1.0, 2), (STEADY / 1e6, None)], ids=["long", "short"])
def test_others_run_between_the_epochs_of_a_fit(epoch, runs):
    estimator, asked = Estimator(epoch), []

    def other() -> float:
        estimator.now += 100  # is not counted as multifit's
        asked.append(estimator.now)
        return 7.0

    found = Rounds({"other": other}, lambda: estimator.now).run(estimator, [], 2)
    assert found["other"] == [7.0, 7.0] and len(asked) == 2 * (WARM + 2)
    assert found["multifit"][-1] == pytest.approx(epoch * estimator.epochs)
    if runs is None:
        assert estimator.epochs > 100 * (WARM + 2)
    else:
        assert found["multifit"] == [runs * (WARM + 1), runs * (WARM + 2)]


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a child, and returns the command that runs it."""

    def write(body: str) -> list[str]:
        path = tmp_path / "child.py"
        path.write_text(
            f"import sys; sys.path.insert(0, {str(FOLDER)!r})\nfrom answering import Line, serve\n{body}\n"
        )
        return [sys.executable, str(path)]

    return write


def test_a_process_runs_an_epoch_on_each_request(script, tmp_path):
    log = tmp_path / "log"
    body = f"serve(lambda: (print('noise'), [open({str(log)!r}, 'a').write('.'), 0.5])[1])"
    with Child(script(body)) as child:
        assert child.greeting == "ready" and not log.exists()
        for _ in range(3):
            seconds, *figures = child.ask()
            assert 0 < seconds < 1 and figures == [1, 0.5]
        assert log.read_text() == "..."
    assert child._process.returncode == 0
    clock = "clock = iter([-7.0, 0.0, 2.5, 100.0, 101.5, 200.0])\nline = Line(lambda: next(clock))\n"
    with Child(script(clock + "while line.turn(): pass")) as child:
        assert [child.ask(), child.ask()] == [[2.5], [1.5]]  # waiting is not timed
    with pytest.raises(RuntimeError, match="(?s)child.py ended with code 1:.*ValueError: no"):
        Child(script("raise ValueError('no')"))


# ---- contenders --------------------------------------------------------------------------------------------

CASES = {str(case): case for case in (*HEADS, *SINGLES, SSD, NMT)}


@pytest.mark.parametrize(
    ("name", "batches", "tolerance"),
    [
        ("2 heads", 4, 1e-4), ("4 heads", 4, 1e-4), ("MLP", 4, 1e-4), ("tiny FCN, mean IoU", 2, 1e-3),
        # These loops return the mean of the batches' means, which is equal for batches that are the same.
        ("NMT", None, 1e-4), ("SSD", None, 1e-3),
    ],
)  # fmt: skip
def test_contenders_have_the_same_figures_after_an_epoch(name, batches, tolerance):
    case = CASES[name]
    read = case.batches()[:1] * 2 if batches is None else case.batches()[:batches]
    history = case.estimator().fit(read, epochs=1)
    ours = [values[-1] for figure, values in history.items() if not figure.startswith(("train_loss", "lr"))]
    wanted = {"SSD": ours[-2:], "tiny FCN, mean IoU": ours[::2]}.get(name, ours)  # parts; without pixels
    for other, epoch in case.others().items():
        assert epoch(read) == pytest.approx(wanted, rel=tolerance), other


def test_a_rival_that_trains_another_net_is_an_error():
    history = {"train_loss": [3.0, 1.0], "train_a": [2.0, 1.0], "train_b": [0.5, 0.9], "lr": [0.1, 0.1]}
    others.check_alike(history, {"near": [2.001, 0.5]})
    with pytest.raises(ValueError, match=r"far trains another net: .* \[2.1, 0.5\], ours to \[2.0, 0.5\]"):
        others.check_alike(history, {"near": [2.001, 0.5], "far": [2.1, 0.5]})


# ---- results -----------------------------------------------------------------------------------------------


def row(table: str = "heads", case: str = "2 heads", **values: list[float]) -> Row:
    return Row(table, case, "ms per step", {name.replace("_", " "): own for name, own in values.items()})


def test_a_ratio_is_taken_pair_by_pair():
    """The machine became ten times slower meanwhile, which ratios of medians would not show."""
    found = row(multifit=[1, 10, 100], slow=[2, 20, 200], fast=[1, 5, 50])
    assert found.ratios() == {"/ slow": [0.5] * 3, "/ fast": [1, 2, 2]}
    assert found.figures()["/ slow"] == (0.5, 0.5, 0.5)
    assert Row.of_seconds("t", "c", {"multifit": [0.5]}, 10).values == {"multifit": [50.0]}
    assert (spread([5, 1, 3, 2, 4]), spread([7])) == ((3, 1.5, 4.5), (7, 7, 7))
    assert str(spread([1.23456])) == "1.23 (1.23 … 1.23)"


@pytest.mark.parametrize(("limit", "met"), [(0.5, True), (0.49, False)])
def test_the_median_decides_whether_a_target_is_met(limit, met):
    target = Target("heads", "2 heads", "/ hand", limit)
    unmeasured = Target("heads", "3 heads", "/ hand", 1)
    (verdict,) = verdicts([row(multifit=[1, 1, 9], hand=[2, 2, 2])], [target, unmeasured])
    assert (verdict.measured, verdict.met) == (0.5, met)


def test_every_target_belongs_to_a_measured_case():
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
    found = machine()
    assert found["memory"].endswith(" GiB") and float(found["memory"][:-4]) > 0
    assert int(found["cores"]) > 0 and found["OMP_NUM_THREADS"] and found["commit"] and found["load average"]


# ---- the command and the tables, at their smallest ---------------------------------------------------------


@pytest.fixture
def without_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the times."""
    monkeypatch.setattr(rounds, "WARM", 0)
    monkeypatch.setattr(rounds, "STEADY", 0.0)


@pytest.mark.usefixtures("without_warming_up")
@pytest.mark.parametrize(("name", "case"), [("step_time", "MLP"), ("heads", "1 head")])
def test_the_command(name, case, tmp_path, capsys):
    assert main([name, "--case", f"{case.lower()}", "--epochs", "1", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{name}: {case} done" in said and "/ hand-written" in said and "2 heads" not in said
    (kept,) = tmp_path.glob("*.json")
    (found,) = json.loads(kept.read_text())["rows"]
    contenders = {"multifit", "hand-written"} | ({"fused by hand"} if name == "heads" else set())
    assert (found["table"], found["case"], found["values"].keys()) == (name, case, contenders)
    assert all(len(values) == 1 and values[0] > 0 for values in found["values"].values())


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


RIVALS = (
    f"import sys; sys.path.insert(0, {str(FOLDER / 'rivals')!r})\n"  # which only read, in any environment
)


@pytest.mark.usefixtures("without_warming_up")
def test_others_run_in_another_environment(tmp_path, monkeypatch):
    rival = tmp_path / "rival.py"
    rival.write_text(
        RIVALS + "from common import Data, serve\n"
        "data = Data(sys.argv[1])\n"
        "assert len(data.batches()) == 23 and data.batches()[0][0].shape == (64, 1, 8, 8)\n"
        "assert [w.shape for w, b in data.parameters] == [(128, 64), (64, 128), (10, 64), (1, 64)]\n"
        "assert (sys.argv[2], data.kind.dtype, data.odd.shape) == ('sgd', 'int64', (1472, 1))\n"
        "serve(lambda: [2.2304, 0.6694, 0.2527, 0.5666])\n"
    )
    monkeypatch.setattr(others, "PYTHON", sys.executable)
    monkeypatch.setattr(others, "RIVALS", {"rival": (str(rival), {})})
    (found,) = others.measure(others.CASES[0], 1)
    assert found.values.keys() == {"multifit", "rival"} and len(found.ratios()["/ rival"]) == 1


@pytest.mark.usefixtures("without_warming_up")
def test_balance_beside_torchjd_in_another_environment(tmp_path, monkeypatch):
    (tmp_path / "rivals").mkdir()
    (tmp_path / "rivals" / "torchjd_balance.py").write_text(
        RIVALS + "import numpy as np\n"
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
    monkeypatch.setattr(balance, "GRADIENTS", ("UPGrad",))
    monkeypatch.setattr(balance, "LOSSES", (balance.SUM, "DWA"))
    monkeypatch.setattr(balance, "THEIRS", (balance.SUM, "DWA", "UPGrad"))
    net, *_, solvers = balance.CASES
    rows = [*balance.measure(net, 1), *balance.measure(solvers, 1)]
    assert {each.case: set(each.values) for each in rows} == {
        "MLP, 2 tasks, the sum": {"multifit", "TorchJD"},
        "MLP, 2 tasks, DWA": {"multifit", "TorchJD"},
        "MLP, 2 tasks, UPGrad": {"multifit", "multifit, features", "TorchJD"},
        "solver, 40 tasks, UPGrad": {"multifit", "TorchJD"},
    }
