"""A resumed fit ends bit for bit as it would have without the stop, or is refused with the reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import multifit
from multifit import Every, MetricSpec, SpecError, TrainerSpec
from multifit.gluon.engine import Engine
from tests.common.nets import TWO_HEADS, Heads, sequential

from .resume_runs import (
    BATCHES,
    EPOCHS,
    SAMPLES,
    STEPS,
    TWO,
    Numbered,
    Run,
    end_without_stop,
    loader,
    make_spec,
    make_trainers,
    simple_run,
    unequal,
    values,
)

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip

# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


# ---- bit for bit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "devices", "every", "at"),
    [
        ("loader", 1, TWO, [1]),  # before the first checkpoint
        ("loader", 2, TWO, [8]),  # at a checkpoint
        ("loader", 1, TWO, [6, "batch_end", 0.0]),  # just before a checkpoint
        ("iter", 2, TWO, [5, "evaluate_batch_end", 0.0]),
        ("list", 1, Every(5, "batch"), [5, "epoch_begin"]),  # where the epoch ended with a checkpoint
        ("loader", 1, TWO, [STEPS, "train_end", 0.0]),
        ("loader", 1, Every(1, "epoch"), [8]),
        ("noisy", 1, TWO, [7]),
        ("cards", 1, TWO, [7]),
        ("arrays", 1, TWO, [7]),
        ("loader with rollover", 1, TWO, [7]),
        ("augmenting processes", 1, TWO, [7]),
    ],
)
def test_it_ends_bit_for_bit_as_without_the_stop(tmp_path, log, data, devices, every, at):
    run = Run(tmp_path / "run", data, devices, every)
    run.crash(*at)
    run.resume()
    assert unequal(run.end(), end_without_stop(run)) == []
    assert not any("cannot be seeded" in line for line in log())


@pytest.mark.parametrize(("devices", "accumulate"), [(1, True), (2, False)])
def test_a_trainers_rhythm_continues(tmp_path: Path, accumulate: bool, devices: int) -> None:
    """The checkpoint is of the second of four batches: the gradients of two wait."""

    def trainers() -> dict[str, TrainerSpec]:
        plain = make_trainers()
        return {**plain, "body": replace(plain["body"], every=4, accumulate=accumulate)}

    ends = []
    for name, step in (("whole", None), ("stopped", 7)):
        run = Run(tmp_path / name, "list", devices, trainers=trainers)
        if step is not None:
            run.crash(step)
        run.fit(resume=None if step is None else run.folder)
        ends.append(run.end())
    assert unequal(*ends) == []


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


def test_other_versions_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Any) -> None:
    run = simple_run(tmp_path / "run", TWO)
    run.crash(3)
    monkeypatch.setattr("multifit.version.__version__", "99.0.0")
    run.resume()
    line = f"multifit {multifit.__version__} saved it, and multifit 99.0.0 resumes: correct, but not always"
    assert any(each.startswith(line) for each in log())


def test_no_sample_is_loaded_twice(tmp_path: Path) -> None:
    Numbered.loaded.clear()
    run = Run(tmp_path / "run", "numbered")
    run.crash(4)
    run.resume(epochs=1)
    assert sorted(Numbered.loaded) == list(range(SAMPLES))


def test_workers_that_cannot_be_seeded_are_logged(tmp_path: Path, log: Any) -> None:
    run = Run(tmp_path / "run", "processes that cannot be seeded")
    run.crash(3, epochs=1)
    assert not any("cannot be seeded" in line for line in log())
    run.resume(epochs=1)
    assert sum(line.startswith("the loader's workers cannot be seeded") for line in log()) == 1


def test_without_a_seed_nothing_can_be_seeded(tmp_path: Path) -> None:
    estimator = Run(tmp_path).build()
    for reseed in (estimator.reseed, estimator.reseed_epoch):
        with pytest.raises(ValueError, match=r"the run has no seed: set estimator\.state\.seed first"):
            reseed()


# ---- what a checkpoint lacks -------------------------------------------------------------------------------


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


# ---- where nothing is resumed ------------------------------------------------------------------------------


def test_a_checkpoint_of_another_run_is_an_error(tmp_path: Path) -> None:
    wider = lambda: Heads(body=sequential(nn.Dense(9)), **TWO_HEADS)  # noqa: E731
    run = Run(tmp_path / "run")
    run.crash(3)
    usual = dict(vars(run))
    for field, other, line in (
        ("spec", lambda: make_spec(metrics={}), 'metrics["accuracy"]: '),
        ("net", wider, 'parameters["body.0.weight"].shape: [8, 6] in the checkpoint, [9, 6] here'),
        ("trainers", lambda: make_trainers(0.5), 'options["momentum"]: 0.9 in the checkpoint, 0.5 here'),
        ("trainers", lambda: TrainerSpec(".*", "adam"), 'trainers["heads"]: '),
    ):
        vars(run).update({**usual, field: other})
        estimator = run.build()
        estimator.check(loader())
        before = values(estimator)
        with pytest.raises(SpecError) as caught:
            estimator.fit(loader(), epochs=EPOCHS, resume=run.folder)
        assert line in str(caught.value)
        assert unequal(values(estimator), before) == []
        assert (estimator.state.step, estimator.state.epoch, estimator.history.epochs) == (0, 0, 0)


def test_a_file_is_nothing_to_resume_from(tmp_path: Path) -> None:
    file = tmp_path / "net.params"
    file.touch()
    with pytest.raises(ValueError, match=r"resume='.*net.params' is a file; give a run's folder"):
        Run(tmp_path).build().fit(loader(), epochs=EPOCHS, resume=file)
