"""``multifit evaluate`` measures what was trained, with the settings that it was trained with."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from multifit.gluon.compat import mx
from multifit.utils.output import Output

from .results import figures_of, history_of, record_of


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.fixture
def evaluate(trained, multifit):
    return lambda: multifit("evaluate", trained, "--from", "runs/small", "--quiet")


def test_it_measures_what_training_measured_last(evaluate):
    result = evaluate()
    history = history_of()
    expected = {name[4:]: values[-1] for name, values in history.items() if name.startswith("val_")}
    assert result.code == 0 and figures_of(result.out) == pytest.approx(expected, rel=1e-4)


LEARNED = """
import mxnet as mx
class Learned(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.s = self.params.get("s", shape=(1,), init=mx.init.Zero())
    def hybrid_forward(self, F, out, label, s):
        return F.broadcast_add(F.broadcast_mul(F.exp(-s), F.mean((out - label) ** 2, axis=1)), s)
"""


def test_losses_with_parameters(write, multifit):
    path = write(LEARNED, **{"gluon.loss.L2Loss()": "Learned()"})
    assert multifit("train", path).code == 0
    result, losses = (
        multifit("evaluate", path, "--from", "runs/small", "--quiet"),
        Path("runs/small/losses.params"),
    )
    history = history_of()
    assert figures_of(result.out)["place"] == pytest.approx(history["val_place"][-1], rel=1e-4)
    assert [*mx.nd.load(str(losses))] == ["losses.place.s"]
    damages = {
        "is damaged": lambda: losses.write_bytes(b"x"),
        "have no names": lambda: mx.nd.save(str(losses), [mx.nd.ones((1,))]),
        '(did you mean "losses.place.z"?)': lambda: mx.nd.save(
            str(losses), {"losses.place.z": mx.nd.ones((1,))}
        ),
        "there is no": losses.unlink,
    }
    for why, damage in damages.items():
        damage()
        result = multifit("evaluate", path, "--from", "runs/small")
        assert result.code == 2 and why in result.err and "runs/small" in result.err


def test_the_record_of_a_run(trained):
    record = record_of()
    assert record["settings"] == {"epochs": "2", "rate": "0.1"}
    assert (record["file"], record["seed"], record["epochs"], record["devices"]) == ("small.py", 3, 2, None)
    assert set(record["versions"]) - {"torch"} == {"multifit", "python", "numpy", "mxnet"}


def test_epochs_of_the_command_line_are_the_files_setting(write, multifit):
    path = write("def trainers(net): return TrainerSpec('.*', 'sgd', {'learning_rate': 0.01 * epochs})\n")
    multifit("train", path, "--epochs", 3)
    assert record_of()["settings"]["epochs"] == "3"
    assert history_of()["lr"] == pytest.approx([0.03] * 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "runs/small is not the folder of a run: settings.json: No such"),
        ("{", "runs/small/settings.json is not the record of a run: "),
        ('{"seed": 0}', "missing 6 required keyword-only arguments: 'epochs', 'devices'"),
        ({"settings": {"width": "5"}}, 'has no setting "width"; it has "epochs", "rate"'),
        ({"file": "big.py"}, "runs/small is a run of big.py, not of small.py"),
        ({"seed": -1}, "seed must be from 0 to"),
    ],
)
def test_a_folder_that_is_not_a_run_of_the_file_is_an_error(evaluate, content, message):
    path = Path("runs/small/settings.json")
    if isinstance(content, dict):
        content = json.dumps({**json.loads(path.read_text()), **content})
    path.write_text(content) if content is not None else path.unlink()
    result = evaluate()
    assert result.code == 2 and message in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: b"", "is damaged, or holds no parameters (Check failed: "),
        (lambda: [mx.nd.zeros(3)], "have no names"),
        (
            lambda: {"other_weight": mx.nd.zeros(3)},
            'does not fit the net: parameters["other_weight"]: {"shape": [3]',
        ),
        (pipe, "there is no file"),
        (folder, "is a folder, not a file"),
    ],
)
def test_parameters_that_cannot_be_loaded_are_an_error(evaluate, content, reason):
    path = Path("runs/small/final.params")
    if content in (pipe, folder):
        content(path)
    else:
        wrong = content()
        path.write_bytes(wrong) if isinstance(wrong, bytes) else mx.nd.save(str(path), wrong)
    result = evaluate()
    assert result.code == 2 and "runs/small/final.params" in result.err
    assert reason in result.err and result.err.count("\n") == 1


def test_a_run_that_has_not_finished_is_an_error(evaluate, trained):
    Path("runs/small/final.params").unlink()
    result = evaluate()
    resume = f"multifit train {trained} --output runs/small --resume"
    assert result.code == 2 and result.err.count("\n") == 1
    found = "runs/small has no final.params or final.pt: its run has not finished"
    assert f"{found}; {resume} continues it" in result.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_figures_that_a_full_disk_has_lost_are_an_error(evaluate, monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stdout", Output(io.TextIOWrapper(full, write_through=True)))
        result = evaluate()
    assert (result.code, result.err) == (2, "multifit: cannot write the output: No space left on device\n")


def test_a_file_without_validation_data_is_an_error(evaluate, write):
    write("both = data\ndef data(seed): return both(seed)[0]\n")
    result = evaluate()
    assert result.code == 2 and "has no validation data" in result.err


def test_a_missing_data_file_is_reported_in_one_line(write, multifit):
    path = write("def data(): open('points.csv')\n")
    result = multifit("check", path)
    line = len(path.read_text().splitlines())
    missing = "[Errno 2] No such file or directory: 'points.csv'"
    assert (result.code, result.err) == (2, f"multifit: {missing} ({path}, line {line})\n")
