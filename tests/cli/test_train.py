"""``multifit train`` trains, prints, and leaves a folder of results."""

import io
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from multifit.gluon.compat import mx

from .results import PICTURES, WRITTEN, history_of, record_of
from .test_predict import DRAW


def test_it_prints_the_plan_trains_and_leaves_its_results(write, multifit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # the width of plan.txt
    result = multifit("train", write())
    assert result.code == 0 and sorted(os.listdir("runs/small")) == WRITTEN
    plan = Path("runs/small/plan.txt").read_text().strip()
    assert result.out.startswith(plan) and "kind" in plan and "place" in plan
    table, last = result.out[len(plan) :].split("after epoch 2\n")[1].strip().rsplit("\n", 1)
    assert last == f"2 epochs; wrote runs/small: {', '.join(WRITTEN)}"
    history = history_of()
    assert len(history["train_loss"]) == len(history["val_place"]) == 2
    assert history["train_loss"][1] < history["train_loss"][0]
    rows = dict(line.split(maxsplit=1) for line in table.splitlines() if " " in line)
    for figure in ("loss", "kind", "place"):
        values = [history[f"{stage}_{figure}"][-1] for stage in ("train", "val")]
        assert rows[figure].split() == [f"{value:.4f}" for value in values]


def test_the_curves_are_drawn(trained):
    assert Path("runs/small/curves.png").stat().st_size > 20_000


def test_the_parameters_are_in_gluons_format(trained):
    saved = mx.nd.load("runs/small/final.params")
    assert sorted(saved) == ["kind.bias", "kind.weight", "place.bias", "place.weight"]
    assert np.isfinite(saved["kind.weight"].asnumpy()).all()


def test_pictures_of_the_file_are_saved(write, multifit):
    assert multifit("train", write(PICTURES)).code == 0
    assert sorted(os.listdir("runs/small")) == sorted([*WRITTEN, "places.png"])
    assert Path("runs/small/places.png").read_bytes().startswith(b"\x89PNG")


HANDLERS = """
class Count:
    def batch_end(self, estimator):
        print("step", estimator.state.step)

def handlers(estimator):
    print("handlers of", type(estimator).__name__)
    return Count()
"""


def test_handlers_of_the_file_are_called_in_training_alone(write, multifit):
    path = write(HANDLERS)
    result = multifit("train", path, "--epochs", 1)
    lines = [line for line in result.out.splitlines() if line.startswith(("step", "handlers"))]
    assert result.code == 0 and lines == ["handlers of MultiEstimator", "step 1", "step 2", "step 3"]
    assert len(history_of()["val_loss"]) == 1
    for command in (["evaluate", path, "--from", "runs/small"], ["check", path]):
        result = multifit(*command)
        assert result.code == 0 and "handlers" not in result.out


SAVES = """
def handlers(output):
    from multifit import CheckpointHandler
    return [CheckpointHandler(output, every=1, monitor="val_loss", keep_last=1, keep_best=1)]
"""


def test_a_checkpoint_handler_of_the_file_replaces_ours(write, multifit):
    path = write(SAVES, **{"rate = 0.05": "rate = 0.9"})
    assert multifit("train", path, "--epochs", 3, "--output", "whole").code == 0
    assert multifit("train", path).code == 0
    assert sorted(os.listdir("runs/small")) == WRITTEN and record_of()["checkpoint_every"] == "1epoch"
    assert multifit("train", path, "--resume", "--epochs", 3).code == 0
    assert history_of() == history_of("whole") and 1 <= len(os.listdir("runs/small/checkpoints")) <= 2
    result = multifit("train", path, "--resume", "--epochs", 4, "--checkpoint-every", "1epochs")
    assert result.code == 2 and "returns a CheckpointHandler, whose every= is the schedule" in result.err


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def handlers(): return 'print'",
            "handlers() of {} is 'print'; valid is a handler or a list of handlers",
        ),
        ("def handlers(): return [print]", "handlers() of {} that cannot be used"),
        ("def handlers(history): return []", "small.py need each other in a circle: "),
    ],
)
def test_handlers_that_cannot_be_used_are_an_error_before_anything_is_removed(
    trained, multifit, code, message
):
    trained.write_text(trained.read_text() + code)
    before = Path("runs/small/final.params").read_bytes()
    result = multifit("train", trained, "--overwrite")
    assert result.code == 2 and message.format(trained) in result.err
    assert Path("runs/small/final.params").read_bytes() == before


def test_a_file_may_change_the_working_directory(write, multifit):
    """The run's folder stays where the command line says."""
    Path("elsewhere").mkdir()
    inputs = "def inputs(arguments): return np.array([text.split(',') for text in arguments], 'float32')\n"
    path = write("import os\nos.chdir('elsewhere')\n" + inputs + DRAW)
    start = Path.cwd()
    of_run = ["--from", "runs/small"]
    for command in (["train"], ["export", *of_run]):
        assert multifit(*command[:1], path, *command[1:]).code == 0
        os.chdir(start)
    result = multifit("predict", path, *of_run, "1,2,3")
    os.chdir(start)
    assert result.out.endswith("1,2,3: runs/small/predictions/1-1,2,3.png\n")
    assert sorted(os.listdir("runs/small")) == sorted([*WRITTEN, "export", "predictions"])
    assert os.listdir("elsewhere") == []


def test_a_file_without_trainers_and_validation_trains(write, multifit):
    path = write("del trainers\nboth = data\ndef data(seed): return both(seed)[0]\n")
    assert multifit("train", path).code == 0
    history = history_of()
    assert "train_loss" in history and not any(name.startswith("val_") for name in history)


def test_epochs_output_and_settings(write, multifit):
    options = "--epochs", 3, "--output", "elsewhere/deep", "--set", "rate=0", "--quiet"
    result = multifit("train", write(), *options)
    assert result.out.count("\n") == 1 and result.out.startswith("3 epochs; wrote elsewhere/deep: ")
    assert result.code == 0 and sorted(os.listdir("elsewhere/deep")) == WRITTEN
    assert history_of("elsewhere/deep")["lr"] == [0.0] * 3


def test_the_figures_that_are_shown(write, multifit):
    logger = logging.getLogger("multifit")
    console = logging.StreamHandler(stream := io.StringIO())
    logger.addHandler(console)
    try:
        assert multifit("train", write(), "--epochs", 1, "--figures", "val_place").code == 0
    finally:
        logger.removeHandler(console)
    epoch = stream.getvalue().partition("epoch 1/1")[2].partition("trained")[0]
    assert "place" in epoch and "loss" not in epoch
    assert "train_kind" in history_of()
