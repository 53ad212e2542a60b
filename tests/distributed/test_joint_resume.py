"""Folders of several ranks: the first one writes, all load or are refused, and each finds its own state."""

import errno
import logging
import os
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from multifit import (
    CheckpointHandler,
    Every,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
    TrainerSpec,
)
from multifit.checkpoints import newest_checkpoint
from multifit.distributed import ALONE, World
from multifit.estimator.resume import RunCheckpointer
from tests.common.handlers import CutsPower
from tests.common.joint_data import loader
from tests.common.joint_training import (
    CASES,
    RANKS_OWN,
    ByShape,
    assert_equal_training,
    assert_ranks_resume,
    joint_training,
)
from tests.common.nets import sequential
from tests.common.ranks import run_ranks
from tests.common.specs import CE, regression_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip


class InterruptOn:
    """Interrupts one rank after a step, as Ctrl-C does."""

    def __init__(self, rank: int, step: int, world: World) -> None:
        self.step = step if world.rank == rank else None

    def batch_end(self, estimator: Any, **_: Any) -> None:
        if estimator.state.step == self.step:
            estimator.state.stop("SIGINT", interrupted=True)


def make(world: World, norm: bool = True, accumulate: int = 1) -> MultiEstimator:
    """Return an estimator, with `norm` with running statistics of each rank's own."""
    layers = [gluon.nn.BatchNorm()] if norm else []
    net = sequential(gluon.nn.Dense(8, activation="tanh"), *layers, gluon.nn.Dense(10))
    net.initialize(ByShape(world.rank))
    net.hybridize()
    losses = {"ce": LossSpec(CE, "digit", "digit", lambda state: 1.0 + state.step, normalize_by="weight")}
    labels = ["digit", "parity", "weight"]
    spec = TaskSpec(inputs=["x"], outputs=["digit"], labels=labels, losses=losses, unused=["parity"])
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.02, "momentum": 0.9})
    return MultiEstimator(net, spec, trainer, world=world, accumulate=accumulate)


def values_of(estimator: MultiEstimator) -> dict[str, Any]:
    return {name: p.data().asnumpy() for name, p in estimator.parameters.items()}


