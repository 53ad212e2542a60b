"""What ``multifit train`` cannot use is reported, and what is missing costs only what needs it."""

import errno
import os
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from multifit.distributed.log_once import get_logger

from .results import MISSPELT, PICTURES, WRITTEN


@pytest.mark.parametrize(
    ("more", "options", "code", "message"),
    [
        ("", ["--set", "rat=1"], 2, 'has no setting "rat" (did you mean "rate"?)'),
        ("", ["--devices", "tpu"], 2, "--devices tpu: cannot read the devices 'tpu': write a number of "),
        ("", ["--seed", "-1"], 2, "seed must be from 0 to"),
        ("", ["--output", "small.py"], 2, "[Errno 17] File exists: "),
        ("epochs = 'x'\n", [], 1, "is 'x'; valid is a whole number of at least 1"),
        ("seed = 1.5\n", [], 2, "is 1.5; valid is a whole number"),
        ("del epochs\ndef data(): raise AssertionError\n", [], 2, "how long to train? Give --epochs"),
        ("def data(history): return history\n", [], 2, "small.py need each other in a circle: "),
    ],
)
def test_what_cannot_be_used_is_reported_in_one_line(write, multifit, more, options, code, message):
    result = multifit("train", write(more), *options)
    assert result.code == code and message in result.err and result.err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("more", "replaced", "code", "message"),
    [
        ("", MISSPELT, 1, "plase"),
        (
            "two = data\ndef data(seed): return (*two(seed), None)\n", {}, 2,
            "must return (train_data, val_data) or train_data, not a tuple of 3",
        ),
        *(
            (f"two = data\ndef data(seed): {code}\n", {}, 2, "must return loaders that can be read again")
            for code in ("yield from two(seed)", "return two(seed)[0], iter(list(two(seed)[1]))")
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_reported_without_a_traceback(write, multifit, more, replaced, code, message):
    result = multifit("train", write(more, **replaced))
    assert result.code == code and message in result.err and "Traceback" not in result.err
    assert not Path("runs/small/history.json").exists()


WRONG = "def handlers(): import multifit; return multifit.EarlyStoppingHandler('val_los')\n"


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_a_run_that_a_handler_refuses_leaves_no_files(write, multifit, options):
    if options:
        assert multifit("train", write()).code == 0
    result = multifit("train", write(WRONG), *options)
    assert result.code == 1 and 'there is no figure "val_los" (did you mean "val_loss"?)' in result.err
    assert not os.listdir("runs/small")
    assert multifit("train", write()).code == 0


def test_a_folder_in_which_another_run_writes_is_an_error(write, multifit):
    Path("runs/small").mkdir(parents=True)
    with FileLock("runs/small/.lock"):
        result = multifit("train", write())
    assert result.code == 1 and result.err.count("\n") == 1
    assert "runs/small is in use by another run" in result.err
    assert os.listdir("runs/small") == [".lock"]


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
    mine = Path("runs/small/mine.png").absolute()
    assert result.code == 2 and result.err.count("\n") == 1
    assert result.err.startswith(f"multifit: [Errno 28] No space left on device: '{mine}' ({path}, line ")
    assert "after epoch 2" in result.out and set(WRITTEN) <= set(os.listdir("runs/small"))
    assert result.out.endswith(f"2 epochs; wrote runs/small: {', '.join(WRITTEN)}\n")

    def save(_, path, *more):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("multifit.gluon.snapshot.snapshot.Snapshot.write_trained", save)
    monkeypatch.setattr("multifit.checkpoints.write_checkpoint", save)
    result = multifit("train", write(FULL), "--output", "half")
    assert result.code == 2 and "half/final.params'" in result.err  # the first error
    wrote = [name for name in WRITTEN if name not in ("checkpoints", "final.params")]
    assert result.out.endswith(f"2 epochs; wrote half: {', '.join(wrote)}\n")


def test_a_missing_task_file_is_reported_in_one_line(multifit):
    result = multifit("train", "nothing.py")
    assert (result.code, result.err) == (2, "multifit: there is no file nothing.py\n")


@pytest.mark.parametrize("error", [ValueError, ConnectionError])
def test_the_files_own_exceptions_keep_their_traceback(write, multifit, error):
    with pytest.raises(error, match="of mine"):
        multifit("train", write(f"def net(): raise {error.__name__}('of mine')\n"))


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)\n", "def net(): raise SystemExit('no data')\n"])
def test_a_file_that_exits_is_an_error(write, multifit, code):
    result = multifit("train", path := write(code), "--quiet")
    assert result.code == 2 and result.err.startswith(f"multifit: {path} called sys.exit(") and not result.out
    assert result.err.endswith("; to end a command, raise an exception that says why\n")


@pytest.mark.parametrize("drawn", ["{'a/b': None}", "[1]"])
def test_wrong_pictures_are_an_error_after_the_results_are_written(write, multifit, drawn):
    result = multifit("train", write(f"def pictures(): return {drawn}\n"))
    assert result.code == 2 and "pictures() must return a dict of matplotlib figures" in result.err
    assert result.out.endswith(f"2 epochs; wrote runs/small: {', '.join(WRITTEN)}\n")
    assert sorted(os.listdir("runs/small")) == WRITTEN


def test_without_tensorboardx_only_the_events_are_missing(write, multifit, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    result = multifit("train", write())
    assert result.code == 0 and "TensorBoard" not in result.out + result.err
    assert sorted(os.listdir("runs/small")) == [name for name in WRITTEN if name != "tensorboard"]


def test_without_matplotlib_only_the_pictures_are_missing(write, multifit, monkeypatch, caplog):
    monkeypatch.setattr(get_logger(), "propagate", True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = multifit("train", write(PICTURES))
    assert result.code == 0 and "no pictures: pictures need matplotlib: pip install matplotlib" in caplog.text
    assert sorted(os.listdir("runs/small")) == [name for name in WRITTEN if not name.endswith(".png")]
