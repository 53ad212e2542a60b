"""``multifit compare``: Δm of runs against single tasks, in a table and in words."""

import json
from pathlib import Path
from typing import Any

import pytest

from multifit.handlers.history import History

from .results import record_of

WAYS = {"val_loss": "min", "val_a": "min", "val_a_acc": "max", "val_b": "min"}


def write_run(folder: str, tasks: Any = ("val_a_acc", "val_b"), only: Any = (), **figures: Any) -> None:
    """Write what `compare` reads of a run; the figures' values are those of two epochs, or of the last."""
    Path(folder).mkdir(parents=True)
    values = {name: value if isinstance(value, list) else [9.0, value] for name, value in figures.items()}
    History(values).to_json(Path(folder, "history.json"))
    ways = {name: way for name, way in WAYS.items() if name in figures}
    Path(folder, "settings.json").write_text(json.dumps({"directions": ways, "tasks": tasks, "only": only}))


@pytest.fixture
def runs() -> None:
    """Two seeds of each: a run of both tasks, a better one, and the single tasks."""
    for seed, (acc, error, alone) in enumerate([(0.4, 2.2, 0.5), (0.6, 1.8, 0.5)]):
        write_run(f"sum/seed-{seed}", val_a=1.0, val_a_acc=acc, val_b=error)
        write_run(f"better/seed-{seed}", val_a=1.0, val_a_acc=0.6 + seed / 100, val_b=1.0)
        write_run(f"a/seed-{seed}", ["val_a_acc"], val_a=1.0, val_a_acc=alone)
    write_run("b", ["val_b"], val_b=2.0)
    write_run("one", val_a=1.0, val_a_acc=0.45, val_b=2.0)


def lines(result: Any) -> list[str]:
    """Return what was printed, with one space between columns."""
    return [" ".join(line.split()) for line in result.out.splitlines() if line]


def test_the_change_is_relative_to_single_tasks(runs, multifit):
    """Of the sum: (-20 % - 10 %) / 2 and (+20 % + 10 %) / 2, so 0 with a deviation of 15 √2."""
    result = multifit("compare", "sum", "better", "one", "--baseline", "a", "b")
    assert result.code == 0
    assert lines(result) == [
        "run val_a_acc val_b Δm in %",
        "-------- --------------- --------------- -----------",
        "baseline 0.5000 ± 0.0000 2.0000",
        "sum 0.5000 ± 0.1414 2.0000 ± 0.2828 +0.0 ± 21.2",
        "better 0.6050 ± 0.0071 1.0000 ± 0.0000 +35.5 ± 0.7",
        "one 0.4500 2.0000 -5.0",
        "better is 35.5 points above sum: more than the spread of the seeds",
        "one has one seed, which has no spread: train it with --seeds 3",
    ]


def test_without_a_baseline_it_is_the_first_run_and_figures_may_be_named(runs, multifit):
    assert lines(multifit("compare", "one", "sum"))[2:4] == [
        "one 0.4500 2.0000 +0.0",
        "sum 0.5000 ± 0.1414 2.0000 ± 0.2828 +5.6 ± 22.8",
    ]
    write_run("near/seed-0", val_a=1.0, val_a_acc=0.5, val_b=2.1)
    write_run("near/seed-1", val_a=1.0, val_a_acc=0.5, val_b=2.0)
    assert "within the spread of the seeds" in multifit("compare", "sum", "near").out
    result = multifit("compare", "sum", "--baseline", "a", "--figure", "val_a", "val_a_acc")
    assert lines(result)[0] == "run val_a val_a_acc Δm in %" and result.code == 0
    assert lines(result)[3].endswith("+0.0 ± 14.1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not the folder of a run that has ended: No such file"),
        (["killed"], "killed/seed-1 is not the folder of a run that has ended: 'directions'"),
        (["sum", "--baseline", "a"], 'no baseline has "val_b": give runs of these tasks, too'),
        (["train"], 'train has no validation figure of which more or less is better; its figures'),
        (["sum", "--baseline", "a", "b", "--figure", "val_b_acc"], 'a has no "val_b_acc"; its figures'),
        (["sum", "--baseline", "a", "--figure", "val_a", "val_b"], 'baseline of "val_b" is missing: give'),
        (["a", "--baseline", "b"], 'a has no number for "val_b" (did you mean "val_a"?); its'),
        (["nan"], 'nan has no number for "val_b"'),
        (["r2"], 'the baseline of "val_b" is -0.5, but must be above 0: give'),
        (["sum", "--baseline", "a", "b", "c"], 'b and c train different tasks, but both have "val_b": give'),
        (["mixed"], "mixed/seed-1 is not a seed of the same run: its file, tasks or settings differ"),
        (["odd", "--figure", "val_odd"], 'is more of "val_odd" better, or less? Give its MetricSpec a mode='),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_named(runs, multifit, arguments, message):
    write_run("killed/seed-0", val_a=1.0)
    write_run("killed/seed-1", val_a=1.0)
    Path("killed/seed-1/settings.json").write_text("{}")
    write_run("c", ["val_b"], ["c"], val_b=2.0)
    write_run("mixed/seed-0", val_a=1.0)
    write_run("mixed/seed-1", only=["a"], val_a=1.0)
    write_run("train", [], train_loss=1.0)
    write_run("nan", ["val_b"], val_b=[1.0, float("nan")])
    write_run("r2", ["val_b"], val_b=-0.5)
    write_run("odd", [], val_odd=1.0)
    result = multifit("compare", *arguments)
    assert result.code == 2 and message in result.err and not result.out


def test_real_runs(write, multifit):
    """Single tasks, all of them with Δm in each epoch, and the same number after the last one."""
    path = write()
    for task in ("kind", "place"):
        assert multifit("train", path, "--only", task, "--quiet").code == 0
    baseline = ("--baseline", "runs/small-kind", "runs/small-place")
    delta = """
from multifit import DeltaM
def handlers():
    return [DeltaM("runs/small-kind", "runs/small-place")]
"""
    assert multifit("train", write(delta), "--output", "all", "--quiet").code == 0
    change = History.from_json("all/history.json")["delta_m"]
    result = multifit("compare", "all", *baseline)
    assert lines(result)[3].endswith(f" {change[-1]:+.1f}") and len(set(change)) == 2
    assert record_of("all")["directions"]["delta_m"] == "max"
