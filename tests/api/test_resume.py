"""A resumed fit ends bit for bit as it would have without the stop, or is refused with the reason."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, EarlyStoppingHandler, Every, MetricSpec, SpecError, TrainerSpec
from multifit.gluon.handlers import WeightAveraging
from multifit.gluon.steps.runner import Runner
from multifit.handlers import StoppingHandler
from multifit.handlers.plateau import PlateauHandler
from tests.common.nets import TWO_HEADS, Heads, sequential, two_heads

from .resume_runs import (
    BATCHES,
    DATA,
    EPOCHS,
    SAMPLES,
    STEPS,
    At,
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

TWO = Every(2, "batch")


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
        ("loader with rollover", 1, TWO, [7]),
        ("iter with roll_over", 1, TWO, [7]),
        ("augmenting processes", 1, TWO, [7]),
        ("augmenting processes, in order", 1, TWO, [7]),
    ],
)
def test_it_ends_bit_for_bit_as_without_the_stop(
    tmp_path: Path, log: Any, data: str, devices: int, every: Any, at: list[Any]
) -> None:
    run = Run(tmp_path / "run", data, devices, every)
    run.crash(*at)
    run.resume()
    assert unequal(run.end(), end_without_stop(run)) == []
    assert not any("cannot be seeded" in line for line in log())


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("accumulate", [False, True])
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


def test_a_fit_that_trains_more_than_the_one_before_continues(tmp_path: Path) -> None:
    """The estimator that resumes has trained all parameters from the beginning."""
    ends = []
    for name, step in (("whole", None), ("stopped", 8)):
        run = Run(tmp_path / name, "list")
        estimator, data = run.build(), DATA["list"]()
        frozen = estimator.net.body[0].collect_params()
        frozen.setattr("grad_req", "null")
        estimator.fit(data, epochs=1, event_handlers=[])
        frozen.setattr("grad_req", "write")
        handlers = [CheckpointHandler(run.folder, run.every, seed=7)]
        with nullcontext() if step is None else pytest.raises(Exception, match="Crash"):
            crash = [] if step is None else [At(step)]
            estimator.fit(data, epochs=EPOCHS, event_handlers=[*handlers, *crash])
        if step is not None:
            estimator = run.build()
            estimator.fit(data, epochs=EPOCHS, event_handlers=handlers, resume=run.folder)
        parameters = {key: value for key, value in values(estimator).items() if "@" in key}
        ends.append(
            {**parameters, "history": estimator.history.to_json(), "rates": estimator.learning_rates()}
        )
    assert unequal(*ends) == []


def test_it_can_be_stopped_several_times(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.crash(3)
    for step in (3, 8):
        run.crash(step, resume=run.folder)
    run.resume()
    assert unequal(run.end(), end_without_stop(run)) == []


def test_the_states_of_handlers_are_restored(tmp_path: Path) -> None:
    def handlers() -> list[Any]:
        return [
            EarlyStoppingHandler("val_loss", patience=2, min_delta=100, restore_best=True),
            PlateauHandler("val_loss", factor=0.5, patience=2, min_delta=100),
        ]

    ends = []
    for name, step in (("whole", None), ("stopped", 12)):
        run = Run(tmp_path / name, "list")
        run.handlers = handlers
        if step is not None:
            run.crash(step, epochs=9)
        run.fit(epochs=9, resume=None if step is None else run.folder)
        ends.append(run.end())
    assert "val_loss has not improved" in ends[0]["reason"] and ends[0]["state"]["step"] == 3 * BATCHES
    assert ends[0]["rates"]["lr_heads"] == 0.05
    assert unequal(*ends) == []


def test_the_state_of_what_runs_batches_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PyTorch, that is the scale of gradients in float16."""
    restored: list[Any] = []
    monkeypatch.setattr(Runner, "state", lambda runner: {"scale": 2.0})
    monkeypatch.setattr(Runner, "load", lambda runner, state: restored.append(state))
    run = simple_run(tmp_path / "run", TWO)
    run.crash(3)
    assert restored == []
    run.resume()
    assert restored == [{"scale": 2.0}]


ALL = {"epochs": EPOCHS}


