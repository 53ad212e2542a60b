"""One rank of the runs of ``test_distributed.py``: ``python -m nightly.joint_ranks FOLDER MODE NAME…``.

A rank prints when it was made to fail, and when and how it ended.
"""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from multifit import (
    CheckpointHandler,
    Every,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    TaskSpec,
    TrainerSpec,
    World,
    connect,
)
from tests.common.joint_data import loader
from tests.common.joint_training import CASES, ON_TORCH, ByShape, joint_training
from tests.common.nets import sequential

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

FAILING_STEP = 5


def train(world: World, folder: Path, names: list[str], cases: Any = CASES, engine: str = "mxnet") -> None:
    """Train some cases, and save the results of this rank."""
    for number, name in enumerate(names):
        result = joint_training(world, **cases[name], engine=engine)
        np.savez(folder / f"{number}-{world.size}-{world.rank}.npz", **result)


class Failing:
    """Makes the last rank fail at one step, in one way; `at` is called from several places in a run."""

    def __init__(self, world: World, how: str) -> None:
        self.world, self.how, self.estimator = world, how, None

    def at(self, place: str) -> None:
        """Fail if this is the place, the time and the rank."""
        due = self.estimator is not None and self.estimator.state.step == FAILING_STEP
        if place != self.how or not due or self.world.rank < self.world.size - 1:
            return
        self.how = ""
        print("FAILS", time.time(), flush=True)
        number = getattr(signal, place, None)
        if number is None:
            raise RuntimeError(f"{place} has a bug")
        os.kill(os.getpid(), number)

    def batch_end(self, estimator: Any, **_: Any) -> None:
        for place in ("handler", "SIGKILL", "SIGSTOP", "SIGINT", "SIGTERM"):
            self.at(place)

    def train_end(self, estimator: Any, **_: Any) -> None:
        self.estimator = None


class FailingDataset(gluon.data.Dataset):
    """Returns the samples of another data set, until one cannot be read."""

    def __init__(self, inner: Any, failing: Failing) -> None:
        self._inner, self._failing = inner, failing

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        self._failing.at("loader")
        return self._inner[index]


def fail(world: World, folder: Path, hows: list[str]) -> None:
    """Train with a rank that fails."""
    (how,) = hows
    odd = world.rank == world.size - 1  # the rank that is not like the others
    failing = Failing(world, how)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def failing_loss(pred: Any, label: Any) -> Any:
        failing.at("loss")
        return loss(pred, label)

    class FailingMetric(mx.metric.Accuracy):
        def update(self, labels: Any, preds: Any) -> None:
            failing.at("metric")
            super().update(labels, preds)

    net = sequential(gluon.nn.Dense(9 if how == "nets" and odd else 8), gluon.nn.Dense(10))
    net.initialize(ByShape(world.rank))
    spec = TaskSpec(
        inputs=["x"],
        outputs=["digit"],
        labels=["digit", "parity", "weight"],
        losses={
            "ce": LossSpec(failing_loss, "digit", "digit", weight=2.0 if how == "specs" and odd else 1.0)
        },
        metrics={"accuracy": MetricSpec(FailingMetric(), "digit", "digit")},
        unused=["parity", "weight"],
    )
    estimator = failing.estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd"), world=world)
    data: Any = gluon.data.DataLoader(FailingDataset(loader(8)._dataset, failing), 8)
    if how == "data":
        data = loader(8, samples=80 if odd else 72)
    if how == "lengths":
        data = list(loader(8))[: 6 if odd else 9]
    if how == "batches":
        data = list(loader(8))[odd:]
    handlers = [failing, CheckpointHandler(folder, every=Every(3, "batch"), seed=1)]
    estimator.fit(data, epochs=20, event_handlers=handlers)
    print("STOPPED", estimator.state.stop_reason, estimator.state.step, flush=True)


def main() -> None:
    """Connect, and do what the command line says."""
    folder, mode, *names = sys.argv[1:]
    world = connect(timeout=float(os.environ["MULTIFIT_TIMEOUT"]))
    try:
        on_torch = partial(train, cases=ON_TORCH, engine="torch")
        {"train": train, "train-on-torch": on_torch, "fail": fail}[mode](world, Path(folder), names)
        print("ENDS", time.time(), "well", flush=True)
    except BaseException as error:
        print("ENDS", time.time(), type(error).__name__, str(error).replace("\n", " | "), flush=True)
        raise


if __name__ == "__main__":
    main()
