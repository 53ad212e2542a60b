"""LogTo: what an object is called with, in which order, and what happens if it fails."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mxnet import gluon

from multifit import CheckpointHandler, LogTo, MultiEstimator, ProgressBar
from multifit.handlers import MetricHandler, ValidationHandler
from multifit.handlers.plots import new_figure
from multifit.spec.plan import Plan, TrainerPlan


class Recorder:
    """Has all methods of a logger, and lists what it was called with; `failing` names one that raises."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing = failing
        for method in ("log_settings", "log_figures", "log_picture", "log_file", "close"):
            setattr(self, method, lambda *arguments, method=method: self._call(method, *arguments))

    def _call(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, *arguments))
        if method == self.failing:
            raise ConnectionError("no route to host")

    def of(self, method: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == method]


def test_what_is_logged_and_in_which_order(run: Any, tmp_path: Path) -> None:
    run.train = lambda state: {"train_loss": 1.0 / state.step, "train_acc": math.nan}
    logger, picture = Recorder(), new_figure(1, 1)
    handler = LogTo(logger, every=2, pictures=lambda estimator: {"samples": picture}, files=[tmp_path, "log"])
    run.fit(handler, MetricHandler(), ValidationHandler("data", epoch_period=2), epochs=2)
    kinds = [call[0] for call in logger.calls]
    assert kinds[0] == "log_settings" and kinds[-3:] == ["log_file", "log_file", "close"]
    assert logger.of("log_figures") == [  # NaN was not measured; validation is in every second epoch
        ({"batches/train_loss": 1 / 2}, 2, None),
        ({"train_loss": 1 / 3, "lr": 0.001}, 3, 1),
        ({"batches/train_loss": 1 / 4}, 4, None),
        ({"batches/train_loss": 1 / 6}, 6, None),
        ({"train_loss": 1 / 6, "lr": 0.001, "val_loss": 1 / 3}, 6, 2),
    ]
    assert logger.of("log_picture") == [("samples", picture, 3, 1), ("samples", picture, 6, 2)]
    assert logger.of("log_file") == [(tmp_path,), (Path("log"),)]


def test_the_settings_are_what_was_declared_and_the_users(run: Any) -> None:
    trainers = (TrainerPlan("body", "adam", 0.25, ("w",), 3), TrainerPlan("head", "sgd", 0.5, ("v",), 3))
    run.plan, run.max_epoch, run.state.seed = Plan(("cpu(0)", "cpu(1)"), 8, trainers=trainers), 2, 7
    logger = Recorder()
    run.fit(LogTo(logger, settings={"width": 64, "seed": "mine"}), MetricHandler(), epochs=2)
    ((settings,),) = logger.of("log_settings")  # once
    versions = {name: settings.pop(name) for name in list(settings) if name.startswith("version.")}
    assert versions["version.numpy"] == np.__version__ and "version.multifit" in versions
    assert settings == {
        "estimator": repr(run), "seed": "mine", "epochs": 2, "ranks": 1, "plan": str(run.plan),
        "batch_size": 8, "devices": "cpu(0), cpu(1)", "body.optimizer": "adam", "body.learning_rate": 0.25,
        "head.optimizer": "sgd", "head.learning_rate": 0.5, "width": 64,
    }  # fmt: skip


@pytest.mark.parametrize("method", ["log_settings", "log_figures", "log_picture", "log_file", "close"])
def test_a_logger_that_fails_is_one_warning_a_fit(run: Any, log: Any, method: str) -> None:
    logger = Recorder(method)
    handler = LogTo(logger, every=1, pictures=lambda estimator: {"a": new_figure(1, 1)}, files=["log"])
    for fits in (1, 2):
        run.fit(handler, MetricHandler(), epochs=3)
        assert len(run.history["train_loss"]) == 3
        assert len(logger.of(method)) == (1 + (method == "close")) * fits
    start = f"Recorder: {method} failed (ConnectionError: no route to host)"
    assert log.messages == [f"{start}; training continues, and nothing more is logged there"] * 2
    assert logger.calls[-1] == ("close",)


def test_nothing_is_logged_before_the_first_batch_has_been_checked(tmp_path: Path) -> None:
    logger = Recorder()
    estimator = MultiEstimator(gluon.nn.Dense(2), gluon.loss.SoftmaxCrossEntropyLoss())
    wrong = [(np.zeros((4, 3), "float32"), np.full(4, 5.0, "float32"))]
    with pytest.raises(ValueError, match="label"):
        estimator.fit(wrong, epochs=1, event_handlers=LogTo(logger, files=[tmp_path]))
    assert logger.calls == []


@pytest.mark.parametrize("pictures", [{"a": 5}, [new_figure(1, 1)]], ids=["no figure", "no dict"])
def test_pictures_must_be_figures(run: Any, pictures: Any) -> None:
    with pytest.raises(ValueError, match=r"^pictures must return a dict of matplotlib figures, not"):
        run.fit(LogTo(Recorder(), pictures=lambda estimator: pictures), MetricHandler())


def nothing(*arguments: Any) -> None:
    """Do nothing."""


ONLY_FIGURES, VALID = SimpleNamespace(log_figures=nothing), "; valid is an object with some of the methods "


@pytest.mark.parametrize(
    ("logger", "arguments", "message"),
    [
        (Recorder, {}, "which cannot log"),  # a class
        (SimpleNamespace(close=nothing), {}, "which cannot log" + VALID),
        (SimpleNamespace(log_figure=nothing), {},
         'which cannot log; it has "log_figure" (did you mean "log_figures"?)' + VALID),
        (ONLY_FIGURES, {"settings": {"a": 1}, "pictures": nothing},
         'which lacks "log_settings", "log_picture", which "settings", "pictures" needs' + VALID),
        (ONLY_FIGURES, {"files": ["a"]}, 'which lacks "log_file", which "files" needs' + VALID),
        (SimpleNamespace(log_settings=nothing), {"every": 1}, 'lacks "log_figures", which "every" needs'),
        (ONLY_FIGURES, {"files": "log"}, "files is 'log'; valid is"),
    ],
)  # fmt: skip
def test_what_cannot_log_is_refused(logger: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        LogTo(logger, **arguments)
    assert str(caught.value).startswith("LogTo: ") and message in str(caught.value)


def test_a_resumed_run_goes_on_with_the_right_epochs(tmp_path: Path) -> None:
    """Also with an object that has only some of the methods."""
    data = [(np.ones((4, 3), "float32"), np.zeros(4, "float32"))] * 3
    logged = []
    for epochs in (2, 4):
        steps: list[tuple[int, int]] = []
        logger = SimpleNamespace(log_figures=lambda *arguments, steps=steps: steps.append(arguments[1:]))
        handlers = [LogTo(logger), CheckpointHandler(tmp_path, every=1, seed=1), ProgressBar(enabled=False)]
        estimator = MultiEstimator(gluon.nn.Dense(2), gluon.loss.SoftmaxCrossEntropyLoss())
        estimator.fit(data, epochs=epochs, event_handlers=handlers, resume=tmp_path)
        logged.append(steps)
    assert logged == [[(3, 1), (6, 2)], [(9, 3), (12, 4)]]
