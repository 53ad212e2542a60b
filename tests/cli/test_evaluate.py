"""``multifit evaluate`` measures what was trained, with the settings that it was trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multifit.cli.record import RunRecord, read_record, write_record


def figures_of(out: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in out.strip().split("\n"))}


@pytest.fixture
def evaluate(trained, multifit):
    return lambda: multifit("evaluate", trained, "--from", "runs/small", "--quiet")


def test_it_measures_what_training_measured_last(evaluate):
    result = evaluate()
    history = json.loads(Path("runs/small/history.json").read_text())
    expected = {name[4:]: values[-1] for name, values in history.items() if name.startswith("val_")}
    assert result.code == 0 and figures_of(result.out) == pytest.approx(expected, rel=1e-4)


def test_the_record_of_a_run(trained):
    record = json.loads(Path("runs/small/settings.json").read_text())
    assert record["settings"] == {"epochs": 2, "rate": 0.1}
    assert (record["seed"], record["epochs"], record["devices"]) == (3, 2, ["cpu(0)"])
    assert Path(record["file"]).name == "small.py"
    assert set(record["versions"]) == {"python", "numpy", "mxnet"}


def test_epochs_of_the_command_line_are_the_files_setting(write, multifit):
    path = write("def trainers(net): return TrainerSpec('.*', 'sgd', {'learning_rate': 0.01 * epochs})\n")
    multifit("train", path, "--epochs", 3)
    assert json.loads(Path("runs/small/settings.json").read_text())["settings"]["epochs"] == 3
    assert json.loads(Path("runs/small/history.json").read_text())["lr"] == pytest.approx([0.03] * 3)


def test_settings_that_json_cannot_hold_are_left_out(tmp_path):
    record = RunRecord("small.py", {"heads": [len], "rate": 0.1}, seed=3, checkpoint_every=[2, "batch"])
    assert write_record(tmp_path, record) == "settings.json"
    same = read_record(tmp_path, Path("elsewhere/small.py"))
    assert (same.settings, same.seed, same.epochs) == ({"rate": 0.1}, 3, None)
    assert (same.schedule.n, same.schedule.unit) == (2, "batch")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda run: (run / "settings.json").unlink(),
            "runs/small is not the folder of a run: settings.json: No such",
        ),
        (lambda run: (run / "settings.json").write_text("{"), "cannot read runs/small/settings.json: "),
        (lambda run: (run / "settings.json").write_text("[]"), "it must have settings and a seed"),
        (lambda run: (run / "final.params").unlink(), "runs/small/final.params does not fit the net of"),
        (
            lambda run: (run / "settings.json").write_text('{"settings": {"width": 5}, "seed": 0}'),
            'has no setting "width"; it has "epochs", "rate"',
        ),
        (
            lambda run: (run / "settings.json").write_text('{"file": "a/big.py", "settings": {}, "seed": 0}'),
            "runs/small is a run of a/big.py, not of",
        ),
    ],
)
def test_a_folder_that_is_not_a_run_of_the_file_is_an_error(evaluate, spoil, message):
    spoil(Path("runs/small"))
    result = evaluate()
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1


def test_parameters_of_another_net_are_an_error(evaluate, write):
    write("", **{"nn.Dense(2), nn.Dense(1)": "nn.Dense(3, in_units=3), nn.Dense(1)"})
    result = evaluate()
    assert result.code == 2 and "final.params does not fit the net of" in result.err


def test_a_file_without_validation_data_is_an_error(evaluate, write):
    write("both = data\ndef data(seed): return both(seed)[0]\n")
    result = evaluate()
    assert result.code == 2 and "has no validation data" in result.err


def test_a_missing_data_file_is_reported_in_one_line(write, multifit):
    result = multifit("check", write("def data(): open('points.csv')\n"))
    assert (result.code, result.err) == (
        2,
        "multifit: [Errno 2] No such file or directory: 'points.csv'\n",
    )
