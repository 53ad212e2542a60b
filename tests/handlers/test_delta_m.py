"""DeltaM: the mean relative change against single tasks, which other handlers can monitor."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from multifit import (
    CheckpointHandler,
    DeltaM,
    EarlyStoppingHandler,
    Every,
    Handler,
    LabelSpec,
    MetricSpec,
    MultiEstimator,
    PlateauHandler,
    Prune,
    TaskSpec,
    TrainerSpec,
    ValidationHandler,
)
from multifit.checkpoints import list_checkpoints
from multifit.handlers.delta_m import delta_m
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import two_head_spec

BATCHES = in_batches(two_head_arrays(40).values())
BASELINE = {"val_accuracy": 0.5, "val_size": 2.0}


def new(spec: TaskSpec | None = None, rate: float = 0.02) -> MultiEstimator:
    seed_everything(3)
    trainer = TrainerSpec(".*", "adam", {"learning_rate": rate})
    return MultiEstimator(two_heads("hybridized"), spec or two_head_spec(), trainer, initializer="xavier")


def test_the_change_is_the_mean_over_tasks_and_more_is_better() -> None:
    random = np.random.RandomState(0)
    values, single = random.rand(4, 3) + 1, random.rand(3) + 1
    expected = [
        sum(sign * (row[task] / single[task] - 1) for task, sign in enumerate((100, -100, 100))) / 3
        for row in values
    ]
    assert delta_m(values, single, [True, False, True]) == pytest.approx(expected, rel=1e-12)


def test_it_records_the_change_of_each_epoch() -> None:
    history = new().fit(BATCHES, BATCHES, epochs=3, event_handlers=DeltaM(BASELINE))
    pairs = zip(history["val_accuracy"], history["val_size"])
    expected = [100 * ((accuracy / 0.5 - 1) - (size / 2.0 - 1)) / 2 for accuracy, size in pairs]
    assert history["delta_m"] == pytest.approx(expected, rel=1e-12)


def test_an_epoch_that_is_not_validated_has_none() -> None:
    validation = ValidationHandler(BATCHES, epoch_period=2)
    history = new().fit(BATCHES, epochs=2, event_handlers=[validation, DeltaM(BASELINE)])
    assert [math.isnan(value) for value in history["delta_m"]] == [True, False]


def test_handlers_monitor_it(tmp_path: Path) -> None:
    """The rate is so high that the change soon gets worse."""
    saving = CheckpointHandler(tmp_path, monitor="delta_m")
    plateau = PlateauHandler("delta_m", patience=1)
    handlers = [saving, plateau, EarlyStoppingHandler("delta_m", patience=2), DeltaM({"val_size": 2.0})]
    history = new(rate=3.0).fit(BATCHES, BATCHES, epochs=9, event_handlers=handlers)
    best = int(np.argmax(history["delta_m"]))
    assert history.epochs == best + 3 and history["lr"][-1] == pytest.approx(0.3)
    infos = [info for info in list_checkpoints(saving.folder) if info.values]
    assert infos[0].directions == {"delta_m": "max"}
    assert max(info.values["delta_m"] for info in infos) == history["delta_m"][best]


def test_prune_reports_it() -> None:
    study = optuna.create_study(direction="maximize")
    trial = study.ask()
    history = new().fit(
        BATCHES, BATCHES, epochs=2, event_handlers=[Prune(trial, "delta_m"), DeltaM(BASELINE)]
    )
    assert list(study.trials[0].intermediate_values.values()) == history["delta_m"]
    wrong = Prune(optuna.create_study().ask(), "delta_m")
    with pytest.raises(ValueError, match='of "delta_m" higher values are better'):
        new().fit(BATCHES, BATCHES, epochs=2, event_handlers=[wrong, DeltaM(BASELINE)])


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        estimator = new()
        own = [DeltaM(BASELINE), CheckpointHandler(folder, Every(1, "batch"), seed=7), *handlers]
        stopping = EarlyStoppingHandler("delta_m", patience=1, restore_best=True)
        estimator.fit(BATCHES, BATCHES, epochs=4, event_handlers=[*own, stopping], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 5, 12)


def test_the_baseline_is_read_from_runs(tmp_path: Path) -> None:
    """Of a run, the first metric counts; without one that says what is better, the loss, not the coverage."""
    metrics = {"odd": MetricSpec(lambda y, x: 0.5, "size", "size"), **two_head_spec().metrics}
    labels = ["digit", LabelSpec("size", missing="nan")]
    spec, values = two_head_spec(metrics=metrics, labels=labels), {}
    for task, figure in {"digit": "val_accuracy", "size": "val_size"}.items():
        history = new(spec.only(task)).fit(
            BATCHES, BATCHES, epochs=1, output=tmp_path / task, event_handlers=[]
        )
        values[figure] = history[figure][-1]
        assert json.loads((tmp_path / task / "settings.json").read_text())["tasks"] == [figure]
    handler = DeltaM(tmp_path / "digit", str(tmp_path / "size"))
    assert handler.baseline == values
    assert DeltaM(tmp_path / "digit", {"val_size": 3.0}).baseline == {**values, "val_size": 3.0}


class Records(Handler):
    """A handler of the user's, which may record any figure."""

    def epoch_end(self, estimator: Any, **_: Any) -> None:
        """Nothing yet."""


@pytest.mark.parametrize("more", [[], [Records()]])
def test_it_cannot_be_monitored_without_a_baseline(more: list[Any]) -> None:
    handlers = [EarlyStoppingHandler("delta_m"), *more]
    message = r'no figure "delta_m".*; the handler DeltaM records it'
    with pytest.raises(ValueError, match=message):
        new().fit(BATCHES, BATCHES, epochs=1, event_handlers=handlers)


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ({"val_acuracy": 0.5}, 'DeltaM: there is no figure "val_acuracy" (did you mean "val_accuracy"?)'),
        ({"val_odd": 0.5}, 'DeltaM: it is not known whether a lower or a higher "val_odd" is better'),
    ],
)
def test_figures_that_the_fit_has_not(baseline: dict[str, float], message: str) -> None:
    metrics = {"odd": MetricSpec(lambda y, x: 0.5, "size", "size"), **two_head_spec().metrics}
    estimator = new(two_head_spec(metrics=metrics))
    with pytest.raises(ValueError) as error:
        estimator.fit(BATCHES, BATCHES, epochs=1, event_handlers=DeltaM(baseline))
    assert message in str(error.value) and estimator.state.step == 0


@pytest.mark.parametrize(
    "baseline", [(), ({},), ({"val_size": 0.0},), ({"val_size": math.inf},), ({"val_size": "1"},), (3,)]
)
def test_baselines_that_are_none(baseline: Any) -> None:
    with pytest.raises(
        ValueError, match="DeltaM: baseline is .* valid is a path or a dict of positive numbers"
    ):
        DeltaM(*baseline)
