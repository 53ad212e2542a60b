"""fit(output=...) writes what ``multifit train`` writes; fit(seed=...) makes runs equal."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from matplotlib.figure import Figure
from mxnet import gluon

import multifit
from multifit import CheckpointHandler, Every, LogFile, LogTo, MultiEstimator, TensorBoardHandler, TrainerSpec
from multifit.cli import main
from multifit.cli.runs import read_run
from multifit.handlers.history import History
from tests.common.data import in_batches
from tests.common.handlers import CutsPower, PowerCut, handler
from tests.common.nets import hybridized, normed_heads, two_heads
from tests.common.specs import two_head_spec

PICTURES = ["curves.png", "confusion_digit.png", "scatter_size.png"]
STARTED = ["checkpoints", "log.txt", "plan.json", "plan.txt", "settings.json", "tensorboard"]
WRITTEN = sorted([*STARTED, "final.params", "history.json", *PICTURES])


@pytest.fixture(autouse=True)
def small_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw small curves, which take less time."""
    monkeypatch.setattr("multifit.estimator.run_folder.curves", lambda history: Figure(figsize=(0.1, 0.1)))


def make(net: Any = None, **options: Any) -> MultiEstimator:
    options = {"trainers": TrainerSpec(".*", "adam", {"learning_rate": 0.02}), **options}
    return MultiEstimator(two_heads() if net is None else net, two_head_spec(), **options)


def record_of(folder: Path) -> Any:
    return json.loads((folder / "settings.json").read_text())


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# ---- what is written ---------------------------------------------------------------------------------------


