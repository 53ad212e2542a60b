"""A resumed fit ends bit for bit as it would have without the stop, or is refused with the reason."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest
from mxnet.gluon import nn

import multifit
from multifit import Every, MetricSpec, SpecError, TrainerSpec
from multifit.checkpoints import read_info, write_checkpoint
from multifit.gluon.engine import Engine
from tests.common.nets import TWO_HEADS, Heads, sequential

from .resume_runs import (
    BATCHES,
    EPOCHS,
    STEPS,
    TWO,
    Run,
    end_without_stop,
    loader,
    make_spec,
    make_trainers,
    simple_run,
    unequal,
    values,
)

# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


# ---- bit for bit -------------------------------------------------------------------------------------------


def fourth_batch() -> dict[str, TrainerSpec]:
    """Return trainers of which one updates every fourth batch; the last checkpoint is of the second."""
    plain = make_trainers()
    return {**plain, "body": replace(plain["body"], every=4)}


# what the run has, and where it crashes
STOPS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "before the first checkpoint": ({"devices": 2}, [1]),
    "at a checkpoint": ({"data": "noisy"}, [8]),
    "just before a checkpoint": ({"data": "cards"}, [6, "batch_end", 0.0]),
    "in an evaluation": ({"data": "iter", "devices": 2}, [5, "evaluate_batch_end", 0.0]),
    "after a checkpoint of an epoch": ({"data": "list", "every": Every(5, "batch")}, [5, "epoch_begin"]),
    "at the end": ({}, [STEPS, "train_end", 0.0]),
    "with a checkpoint an epoch": ({"every": Every(1, "epoch")}, [8]),
    "a trainer with a rhythm": ({"data": "list", "trainers": fourth_batch}, [7]),
    "arrays": ({"data": "arrays"}, [7]),
    "loader with rollover": ({"data": "loader with rollover"}, [7]),
    "augmenting processes": ({"data": "augmenting processes"}, [7]),
}


@pytest.mark.parametrize("stop", STOPS)
def test_it_ends_bit_for_bit_as_without_the_stop(tmp_path: Path, log: Any, stop: str) -> None:
    options, place = STOPS[stop]
    run = Run(tmp_path / "run", **options)
    run.crash(*place)
    run.resume()
    assert unequal(run.end(), end_without_stop(run, repr("trainers" in options))) == []
    assert not any("cannot be seeded" in line for line in log())


def test_the_state_of_what_runs_batches_is_restored(tmp_path, monkeypatch, caplog):
    """On PyTorch, that is the scale of gradients in float16."""
    restored: list[Any] = []
    monkeypatch.setattr(Engine, "state", lambda engine: {"scale": 2.0})
    monkeypatch.setattr(Engine, "load", lambda engine, state: restored.append(state))
    run = simple_run(tmp_path / "run", TWO)
    run.crash(3)
    assert restored == []
    monkeypatch.setattr(Engine, "why_inexact", lambda engine: "the device may round differently")
    run.resume()
    assert restored == [{"scale": 2.0}] and "the device may round differently" in caplog.text


# ---- what is logged ----------------------------------------------------------------------------------------


def test_other_versions_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Any) -> None:
    run = simple_run(tmp_path / "run", TWO)
    run.crash(3)
    monkeypatch.setattr("multifit.version.__version__", "99.0.0")
    run.resume()
    line = f"multifit {multifit.__version__} saved it, and multifit 99.0.0 resumes: correct, but not always"
    assert any(each.startswith(line) for each in log())


def test_workers_that_cannot_be_seeded_are_logged(tmp_path: Path, log: Any) -> None:
    run = Run(tmp_path / "run", "processes that cannot be seeded")
    run.crash(3, epochs=1)
    assert not any("cannot be seeded" in line for line in log())
    run.resume(epochs=1)
    assert sum(line.startswith("the loader's workers cannot be seeded") for line in log()) == 1


@pytest.mark.parametrize("batches", [BATCHES, 8])
def test_a_run_without_a_schedule_can_be_resumed_with_one(tmp_path: Path, log: Any, batches: int) -> None:
    run = simple_run(tmp_path / "run", None)
    run.fit(batches=batches)
    assert run.estimator.state.seed is None
    run.every = TWO
    run.resume()
    assert (run.estimator.state.step, run.estimator.state.seed) == (STEPS, 7)
    assert any(line.startswith("the run was started with every=None") for line in log())


class Unsavable(mx.metric.EvalMetric):
    """It has no state_dict."""

    def __init__(self) -> None:
        super().__init__("unsavable")

    def update(self, labels: Any, preds: Any) -> None:
        self.num_inst, self.sum_metric = self.num_inst + 1, self.sum_metric + 1


def test_what_cannot_be_saved_or_loaded_is_logged(tmp_path: Path, log: Any) -> None:
    run = simple_run(tmp_path / "run", TWO)
    run.spec = lambda: make_spec(metrics={"odd": MetricSpec(Unsavable(), "digit", "digit")})
    run.fit(epochs=1)
    run.resume()
    assert not any("starts from zero" in line for line in log())
    run.crash(8)
    run.resume()
    assert '"train_odd" starts from zero: the metric has no state_dict and load_state_dict' in log()


# ---- what is refused ---------------------------------------------------------------------------------------


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "spec": ({"spec": lambda: make_spec(metrics={})}, 'metrics["accuracy"]: '),
    "net": ({"net": lambda: Heads(body=sequential(nn.Dense(9)), **TWO_HEADS)},
        'parameters["body.0.weight"].shape: [8, 6] in the checkpoint, [9, 6] here'),
    "options": ({"trainers": lambda: make_trainers(0.5)},
        'options["momentum"]: 0.9 in the checkpoint, 0.5 here'),
    "trainers": ({"trainers": lambda: TrainerSpec(".*", "adam")}, 'trainers["heads"]: '),
}  # fmt: skip


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: Any) -> Run:
    run = Run(tmp_path_factory.mktemp("crashed"))
    run.crash(3)
    return run


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_run_is_an_error(crashed: Run, other: str) -> None:
    changes, line = OTHERS[other]
    estimator = replace(crashed, **changes).build()
    estimator.check(loader())
    before = values(estimator)
    with pytest.raises(SpecError) as caught:
        estimator.fit(loader(), epochs=EPOCHS, resume=crashed.folder)
    assert line in str(caught.value)
    assert unequal(values(estimator), before) == []
    assert (estimator.state.step, estimator.state.epoch, estimator.history.epochs) == (0, 0, 0)


def test_where_nothing_is_to_be_resumed(tmp_path: Path) -> None:
    file = tmp_path / "net.params"
    file.touch()
    estimator = Run(tmp_path).build()
    with pytest.raises(ValueError, match=r"resume='.*net.params' is a file; give a run's folder"):
        estimator.fit(loader(), epochs=EPOCHS, resume=file)
    for reseed in (estimator.reseed, estimator.reseed_epoch):
        with pytest.raises(ValueError, match=r"the run has no seed: set estimator\.state\.seed first"):
            reseed()


# ---- damaged checkpoints -----------------------------------------------------------------------------------


def crashed_run(folder: Path) -> tuple[Run, Path]:
    """Return a run of one epoch that crashed after four of its five batches, and its newest checkpoint."""
    run = simple_run(folder, Every(1, "batch"), rate=0.01)
    run.crash(4, epochs=1)
    return run, folder / "checkpoints" / "epoch-0001-step-00000004"


@pytest.mark.parametrize("name", ["net.params", "manifest.json"])
def test_a_damaged_checkpoint_is_skipped_and_all_are_named_if_none_is_intact(tmp_path, log, name):
    run, newest = crashed_run(tmp_path / "run")
    damaged = newest / name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    shutil.copytree(run.folder, tmp_path / "copy")
    run.resume(epochs=1)
    assert unequal(run.end(), end_without_stop(run, "damaged", epochs=1)) == []
    assert any(line.startswith(f"skipped: {newest}: {name} ") for line in log())
    assert not any("holds checkpoints of another run" in line for line in log())
    assert "resuming from epoch-0001-step-00000003: epoch 1, batch 4" in log()
    run.folder = tmp_path / "copy"
    older, newest = sorted((run.folder / "checkpoints").iterdir())
    (older / "manifest.json").unlink()
    with pytest.raises(ValueError) as caught:
        run.resume(epochs=1)
    message = str(caught.value)
    assert f"{older}: manifest.json is missing" in message and f"{newest}: {name} " in message


def test_content_that_multifit_would_not_write_is_an_error(tmp_path: Path) -> None:
    """The hashes are right: anybody can compute them."""
    run, newest = crashed_run(tmp_path / "run")
    facts = read_info(newest).facts
    shutil.copytree(newest, tmp_path / "copy")
    for name in ("figures", "identity", "order", "random", "run", "trainers"):

        def changed(folder: Path, name: str = name) -> None:
            shutil.copytree(tmp_path / "copy", folder, dirs_exist_ok=True)
            (folder / "manifest.json").unlink()
            (folder / f"{name}.json").write_text('{"arrays": 0, "tree": {"dict": []}}')

        write_checkpoint(newest.parent, newest.name, changed, facts)
        with pytest.raises(ValueError, match=re.escape(str(newest))):
            run.resume(epochs=1)