# how far a run was trained before, how far then, what the log says and why it stopped
@pytest.mark.parametrize(
    ("first", "then", "line", "reason"),
    [
        ({"batches": 8}, {"batches": STEPS}, "resuming from epoch-0002-step-00000008", f"{STEPS} batches"),
        ({"epochs": 1}, ALL, "resuming from epoch-0001-step-00000005: epoch 2", "2 epochs"),
        (ALL, ALL, "the run had finished: 2 epochs", "2 epochs"),
        (None, ALL, "no checkpoint in", "2 epochs"),
    ],
    ids=["batches", "epochs", "finished", "from scratch"],
)
def test_a_run_can_be_extended(
    tmp_path: Path, log: Any, first: Any, then: Any, line: str, reason: str
) -> None:
    run = Run(tmp_path / "run")
    if first is not None:
        run.fit(**first)
    run.resume(*([At(STEPS, "batch_begin")] if first == then else []), **then)
    assert unequal(run.end(), {**end_without_stop(run), "reason": reason}) == []
    assert any(logged.startswith(line) for logged in log())


@pytest.mark.parametrize("every", [Every(1, "epoch"), Every(3, "batch")], ids=repr)
@pytest.mark.parametrize("cut", [None, "evaluate_batch_end", "train_end"])
@pytest.mark.parametrize(
    ("step", "limits", "stops"),
    [
        (8, {"batches": 8}, list),
        (STEPS, {"batches": STEPS}, list),
        (8, {"epochs": 3}, lambda: [StoppingHandler(max_batch=8)]),
        (8, {"epochs": 3}, lambda: [At(8, priority=0.0, action=lambda: True)]),
    ],
)
def test_a_run_that_is_finished_ends_again_as_it_did(
    tmp_path: Path, every: Any, cut: str | None, step: int, limits: Any, stops: Any
) -> None:
    """The last epoch is not a whole one; what of its end was cut off is made up for."""

    def handlers() -> list[Any]:
        return [
            EarlyStoppingHandler("val_loss", patience=9, min_delta=100, restore_best=True),
            WeightAveraging("swa", apply=False),
            *stops(),
        ]

    whole, run = (Run(tmp_path / name, "list", every=every, handlers=handlers) for name in ("whole", "run"))
    whole.fit(**limits)
    assert np.isfinite(whole.estimator.history["val_loss"]).all()
    if cut is None:
        run.fit(**limits)
    else:
        run.crash(step, cut, 0.0, **limits)
    for _ in range(2):
        written = saved_checkpoints(run)
        run.resume(**limits)
        assert unequal(run.end(), whole.end()) == []
    assert saved_checkpoints(run) == written


def saved_checkpoints(run: Run) -> list[tuple[str, int]]:
    """Return the checkpoints and when they were written."""
    return sorted((path.name, path.stat().st_mtime_ns) for path in (run.folder / "checkpoints").iterdir())


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


# ---- outside the schedule ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["loader", "iter"])
@pytest.mark.parametrize("every", [None, Every(1, "epoch"), TWO], ids=["none", "epochs", "batches"])
def test_ctrl_c_within_an_epoch(tmp_path: Path, log: Any, every: Any, data: str) -> None:
    def ctrl_c() -> None:
        signal.raise_signal(signal.SIGINT)

    run = simple_run(tmp_path / "run", every)
    run.data = data
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run.fit(At(4, priority=-1, action=ctrl_c))
    assert run.estimator.state.stop_reason == "SIGINT" and run.estimator.state.step == 4
    run.fit(At(8, priority=-1, action=ctrl_c), resume=run.folder)
    assert run.estimator.state.step == 8
    history = run.resume()
    assert run.estimator.state.step == STEPS
    # logged when such a checkpoint is written, and when it is read
    assert sum("not bit for bit" in line for line in log()) == (0 if every is TWO else 4)
    # each epoch measured every sample once
    assert history["train_loss"] == pytest.approx([history["train_loss"][0]] * EPOCHS, rel=1e-6)


