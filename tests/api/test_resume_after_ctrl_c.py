"""Ctrl-C ends a fit, and the resumed one goes on from there; an epoch counts once."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from multifit import EarlyStoppingHandler, Every
from multifit.handlers import WeightAveraging
from multifit.handlers.plateau import PlateauHandler
from tests.common.nets import two_heads

from .resume_runs import BATCHES, EPOCHS, STEPS, TWO, At, Run, end_without_stop, simple_run, unequal


@pytest.mark.parametrize(
    ("every", "data"), [(None, "loader"), (Every(1, "epoch"), "iter"), (TWO, "loader")],
    ids=["none", "epochs", "batches"],
)  # fmt: skip
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


EPOCH = Every(1, "epoch")


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


@pytest.mark.parametrize(
    ("event", "priority", "every"),
    [
        ("batch_begin", 0.0, TWO),  # of the last batch: the resumed run validates
        ("batch_end", 1200.0, EPOCH),  # from here on, the epoch ends as if there were no signal
        ("epoch_end", -9000.0, TWO),
        ("evaluate_batch_end", 0.0, EPOCH),
        ("epoch_end", 1400.0, TWO),
        ("epoch_end", 9000.0, EPOCH),
        ("epoch_begin", 0.0, TWO),
    ],
    ids=str,
)
def test_an_epoch_counts_once_wherever_ctrl_c_comes(tmp_path, event, priority, every):
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
    run = Run(tmp_path / "run", "list", **options)
    whole = end_without_stop(run, "Ctrl-C", epochs=9)
    for epoch in (1, 3):  # the first, and the one after which rates fall
        step = epoch * BATCHES - (event == "batch_begin")
        ctrl_c = At(step, event, priority, partial(signal.raise_signal, signal.SIGINT))
        run.fit(ctrl_c, epochs=9, resume=None if epoch == 1 else run.folder)
        assert run.estimator.state.interrupted
    run.resume(epochs=9)
    assert run.estimator.state.epoch == 4 and "val_loss" in run.estimator.state.stop_reason
    assert unequal(run.end(), whole) == []


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
