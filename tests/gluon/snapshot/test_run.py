"""What is written in the middle of an epoch and read in a new estimator continues bit for bit."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.estimator.fit_loop import FitLoop
from tests.api.resume_runs import values
from tests.common.grids import TWO
from tests.common.nets import hybridized, normed_heads
from tests.common.specs import CE

from .runs import make_batches, make_estimator, train

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip


def figures(estimator: Any, stage: str = "train") -> Any:
    return estimator._session.stages[stage].figures


def begin(estimator: Any) -> None:
    """Begin a loop, whose figures may then be loaded."""
    estimator._engine.restart()
    estimator._batch_loop = FitLoop(*estimator._loop_parts)


# ---- a whole run -------------------------------------------------------------------------------------------


class BiasedL2(gluon.loss.Loss):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(1.0, 0)
        self.bias = self.params.get("bias", shape=(1,), init="zeros")

    def hybrid_forward(self, F: Any, output: Any, label: Any, bias: Any) -> Any:
        return F.mean(F.square(F.broadcast_add(output, bias) - label), axis=0, exclude=True)


def with_loss_parameters() -> MultiEstimator:
    """On three devices, with a normalizer."""
    size = LossSpec(BiasedL2(), weight=lambda state: 0.5, normalize_by=lambda slots: slots["size"] != 0)
    return make_estimator(3, net=hybridized(normed_heads()), losses={"digit": CE, "size": size})


def with_a_trainer_of_the_users() -> MultiEstimator:
    net, loss = normed_heads(), BiasedL2()
    for block in (net, loss):
        block.initialize(ctx=TWO)
    parameters = {**net.collect_params(), **loss.collect_params()}
    trainer = gluon.Trainer(parameters, "adam", {"learning_rate": 0.01})
    return make_estimator(2, trainer, net, losses={"digit": CE, "size": loss})


def interrupt(folder: Path, make: Callable[[], MultiEstimator], batches: Any, at: int) -> None:
    """Train, write at a batch, and read in another estimator; train both to the end."""
    whole, resumed = make(), make()
    train(whole, batches[:at])
    whole._engine.snapshot.write(folder)
    train(whole, batches[at:], at)
    np.random.rand(), random.random()
    begin(resumed)
    assert resumed._engine.snapshot.read(folder) == []
    train(resumed, batches[at:], at)
    assert values(resumed) == values(whole)
    assert figures(resumed).read() == figures(whole).read()


@pytest.mark.parametrize("make", [with_loss_parameters, with_a_trainer_of_the_users])
def test_it_continues_bit_for_bit(tmp_path: Path, make: Callable[[], MultiEstimator]) -> None:
    interrupt(tmp_path, make, make_batches(), 3)
    assert {path.name for path in tmp_path.iterdir()} == {
        "devices.json", "devices.npz", "figures.json", "figures.npz", "identity.json", "labels.json",
        "losses.params", "net.params", "random.json", "random.npz", "trainers.json", "trainers.npz",
    }  # fmt: skip


class OwnOptimizer(mx.optimizer.SGD):
    """A user's optimizer."""


def test_what_starts_anew_is_named(tmp_path: Path) -> None:
    one, other = (make_estimator(trainers=TrainerSpec(".*", OwnOptimizer())) for _ in range(2))
    train(one, make_batches([8]))
    one._engine.snapshot.write(tmp_path)
    assert other._engine.snapshot.read(tmp_path) == [
        'trainers["trainer"]: OwnOptimizer has no state_dict and load_state_dict, so only numbers among its '
        "attributes are restored"
    ]


@pytest.mark.parametrize(("columns", "at"), [((0, 1, 0), 1), ((0, 1, 0), 2), ((1, 0), 1)])
def test_a_metric_whose_sums_left_the_device_continues(tmp_path: Path, columns: Any, at: int) -> None:
    """On the device, F1 takes flat labels only."""
    batches = [
        (
            np.random.randn(8, 4).astype("float32"),
            np.random.randint(0, 2, (8, 1)[: 1 + column]).astype("float32"),
        )
        for column in columns
    ]
    spec = TaskSpec(
        outputs="o", labels="l", losses={"ce": LossSpec(CE, "o", "l")},
        metrics={"f1": MetricSpec(mx.metric.F1(), "o", "l")},
    )  # fmt: skip
    interrupt(tmp_path, lambda: MultiEstimator(nn.Dense(2, in_units=4), spec, TrainerSpec(".*")), batches, at)


# ---- the figures of a stage --------------------------------------------------------------------------------


def carry_over(folder: Path, one: Any, other: Any, stage: str = "train", divisible: bool = True) -> list[str]:
    """Write the figures of one estimator, and load them in another; return the metrics that start anew."""
    snapshot = one._engine.snapshot
    snapshot.write_tree(folder, "stage", figures(one, stage).state())
    begin(other)
    lost: list[str] = figures(other, stage).load(snapshot.read_tree(folder, "stage"), divisible)
    return lost


def evaluate(estimator: Any, batches: list[Any]) -> None:
    for batch in batches:
        estimator._engine.evaluate_batch(batch)


def test_labels_that_were_counted_before_a_resume_are_named(tmp_path: Path) -> None:
    one, two, batches = make_estimator(), make_estimator(), make_batches([8] * 4)
    batches[2][1][:] = -1
    train(one, batches[:3])
    carry_over(tmp_path, one, two)
    with pytest.raises(DataError, match="held 8 values"):
        train(two, batches[3:])
        figures(two).read()


class Counting(mx.metric.EvalMetric):
    """A metric that is updated batch by batch: how often."""

    def update(self, labels: Any, preds: Any) -> None:
        self.sum_metric, self.num_inst = self.sum_metric + 1, 1


class WithState(Counting):
    """One that can be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self.sum_metric}

    def load_state_dict(self, state: Any) -> None:
        self.sum_metric, self.num_inst = state["sum"], 1


@pytest.mark.parametrize(
    ("make", "divisible", "lost"),
    [(Counting, True, True), (WithState, False, True), (WithState, True, False)],
)
def test_a_metric_that_cannot_go_on_is_named_and_starts_from_zero(
    tmp_path: Path, make: Any, divisible: bool, lost: bool
) -> None:
    one, two = (make_estimator(metrics={"m": MetricSpec(make("m"), "size", "size")}) for _ in range(2))
    evaluate(one, make_batches([8, 8]))
    assert carry_over(tmp_path, one, two, "evaluate", divisible) == ["m"] * lost
    np.testing.assert_equal(figures(two, "evaluate").read()["m"], np.nan if lost else 2.0)