class Counts:
    """A handler of a user, which counts and does not ask whether the fit was interrupted."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def epoch_end(self, estimator: Any) -> None:
        self.counts["epochs"] = self.counts.get("epochs", 0) + 1
        estimator.history.record({"ends": self.counts["epochs"]})

    def state_dict(self) -> dict[str, int]:
        return self.counts

    def load_state_dict(self, state: Any) -> None:
        self.counts = dict(state)


@pytest.mark.parametrize("every", [Every(1, "epoch"), TWO], ids=["epochs", "batches"])
@pytest.mark.parametrize(
    ("event", "priority"),
    [
        ("batch_begin", 0.0),  # of the last batch: the resumed run validates
        ("batch_end", 1200.0),  # from here on, the epoch ends as if there were no signal
        ("epoch_end", -9000.0),
        ("evaluate_begin", 0.0),
        ("evaluate_batch_end", 0.0),
        ("epoch_end", 0.0),
        ("epoch_end", 1400.0),
        ("epoch_end", 9000.0),
        ("epoch_begin", 0.0),
    ],
)
def test_an_epoch_counts_once_wherever_ctrl_c_comes(
    tmp_path: Path, event: str, priority: float, every: Any
) -> None:
    def handlers() -> list[Any]:
        return [
            EarlyStoppingHandler("val_loss", patience=3, min_delta=100),
            PlateauHandler("val_loss", factor=0.5, patience=2, min_delta=100),
            WeightAveraging("swa"),
            Counts(),
        ]

    signal.signal(signal.SIGINT, signal.default_int_handler)
    # without dropout, a checkpoint outside of the schedule is exact too
    options = {"every": every, "handlers": handlers, "net": lambda: two_heads("hybrid")}
    whole, run = (Run(tmp_path / name, "list", **options) for name in ("whole", "run"))
    whole.fit(epochs=9)
    for epoch in (1, 3):  # the first, and the one after which rates fall
        step = epoch * BATCHES - (event == "batch_begin")
        ctrl_c = At(step, event, priority, partial(signal.raise_signal, signal.SIGINT))
        run.fit(ctrl_c, epochs=9, resume=None if epoch == 1 else run.folder)
        assert run.estimator.state.interrupted
    run.resume(epochs=9)
    assert run.estimator.state.epoch == 4 and "val_loss" in run.estimator.state.stop_reason
    assert unequal(run.end(), whole.end()) == []


def test_a_reason_to_stop_outlives_ctrl_c(tmp_path: Path) -> None:
    """A run that stops by itself at the end of an epoch is not trained on because of a signal there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = Run(tmp_path / "run", "list")
    run.handlers = lambda: [EarlyStoppingHandler("val_loss", patience=1, min_delta=100)]
    ctrl_c = At(2 * BATCHES, "evaluate_begin", 0.0, partial(signal.raise_signal, signal.SIGINT))
    run.fit(ctrl_c, epochs=9)
    assert run.estimator.state.interrupted
    run.resume(epochs=9)
    assert run.estimator.state.epoch == 2 and "val_loss" in run.estimator.state.stop_reason


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
    """Its state is a generator, which no file can hold."""

    def __init__(self) -> None:
        super().__init__("unsavable")
        self.generator = (i for i in range(3))

    def update(self, labels: Any, preds: Any) -> None:
        self.num_inst, self.sum_metric = self.num_inst + 1, self.sum_metric + 1


class WithState:
    """A handler with a state."""

    def batch_end(self, estimator: Any) -> None:
        """An event, so that it is a handler."""

    def state_dict(self) -> dict[str, int]:
        return {"a": 1}

    def load_state_dict(self, state: Any) -> None:
        """Do nothing."""


def test_what_cannot_be_saved_or_loaded_is_logged(tmp_path: Path, log: Any) -> None:
    run = simple_run(tmp_path / "run", TWO)
    run.spec = lambda: make_spec(metrics={"odd": MetricSpec(Unsavable(), "digit", "digit")})
    run.fit(WithState(), epochs=1)
    assert "checkpoints cannot hold train_odd; it starts from zero after a resume" in log()
    run.resume()
    assert '"train_odd" starts from zero: the checkpoint could not hold it' in log()
    assert "the checkpoint holds the state of WithState, which this fit does not have" in log()


# ---- where nothing is resumed ------------------------------------------------------------------------------


def test_a_run_that_a_handler_stopped_goes_on_only_if_it_is_extended(tmp_path: Path, caplog: Any) -> None:
    class Stops:
        def epoch_end(self, estimator: Any) -> bool:
            return True

    run = Run(tmp_path / "run")
    run.fit(Stops(), epochs=3)
    run.resume(epochs=3)
    assert run.estimator.state.epoch == 1
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning == (
        "the run had finished: Stops; nothing is trained: to go on, resume with more than epochs=3"
    )
    run.resume(epochs=4)
    assert run.estimator.state.epoch == 4


def wider_net() -> Any:
    return Heads(
        body=sequential(nn.Dense(9, activation="relu"), nn.BatchNorm(), nn.Dropout(0.3)), **TWO_HEADS
    )


def test_a_checkpoint_of_another_run_is_an_error(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.crash(3)
    usual = dict(vars(run))
    for field, other, line in (
        ("spec", lambda: make_spec(metrics={}), 'metrics["accuracy"]: '),
        ("net", wider_net, 'parameters["body.0.weight"].shape: [8, 6] in the checkpoint, [9, 6] here'),
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
