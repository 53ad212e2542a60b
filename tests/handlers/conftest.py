"""A run for the handlers: real state, history and events around figures that the test chooses.

The handlers use of an estimator what this stands for.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multifit.distributed import ALONE
from multifit.handlers.dispatcher import EventDispatcher
from multifit.handlers.handler import AFTER_LAST_BATCH
from multifit.handlers.history import History
from multifit.handlers.state import RunState
from multifit.spec import LossSpec, MetricSpec, TaskSpec


def spec_of_two_tasks() -> TaskSpec:
    """Declare the outputs "digit", with a loss and a metric, and "size", with a loss."""
    return TaskSpec(
        outputs=("digit", "size"),
        labels=["digit", "size"],
        losses={"digit": LossSpec(max), "size": LossSpec(max)},
        metrics={"accuracy": MetricSpec(max, outputs="digit", labels="digit")},
    )


class At:
    """Calls a function with the estimator at an event: at every one, or at that of one step."""

    def __init__(
        self, event: str, action: Callable[[Any], Any], step: int | None = None, priority: float = 0.0
    ) -> None:
        self.step, self.action, self.priority = step, action, priority
        setattr(self, event, self._act)

    def train_begin(self, estimator: Any) -> None:
        """An event, so that it is a handler."""

    def _act(self, estimator: Any) -> Any:
        return self.action(estimator) if self.step in (None, estimator.state.step) else None


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Run:
    """Calls handlers as a fit does. A batch has 8 samples and takes a second; an evaluation has 2 batches."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.spec = spec_of_two_tasks()
        self.state = RunState()
        self.history = History()
        self.max_epoch: int | None = None
        self.max_batch: int | None = None
        self.batch_axis = 0
        self.plan = None
        self.world = ALONE
        self.validation_sets: tuple[str, ...] = ()
        self.logger = logging.getLogger("multifit")
        self.train: Callable[[RunState], dict[str, float]] = lambda state: {"train_loss": 1.0 / state.step}
        self.validation: Callable[[RunState], dict[str, float]] = lambda state: {"loss": 2.0 / state.step}
        self.directions = {"train_loss": "min", "val_loss": "min", "val_acc": "max"}
        self.saves_generators = False
        self.weights: dict[str, Any] = {}  # the values of parameters, and their gradients
        self.gradients: dict[str, Any] = {}
        self.read: list[tuple[str, int]] = []  # the stage and step of each reading of figures
        self.evaluated: list[tuple[Any, int]] = []  # the data and step of each evaluation
        self.events = EventDispatcher(self)

    def collect_checkpoint(self) -> None:
        """There are no other ranks."""

    def figures(self, stage: str = "train", quick: bool = False) -> dict[str, float]:
        self.read.append((stage, self.state.step))
        if stage == "train":
            return self.train(self.state)
        return {f"val_{name}": value for name, value in self.validation(self.state).items()}

    def direction(self, figure: str) -> str | None:
        return self.directions.get(figure)

    def values(self, gradients: bool = False) -> dict[str, Any]:
        values = self.gradients if gradients else self.weights
        return {name: value.copy() for name, value in values.items()}

    def set_values(self, values: Any) -> None:
        for name, value in values.items():
            self.weights[name][:] = value

    def evaluated_parameters(self) -> dict[str, Any]:
        return {}

    def learning_rates(self) -> dict[str, float]:
        return {"lr": 0.001}

    def evaluate(
        self, data: Any, event_handlers: Any = None, batch_axis: int = 0, batches: int | None = None
    ) -> dict[str, float]:
        self.evaluated.append((data, self.state.step))
        events = self.events if event_handlers is None else EventDispatcher(self, event_handlers)
        events.emit("evaluate_begin", batches=2)
        for _ in range(2):
            events.emit("evaluate_batch_begin", batch=data)
            self.clock.now += 1.0
            events.emit("evaluate_batch_end", batch=data, pred=None, label=None, loss=None)
        figures = self.validation(self.state)
        if self.history.epochs:
            self.history.record({f"val_{name}": value for name, value in figures.items()})
        events.emit("evaluate_end", figures=figures)
        return figures

    def fit(self, *handlers: Any, epochs: int = 1, batches: int = 3, known: bool = True) -> History:
        """Run up to `epochs` epochs of `batches` batches (`known`: the loader has a length)."""
        self.events = EventDispatcher(self, handlers)
        self.history = History()
        self.state.start()
        self.events.emit("train_begin")
        for _ in range(epochs):
            self._epoch(batches, known)
            if self.state.stopped:
                break
            self.state.epoch += 1
        self.events.emit("train_end")
        return self.history

    def _epoch(self, batches: int, known: bool) -> None:
        self.history.open_row()
        self.events.emit("epoch_begin", batches=batches if known else None)
        for self.state.batch in range(batches):
            self.events.emit("batch_begin", batch=None)
            self.clock.now += 1.0
            self.state.step += 1
            self.state.samples += 8
            self.events.emit("batch_end", batch=None, pred=None, label=None, loss=None)
            if self.state.stopped:
                self.events.emit(AFTER_LAST_BATCH)
                break
        trained = not self.state.stopped or (known and self.state.batch + 1 == batches)
        self.events.emit("epoch_end", complete=trained and not self.state.interrupted)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(clock: Clock) -> Run:
    return Run(clock)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Capture what is logged at level INFO and above."""
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    caplog.set_level(logging.INFO, "multifit")
    return caplog


@pytest.fixture
def saved(run: Any) -> Any:
    """Return a run that writes its step to a file, and lists in `writes` and `reseeded` what was called."""

    def write(folder: Path) -> None:
        run.writes.append(run.state.step)
        (folder / "run.json").write_text(json.dumps({"step": run.state.step}))

    run.write_checkpoint, run.writes, run.reseeded = write, [], []
    run.reseed = lambda: run.reseeded.append(run.state.step)
    run.reseed_epoch = lambda: run.reseeded.append(f"epoch {run.state.epoch}")
    return run
