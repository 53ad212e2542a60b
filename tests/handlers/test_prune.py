"""Prune: what an Optuna trial is told, and how a fit ends that is pruned."""

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from mxnet import gluon

from multifit import LogTo, MultiEstimator, ProgressBar, Prune
from multifit.distributed import ALONE, World
from multifit.handlers import MetricHandler, ValidationHandler
from tests.common.ranks import run_ranks
from tests.handlers.conftest import At


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def study(direction: str = "minimize", upper: float = math.inf) -> optuna.Study:
    """Return a study that prunes a trial that reports more than `upper`."""
    pruner = optuna.pruners.ThresholdPruner(upper=upper)
    return optuna.create_study(direction=direction, pruner=pruner)


def test_the_figure_is_reported_each_epoch_in_which_it_was_measured(run: Any) -> None:
    trial = study().ask()
    validation = ValidationHandler("data", epoch_period=2)
    run.fit(Prune(trial, "val_loss"), MetricHandler(), validation, epochs=4)
    assert trial.storage.get_trial(trial._trial_id).intermediate_values == {1: 2 / 6, 3: 2 / 12}


def test_a_pruned_fit_ends_after_its_epoch_and_raises_at_the_end(run: Any) -> None:
    run.train = lambda state: {"train_loss": float(state.step)}
    seen: list[Any] = []
    later = At("epoch_end", lambda estimator: seen.append(estimator.state.epoch), priority=math.inf)
    with pytest.raises(optuna.TrialPruned, match=r"^pruned by train_loss, after 2 epochs"):
        run.fit(Prune(study(upper=5.0).ask(), "train_loss"), MetricHandler(), later, epochs=9)
    assert seen == [0, 1] and run.state.stop_reason == "pruned by Optuna"
    assert run.history["train_loss"] == [3.0, 6.0]


def test_an_epoch_that_is_cut_short_is_not_reported(run: Any) -> None:
    stop = At("batch_end", lambda estimator: estimator.state.stop("enough"), step=2)
    run.fit(Prune(study(upper=0.0).ask(), "train_loss"), MetricHandler(), stop)
    assert run.state.stop_reason == "enough" and run.history["train_loss"] == [0.5]


NO_TRIAL = "Prune: .* is no trial; give the objective's argument"


@pytest.mark.parametrize(
    ("trial", "figure", "message"),
    [
        (study("maximize").ask(), "train_loss",
         re.escape('Prune: the study maximizes, but of "train_loss" lower values are better; use '
                   'optuna.create_study(direction="minimize")')),
        (study().ask(), "val_acc",
         'Prune: the study minimizes, but of "val_acc" higher values are better; use'),
        (None, "train_loss", NO_TRIAL),
        (3, "train_loss", NO_TRIAL),
        (study(), "train_loss", NO_TRIAL),
        (optuna.create_study(directions=["minimize", "maximize"]).ask(), "val_loss",
         "Prune: Optuna prunes for one objective, and the study has 2"),
    ],
)  # fmt: skip
def test_what_is_refused(run: Any, trial: Any, figure: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run.fit(Prune(trial, figure))
    assert not run.state.step


def test_a_fixed_trial_is_minimised() -> None:
    assert Prune(optuna.trial.FixedTrial({}), "val_loss").mode == "min"


DATA = [(np.ones((4, 3), "float32"), np.zeros(4, "float32"))] * 3


def fit(*handlers: Any, world: World = ALONE) -> MultiEstimator:
    estimator = MultiEstimator(gluon.nn.Dense(2), gluon.loss.SoftmaxCrossEntropyLoss(), world=world)
    estimator.fit(DATA, DATA, epochs=3, event_handlers=[*handlers, ProgressBar(enabled=False)])
    return estimator


def test_a_study_counts_pruned_trials() -> None:
    ended: list[Any] = []
    other = At("train_end", lambda estimator: ended.append(estimator.state.stop_reason), priority=math.inf)
    pruner = optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=1)
    pruning, whole = optuna.create_study(pruner=pruner), study()
    for each in (pruning, whole):
        each.optimize(lambda trial: fit(Prune(trial, "val_loss"), other).history["val_loss"][-1], n_trials=1)
    (pruned,), (complete,) = pruning.trials, whole.trials
    assert ended == ["pruned by Optuna", "3 epochs"]
    assert pruned.state == optuna.trial.TrialState.PRUNED and len(pruned.intermediate_values) == 2
    assert complete.state == optuna.trial.TrialState.COMPLETE
    assert list(complete.intermediate_values) == [0, 1, 2]
    assert complete.value == complete.intermediate_values[2]


def test_the_first_of_two_ranks_decides_for_both_and_logs() -> None:
    logged: list[tuple[int, int]] = []

    def rank(world: World) -> Any:
        logger = SimpleNamespace(log_figures=lambda figures, step, epoch: logged.append((world.rank, epoch)))
        seen: list[Any] = []
        look = At("train_end", lambda estimator: seen.append(estimator), priority=math.inf)
        trial = study(upper=0.0).ask() if world.first else None
        with pytest.raises(optuna.TrialPruned):
            fit(LogTo(logger), Prune(trial, "train_loss"), look, world=world)
        return seen[0].history.epochs, seen[0].state.stop_reason.split(" (")[0]

    assert run_ranks(2, rank) == [(1, "pruned by Optuna")] * 2
    assert logged == [(0, 1)]


def test_a_figure_that_does_not_exist_is_refused_before_the_first_update() -> None:
    with pytest.raises(ValueError, match=r'Prune: there is no figure "val_los" \(did you mean "val_loss"'):
        fit(Prune(study().ask(), "val_los"))
