"""``multifit evaluate`` measures what was trained, with the settings that it was trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def figures_of(out: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in out.strip().split("\n"))}


@pytest.fixture
def trained(write, multifit):
    """Train the small task with a rate that is not the file's; return a function that evaluates the run."""
    path = write()
    multifit("train", path, "--set", "rate=0.1", "--seed", 3, "--quiet")
    return lambda *options: multifit("evaluate", path, "--from", "runs/small", "--quiet", *options)


def test_it_measures_what_training_measured_last(trained):
    result = trained()
    history = json.loads(Path("runs/small/history.json").read_text())
    expected = {name[4:]: values[-1] for name, values in history.items() if name.startswith("val_")}
    assert result.code == 0 and figures_of(result.out) == pytest.approx(expected, rel=1e-4)


def test_a_run_says_what_it_was_trained_with(trained):
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


def test_settings_that_json_cannot_hold_are_left_out(write, multifit):
    assert multifit("train", write("heads = [len]\n")).code == 0
    assert "heads" not in json.loads(Path("runs/small/settings.json").read_text())["settings"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda run: (run / "settings.json").unlink(),
            "runs/small is no folder of a run: settings.json: No such",
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
def test_a_folder_that_is_no_run_of_the_file_is_refused(trained, spoil, message):
    spoil(Path("runs/small"))
    result = trained()
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1


def test_parameters_of_another_net_are_refused(trained, write, multifit):
    path = write("", **{"nn.Dense(2), nn.Dense(1)": "nn.Dense(3), nn.Dense(1)"})
    multifit("train", path, "--quiet")
    write()
    result = trained()
    assert result.code == 2 and "final.params does not fit the net of" in result.err


def test_a_file_without_validation_data_is_refused(trained, write, multifit):
    write("both = data\ndef data(seed): return both(seed)[0]\n")
    result = trained()
    assert result.code == 2 and "has no validation data" in result.err


def test_a_file_that_is_missing_is_told_in_one_line(write, multifit):
    result = multifit("train", write("def data(): open('points.csv')\n"))
    assert (result.code, result.err) == (
        2,
        "multifit: [Errno 2] No such file or directory: 'points.csv'\n",
    )