def train(world, folder, stop=None, resume=None, **options):
    """Train two epochs of five batches; the last rank may be interrupted."""
    estimator = make(world, **options)
    handlers = [CheckpointHandler(folder, Every(3, "batch"), seed=1)]
    if stop is not None:
        handlers.append(InterruptOn(world.size - 1, stop, world))
    history = estimator.fit(loader(16), epochs=2, event_handlers=handlers, resume=resume)
    figures = {name: np.array(history[name]) for name in history}
    state = estimator.state
    return {**values_of(estimator), **figures, "reason": state.stop_reason, "step": state.step}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> list[dict[str, Any]]:
    """What two ranks end with that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    return run_ranks(2, lambda world: train(world, folder))


def test_a_rank_that_is_interrupted_stops_all_and_they_resume_bit_for_bit(tmp_path, whole):
    stopped = run_ranks(2, lambda world: train(world, tmp_path, stop=7))
    assert [(result["step"], result["reason"]) for result in stopped] == [(7, "SIGINT (rank 1)")] * 2
    path, _ = newest_checkpoint(tmp_path)
    assert path.path.name == "epoch-0002-step-00000007"
    assert {own.name for own in (path.path / "ranks").iterdir()} == {"rank-0001"}
    resumed = run_ranks(2, lambda world: train(world, tmp_path, resume=tmp_path))
    assert all(same(one, other) for one, other in zip(whole, resumed))
    assert whole[0]["reason"] == "2 epochs"


@pytest.mark.parametrize(("size", "norm"), [(1, True), (3, False)])
def test_another_number_of_ranks_resumes_correctly(tmp_path, size, norm, caplog):
    run_ranks(2, lambda world: train(world, tmp_path, stop=7, norm=norm))
    with caplog.at_level(logging.INFO, "multifit"):
        resumed = run_ranks(size, lambda world: train(world, tmp_path, resume=tmp_path, norm=norm))
    assert f"2 processes saved it, and {size} process" in caplog.text
    alone = train(ALONE, tmp_path / "alone", norm=norm)
    tolerance = 0.1 if norm else 1e-5  # BatchNorm normalises each rank's share by itself
    for result in resumed:
        assert result["step"] == 10 and same(result, resumed[0])
        np.testing.assert_allclose(result["train_loss"], alone["train_loss"], rtol=tolerance)


def test_means_of_all_ranks_go_on_on_each_of_another_number(tmp_path):
    def run(world, name, *handlers, **fit):
        saving = CheckpointHandler(tmp_path / name, Every(2, "batch"))
        changes = {"handlers": lambda world: [saving, *handlers], "fit": fit}
        return joint_training(world, **{**CASES["balance of parameters"], **changes})

    alone = run(ALONE, "alone")
    assert {"figure train_weight_digit", "figure train_gradnorm_digit"} <= set(alone)
    run_ranks(2, lambda world: run(world, "parts", CutsPower(4)))
    for resumed in run_ranks(3, lambda world: run(world, "parts", resume=tmp_path / "parts")):
        assert_equal_training(alone, resumed)


class OnHost(mx.metric.EvalMetric):
    """The mean absolute error of each element."""

    def __init__(self) -> None:
        super().__init__("on host")

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(labels, preds):
            self.sum_metric += float((label - pred).abs().sum().asscalar())
            self.num_inst += label.size


@pytest.mark.parametrize(("saved", "resumed"), [(2, 1), (2, 3)])
def test_figures_that_cannot_be_divided_are_of_the_rest_of_the_epoch(tmp_path, saved, resumed, caplog):
    """The net computes 0, and labels are 1 in three batches, then 2."""
    labels = np.repeat([1.0, 2.0], [12, 8])[:, None].astype("float32")
    data = [(np.zeros((4, 3), "float32"), batch) for batch in np.split(labels, 5)]

    def run(world, *handlers, **fit):
        net = gluon.nn.Dense(1, in_units=3)
        net.initialize(mx.init.Zero())
        metrics = {
            "function": MetricSpec(lambda label, pred: float(np.abs(label - pred).mean()), "y", "y"),
            "host": MetricSpec(OnHost(), "y", "y"),
            "mae": MetricSpec(mx.metric.MAE(), "y", "y"),
            "spread": MetricSpec(lambda label, pred: float(label.std()), "y", "y"),
        }
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 1e-9})
        estimator = MultiEstimator(net, regression_spec(metrics), trainer, world=world)
        saving = CheckpointHandler(tmp_path, Every(3, "batch"), seed=1)
        history = estimator.fit(data, epochs=2, event_handlers=[saving, *handlers], **fit)
        return {name.partition("_")[2]: history[name] for name in history}

    run_ranks(saved, lambda world: run(world, CutsPower(3)))
    with caplog.at_level(logging.INFO, "multifit"):
        ends = run_ranks(resumed, lambda world: run(world, resume=tmp_path))
    whole, rest = (12 + 4 * 8) / 2 / 20, 2.0
    for end in ends:
        assert end["loss"] == pytest.approx([whole] * 2, rel=1e-5)
        assert end["host"] == pytest.approx([rest, 1.4], rel=1e-5)
        for name in ("function", "mae", "spread"):
            assert end[name] == pytest.approx(end[name][1:] * 2, rel=1e-5)
        assert end["mae"][0] == pytest.approx(1.4, rel=1e-5)
    assert '"train_host" starts from zero: what each process has measured cannot be' in caplog.text
    of_first = [record.getMessage() for record in caplog.records if record.name == "multifit"]
    assert sum("starts from zero" in message for message in of_first) == 1
    caplog.clear()
    with caplog.at_level(logging.INFO, "multifit"):  # a whole epoch's figures do not go on
        run_ranks(saved, lambda world: run(world, resume=tmp_path))
    assert "resuming from" in caplog.text and "starts from zero" not in caplog.text


def test_gradients_that_wait_for_an_update_need_as_many_ranks(tmp_path):
    run_ranks(2, lambda world: train(world, tmp_path, stop=7, accumulate=3))
    expected = "gradients of 2 processes wait for an update, and cannot be divided among 1; resume with 2"
    with pytest.raises(ValueError, match=expected):
        train(ALONE, tmp_path, resume=tmp_path, accumulate=3)
    resumed = run_ranks(2, lambda world: train(world, tmp_path, resume=tmp_path, accumulate=3))
    assert [result["step"] for result in resumed] == [10, 10]


@pytest.mark.parametrize("case", RANKS_OWN)
def test_states_that_are_each_ranks_own(tmp_path, case):
    assert_ranks_resume(tmp_path, "mxnet", case)


def test_a_checkpoint_that_ranks_cannot_see_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(RunCheckpointer, "_find", lambda self, folder: folder / "of the first rank")
    for error in run_ranks(2, lambda world: train(world, tmp_path, resume=tmp_path)):
        assert isinstance(error, ValueError)
        assert "is not there on rank 0, 1: all ranks read a checkpoint from the same disk" in str(error)


def test_all_ranks_go_on_if_the_first_cannot_write(tmp_path, whole, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("multifit.checkpoints.CheckpointStore.write", full)
    ended = run_ranks(2, lambda world: train(world, tmp_path))
    assert all(same(one, other) for one, other in zip(whole, ended))


# ---- the folder of a run -----------------------------------------------------------------------------------

WRITTEN = [
    "checkpoints", "curves.png", "final.params", "history.json", "log.txt", "plan.json", "plan.txt",
    "settings.json", "tensorboard",
]  # fmt: skip


def test_the_first_rank_writes_and_all_load(tmp_path, monkeypatch):
    monkeypatch.setattr("multifit.estimator.run_folder.curves", lambda history: Figure(figsize=(0.1, 0.1)))
    folder = tmp_path / "run"

    def run(world):
        made, other = make(world), make(world)
        saving = CheckpointHandler(folder, every=1, monitor="train_loss")
        made.fit(loader(16), epochs=2, event_handlers=[saving], output=folder)
        files = [other.load(folder, *which) for which in ((), ("best",), ())]
        return made.best_checkpoint, files, values_of(made), values_of(other)

    ranks = run_ranks(2, run)
    assert sorted(os.listdir(folder)) == WRITTEN
    best = ranks[0][0]
    for found, files, trained, loaded in ranks:
        assert found == best and best.name.startswith("epoch-0001")
        assert files == [folder / "final.params", best / "net.params", folder / "final.params"]
        np.testing.assert_equal(loaded, trained)


def test_all_ranks_are_refused(tmp_path):
    (tmp_path / "notes.txt").touch()

    def run(world):
        made = make(world)
        with pytest.raises(ValueError, match="is not empty: give another folder"):
            made.fit(loader(16), epochs=1, output=tmp_path)
        with pytest.raises(SpecError, match=r"limits.seed: 0 on rank 0, 1 on rank 1"):
            made.fit(loader(16), epochs=1, seed=world.rank, output=tmp_path / "run")
        with pytest.raises(ValueError, match="output= writes in one process"):
            made.predict(loader(16), output=tmp_path / "outputs")
        return made.state.step

    assert run_ranks(2, run) == [0, 0] and os.listdir(tmp_path) == ["notes.txt"]
