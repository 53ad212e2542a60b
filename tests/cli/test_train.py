"""``multifit train`` trains, prints, and leaves a folder of results, as far as it can."""

import errno
import io
import json
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from multifit.distributed.log_once import get_logger
from multifit.gluon.compat import mx

from .results import DRAW, INPUTS, PICTURES, WRITTEN, history_of, record_of

RUN = Path("runs/small")


def test_it_prints_the_plan_trains_and_leaves_its_results(write, multifit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # the width of plan.txt
    result = multifit("train", write())
    assert result.code == 0 and sorted(os.listdir(RUN)) == WRITTEN
    plan = (RUN / "plan.txt").read_text().strip()
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


def test_curves_parameters_and_record(trained):
    assert (RUN / "curves.png").stat().st_size > 20_000
    saved = mx.nd.load(str(RUN / "final.params"))  # in Gluon's format
    assert sorted(saved) == ["kind.bias", "kind.weight", "place.bias", "place.weight"]
    assert np.isfinite(saved["kind.weight"].asnumpy()).all()
    record = record_of()
    assert record["settings"] == {"epochs": "2", "rate": "0.1"}
    assert (record["file"], record["seed"], record["epochs"], record["devices"]) == ("small.py", 3, 2, None)
    assert set(record["versions"]) - {"torch"} == {"multifit", "python", "numpy", "mxnet"}


def test_a_file_without_trainers_and_validation_trains(write, multifit):
    path = write("del trainers\nboth = data\ndef data(seed): return both(seed)[0]\n")
    assert multifit("train", path).code == 0
    history = history_of()
    assert "train_loss" in history and not any(name.startswith("val_") for name in history)


def test_epochs_output_and_settings(write, multifit):
    """The epochs of the command line are the file's setting."""
    path = write("def trainers(net): return TrainerSpec('.*', 'sgd', {'learning_rate': rate * epochs})\n")
    options = "--epochs", 3, "--output", "elsewhere/deep", "--set", "rate=0.5", "--quiet"
    result = multifit("train", path, *options)
    assert result.out.count("\n") == 1 and result.out.startswith("3 epochs; wrote elsewhere/deep: ")
    assert result.code == 0 and sorted(os.listdir("elsewhere/deep")) == WRITTEN
    assert history_of("elsewhere/deep")["lr"] == [1.5] * 3
    assert record_of("elsewhere/deep")["settings"]["epochs"] == "3"


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_shown_and_what_is_logged(write, multifit, quiet):
    logger = logging.getLogger("multifit")
    console = logging.StreamHandler(stream := io.StringIO())
    logger.addHandler(console)
    try:
        options = ["--quiet"] if quiet else ["--figures", "val_place"]
        assert multifit("train", write(), "--epochs", 1, *options).code == 0
    finally:
        logger.removeHandler(console)
    epoch = stream.getvalue().partition("epoch 1/1")[2].partition("trained")[0]
    assert ("place" in epoch) != quiet and "loss" not in epoch and console.level == logging.NOTSET
    assert "train_kind" in history_of() and "epoch 1/1" in (RUN / "log.txt").read_text()


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
    for command in (["evaluate", path, "--from", RUN], ["check", path]):
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
    assert sorted(os.listdir(RUN)) == WRITTEN and record_of()["checkpoint_every"] == "1epoch"
    assert multifit("train", path, "--resume", "--epochs", 3).code == 0
    assert history_of() == history_of("whole") and 1 <= len(os.listdir(RUN / "checkpoints")) <= 2
    result = multifit("train", path, "--resume", "--epochs", 4, "--checkpoint-every", "1epochs")
    assert result.code == 2 and "returns a CheckpointHandler, whose every= is the schedule" in result.err


def test_a_file_may_change_the_working_directory(write, multifit):
    """The run's folder stays where the command line says."""
    Path("elsewhere").mkdir()
    path, start = write("import os\nos.chdir('elsewhere')\n" + INPUTS + DRAW), Path.cwd()
    commands = [["train", path], ["export", path, "--from", RUN], ["predict", path, "--from", RUN, "1,2,3"]]
    for command in commands:
        result = multifit(*command)
        os.chdir(start)
        assert result.code == 0
    assert result.out.endswith("1,2,3: runs/small/predictions/1-1,2,3.png\n")
    assert sorted(os.listdir(RUN)) == sorted([*WRITTEN, "export", "predictions"])
    assert os.listdir("elsewhere") == []


# ---- a folder that has files already -----------------------------------------------------------------------


def test_overwrite_removes_what_a_run_wrote_and_nothing_else(write, multifit):
    path = write(PICTURES + INPUTS + DRAW)
    assert multifit("train", path, "--overwrite").code == 0  # nothing was there
    assert (RUN / "places.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(RUN)) == sorted([*WRITTEN, "places.png"])
    assert multifit("predict", path, "--from", RUN, "1,2,3").code == 0
    assert multifit("export", path, "--from", RUN).code == 0
    (RUN / "mine.png").touch()
    os.rename(RUN / "history.json", "history.json")
    (RUN / "history.json").symlink_to("../../history.json")
    old = Path("history.json").read_bytes()
    assert multifit("train", write(), "--overwrite", "--set", "rate=0.2").code == 0
    assert {*os.listdir(RUN)} == {*WRITTEN, "mine.png"}
    record = record_of()
    assert record["settings"]["rate"] == "0.2" and "curves.png" in record["pictures"]
    assert (RUN / "log.txt").read_text().count("training for 2 epochs") == 1
    assert Path("history.json").read_bytes() == old


def test_nothing_is_removed_by_what_a_record_says(trained, multifit):
    pictures = {"pictures": ["../../small.py", "notes.txt", "../mine.png"]}
    (RUN / "settings.json").write_text(json.dumps({**record_of(), **pictures}))
    kept = [RUN / "notes.txt", Path("runs/mine.png"), trained]
    for path in kept[:2]:
        path.touch()
    assert multifit("train", trained, "--overwrite").code == 0 and all(path.exists() for path in kept)


# ---- what is missing ---------------------------------------------------------------------------------------

FULL = """
def pictures():
    import errno
    class Figure:
        def savefig(self, path, dpi):
            raise OSError(errno.ENOSPC, "No space left on device")
    return {"mine": Figure()}
"""


def test_a_disk_that_is_full_at_the_end_costs_only_what_did_not_fit(write, multifit, monkeypatch):
    result = multifit("train", path := write(FULL))
    mine = (RUN / "mine.png").absolute()
    assert result.code == 2 and result.err.count("\n") == 1
    assert result.err.startswith(f"multifit: [Errno 28] No space left on device: '{mine}' ({path}, line ")
    assert "after epoch 2" in result.out and set(WRITTEN) <= set(os.listdir(RUN))
    assert result.out.endswith(f"2 epochs; wrote runs/small: {', '.join(WRITTEN)}\n")

    def save(_, path, *more):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("multifit.gluon.snapshot.snapshot.Snapshot.write_trained", save)
    monkeypatch.setattr("multifit.checkpoints.write_checkpoint", save)
    result = multifit("train", write(FULL), "--output", "half")
    assert result.code == 2 and "half/final.params'" in result.err  # the first error
    wrote = [name for name in WRITTEN if name not in ("checkpoints", "final.params")]
    assert result.out.endswith(f"2 epochs; wrote half: {', '.join(wrote)}\n")


@pytest.mark.parametrize("drawn", ["{'a/b': None}", "[1]"])
def test_wrong_pictures_are_an_error_after_the_results_are_written(write, multifit, drawn):
    result = multifit("train", write(f"def pictures(): return {drawn}\n"))
    assert result.code == 2 and "pictures() must return a dict of matplotlib figures" in result.err
    assert result.out.endswith(f"2 epochs; wrote runs/small: {', '.join(WRITTEN)}\n")
    assert sorted(os.listdir(RUN)) == WRITTEN


@pytest.mark.parametrize(
    ("module", "missing", "message"),
    [
        ("tensorboardX", "tensorboard", ""),
        ("matplotlib.figure", ".png", "no pictures: pictures need matplotlib: pip install matplotlib"),
    ],
    ids=["without_tensorboardX", "without_matplotlib"],
)
def test_what_is_not_installed(write, multifit, monkeypatch, caplog, module, missing, message):
    monkeypatch.setattr(get_logger(), "propagate", True)
    monkeypatch.setitem(sys.modules, module, None)
    assert multifit("train", write(PICTURES)).code == 0
    assert message in caplog.text and "tensorboard" not in caplog.text.lower()
    expected = sorted([*WRITTEN, "places.png"])
    assert sorted(os.listdir(RUN)) == [name for name in expected if not name.endswith(missing)]