def test_a_run_from_python_is_a_run(batches: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Whose numbers are those of a fit that writes nothing."""
    folder = tmp_path / "runs" / "try"
    made = make(normed_heads())
    history = made.fit(batches, batches, epochs=2, output=folder, seed=3)
    assert dict(make(normed_heads()).fit(batches, batches, epochs=2, seed=3)) == dict(history)
    assert listed(folder) == WRITTEN
    assert dict(History.from_json(folder / "history.json")) == dict(history)
    assert (folder / "plan.txt").read_text().strip() == made.plan.to_text(100)
    text = (folder / "log.txt").read_text()
    assert "training for 2 epochs" in text and "epoch 2/2" in text and "stopped: 2 epochs" in text
    record = record_of(folder)
    assert [record[name] for name in ("file", "settings", "seed", "epochs", "engine", "precision")] == [
        None, {}, 3, 2, "mxnet", "float32",
    ]  # fmt: skip
    assert record["directions"]["val_accuracy"] == "max" and record["pictures"] == PICTURES
    assert record["seconds"] > 0 and {"multifit", "numpy", "mxnet"} <= set(record["versions"])
    other = make(normed_heads())
    assert other.load(folder) == folder / "final.params"
    assert other.evaluate(batches) == made.evaluate(batches)
    run = read_run(folder)
    assert not run.missing and run.history.epochs == 2 and run.diagrams
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # curves take long
    page = multifit.write_report(folder)
    assert page == folder / "report.html" and "MultiEstimator.fit" in page.read_text()
    both = multifit.write_report([folder, folder], tmp_path / "both.html")
    assert both.read_text().count("<html") == 1
    with pytest.raises(ValueError, match="is not the folder of a run"):
        multifit.write_report(tmp_path)
    with pytest.raises(ValueError, match="runs is empty; give the folder of a run"):
        multifit.write_report([])


def test_handlers_that_are_given_replace_those_that_write(batches: Any, tmp_path: Path) -> None:
    """In a new folder, ``resume=`` starts a run."""
    folder = tmp_path / "run"
    handlers = [
        CheckpointHandler(folder, Every(2, "batch"), monitor="val_loss"),
        TensorBoardHandler(tmp_path / "events"),
        LogFile(tmp_path / "mine.txt"),
    ]
    made = make()
    made.fit(batches, batches, epochs=2, event_handlers=handlers, output=folder, resume=folder)
    assert listed(folder) == [name for name in WRITTEN if name != "tensorboard"]
    assert record_of(folder)["checkpoint_every"] == "2batch"
    assert made.best_checkpoint is not None and made.load(folder, "best").parent == made.best_checkpoint
    assert (tmp_path / "mine.txt").exists()


def test_without_tensorboardx_its_events_are_missing(batches: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    make().fit(batches, batches, batches=2, output=tmp_path / "run")
    assert listed(tmp_path / "run") == [name for name in WRITTEN if name != "tensorboard"]


# ---- runs that do not reach their end ----------------------------------------------------------------------


def test_a_run_that_was_cut_off_is_resumed_bit_for_bit(batches: Any, tmp_path: Path) -> None:
    def fit(folder: Path, *more: Any, epochs: int = 3, **options: Any) -> Any:
        handlers = [CheckpointHandler(folder, Every(2, "batch")), *more]
        options = {"event_handlers": handlers, "output": folder, "seed": 5, **options}
        return make(normed_heads()).fit(batches, epochs=epochs, **options)

    whole = fit(tmp_path / "whole")
    folder = tmp_path / "cut"
    with pytest.raises(PowerCut):
        fit(folder, CutsPower(5))
    assert listed(folder) == STARTED
    started, checkpoints = record_of(folder)["started"], listed(folder / "checkpoints")
    assert record_of(folder)["seconds"] is None
    assert fit(folder, resume=folder / "checkpoints") == whole
    assert record_of(folder)["started"] == started
    assert listed(folder) == sorted([*STARTED, "curves.png", "final.params", "history.json"])
    assert (folder / "final.params").read_bytes() == (tmp_path / "whole" / "final.params").read_bytes()
    text = (folder / "log.txt").read_text()
    assert checkpoints[-1] in text and text.count("training for 3 epochs") == 2
    longer = fit(folder, resume=folder, epochs=4)
    assert longer.epochs == 4 and record_of(folder)["epochs"] == 4


def test_a_handler_may_change_the_working_directory(batches: Any, tmp_path: Path, monkeypatch: Any) -> None:
    moves = handler(train_begin=lambda estimator: os.chdir(tmp_path))
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    make().fit(batches, epochs=1, output="run", event_handlers=moves)
    assert listed(tmp_path) == ["start"] and {"log.txt", "final.params"} <= {*listed(tmp_path / "start/run")}


class TrialPruned(Exception):  # as Optuna's is named
    """Ends a trial."""


def prune(estimator: Any) -> None:
    raise TrialPruned


def interrupt(estimator: Any) -> None:
    estimator.state.stop("SIGINT", interrupted=True)


@pytest.mark.parametrize(
    ("methods", "error", "written", "epochs"),
    [
        ({"epoch_end": prune}, pytest.raises(TrialPruned), {"history.json", "final.params"}, 1),
        ({"batch_end": interrupt}, nullcontext(), {*WRITTEN} - {*PICTURES}, 9),
    ],
    ids=["pruned", "interrupted"],
)
def test_a_run_that_ends_early_leaves_what_it_has(batches, tmp_path, methods, error, written, epochs):
    """And, if it can go on, how long it was to train."""
    with error:
        make().fit(batches, epochs=9, event_handlers=handler(**methods), output=tmp_path / "run")
    assert written <= {*listed(tmp_path / "run")}
    record = record_of(tmp_path / "run")
    assert record["epochs"] == epochs and record["seconds"] > 0


# ---- what is refused ---------------------------------------------------------------------------------------


def test_a_folder_that_is_not_empty_is_refused(batches: Any, tmp_path: Path) -> None:
    folder, made = tmp_path / "run", make()
    made.fit(batches, epochs=1, output=folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    state = made.state.to_dict()
    for options in ({}, {"resume": tmp_path / "other"}, {"resume": tmp_path}):
        with pytest.raises(
            ValueError, match=r"output=.*run' is not empty: give another folder, or continue the run"
        ):
            made.fit(batches, epochs=1, output=folder, **options)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for file in (folder / "log.txt", folder / "log.txt" / "new"):
        with pytest.raises(ValueError, match="log.txt is a file; give a folder"):
            made.fit(batches, epochs=1, output=file)
    assert made.state.to_dict() == state
    (folder / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match="is not the record of a run"):
        make().fit(batches, epochs=2, output=folder, resume=folder)
    os.remove(folder / "settings.json")
    assert make().fit(batches, epochs=2, output=folder, resume=folder).epochs == 2


def test_a_folder_in_which_another_run_writes_is_refused(batches: Any, tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(ValueError, match="is in use by another run"):
        make().fit(batches, epochs=1, output=tmp_path)
    make().fit(batches, epochs=1, output=tmp_path)


@pytest.mark.parametrize("existed", [False, True])
def test_a_fit_that_is_refused_leaves_no_files(batches: Any, tmp_path: Path, existed: bool) -> None:
    folder = tmp_path / "run"
    if existed:
        folder.mkdir()
    for data, handlers in (
        (in_batches([batches[0][0]]), None),
        (batches, CheckpointHandler(folder, monitor="val_los")),
        (batches, CheckpointHandler(tmp_path / "other", every=1)),  # which resume= would not find
        (batches, [print]),
    ):
        with pytest.raises(ValueError):
            make().fit(data, epochs=1, output=folder, event_handlers=handlers)
        assert folder.exists() == existed and (not existed or listed(folder) == [])


def test_a_full_disk_costs_only_what_did_not_fit(batches: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def save(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multifit.gluon.snapshot.snapshot.Snapshot.write_trained", save)
    made = make()
    with pytest.raises(OSError, match="No space left"):
        made.fit(batches, batches, epochs=1, output=tmp_path / "run")
    assert made.history.epochs == 1
    assert listed(tmp_path / "run") == [name for name in WRITTEN if name != "final.params"]


def test_commands_name_a_run_from_python(batches: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder, file = tmp_path / "run", tmp_path / "mine.py"
    make().fit(batches, epochs=1, output=folder)
    file.write_text("def net(): pass\ndef spec(): pass\ndef data(): pass\nepochs = 1\n")
    for command, *options in (
        ("evaluate", "--from", str(folder)),
        ("export", "--from", str(folder)),
        ("predict", "--from", str(folder), "a"),
        ("train", "--output", str(folder), "--resume"),
        ("train", "--output", str(folder), "--overwrite"),
    ):
        assert main([command, str(file), *options]) == 2
        message = f"{folder} is a run of Python, by fit(output=...), not of mine.py: estimator.load("
        assert message in capsys.readouterr().err
    record = record_of(folder)
    (folder / "settings.json").write_text(json.dumps({**record, "file": "mine.py"}))
    with pytest.raises(ValueError, match=r"is a run of mine.py, not of Python"):
        make().fit(batches, epochs=2, output=folder, resume=folder)


# ---- seeds -------------------------------------------------------------------------------------------------


SAVING: dict[str, Callable[[], dict[str, Any]]] = {
    "alone": dict,
    "epochs": lambda: {"event_handlers": CheckpointHandler("run", 1)},
    "batches": lambda: {"event_handlers": CheckpointHandler("run", Every(2, "batch"), seed=7)},
}


@pytest.mark.parametrize(("saving", "hybrid"), [("alone", False), ("epochs", True), ("batches", False)])
def test_two_fits_with_a_seed_are_equal(saving, hybrid, arrays, tmp_path, monkeypatch):
    def run(seed: int, folder: str, options: dict[str, Any]) -> list[Any]:
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        made = make(hybridized(normed_heads(), hybrid))
        data = gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays.values()), 8, shuffle=True)
        history = made.fit(data, epochs=2, seed=seed, **options)
        return [*[value.tobytes() for value in made.values().values()], dict(history)]

    one, two = (run(7, folder, SAVING[saving]()) for folder in ("one", "two"))
    assert one == two
    assert run(8, "other", {}) != one


def test_seeds_that_cannot_be_are_refused(batches: Any, tmp_path: Path) -> None:
    made = make()
    message = r"seed=1 and CheckpointHandler\(seed=2\) differ; leave the latter out"
    with pytest.raises(ValueError, match=message):
        made.fit(batches, epochs=1, seed=1, event_handlers=CheckpointHandler(tmp_path, 1, seed=2))
    with pytest.raises(ValueError, match="fit: seed is -1; valid is"):
        made.fit(batches, epochs=1, seed=-1)
    assert made.state.step == 0
    for every, seed in ((None, None), (1, 1)):  # without checkpoints, nothing is seeded again
        made.fit(batches, epochs=1, seed=1, event_handlers=CheckpointHandler(tmp_path, every))
        assert made.state.seed == seed


@pytest.mark.parametrize("every", [None, 1])
def test_the_seed_is_recorded_logged_and_kept(batches: Any, tmp_path: Path, every: int | None) -> None:
    seeds: list[Any] = []

    class Notes:
        def log_settings(self, settings: Any) -> None:
            seeds.append(settings.get("seed"))

    def fit(made: MultiEstimator, epochs: int, **options: Any) -> None:
        handlers = [CheckpointHandler(tmp_path / "run", every), LogTo(Notes())]
        made.fit(batches, epochs=epochs, output=tmp_path / "run", event_handlers=handlers, **options)
        seeds.append(record_of(tmp_path / "run")["seed"])

    made = make()
    made.fit(batches, epochs=1, seed=1, event_handlers=CheckpointHandler(tmp_path / "other", 1))
    fit(made, 1, seed=2)  # not that of the fit before
    fit(make(), 3, resume=tmp_path / "run")
    with pytest.raises(ValueError, match=r"is of a run with seed=2, which it keeps; leave out seed=9"):
        fit(make(), 4, resume=tmp_path / "run", seed=9)
    fit(make(), 4, resume=tmp_path / "run", seed=2)
    assert seeds == [2] * 6
