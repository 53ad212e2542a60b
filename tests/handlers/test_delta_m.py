"""DeltaM: the mean relative change against single tasks, which other handlers can monitor."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from multifit import CheckpointHandler, DeltaM, EarlyStoppingHandler, Handler, LabelSpec  # isort: skip
from multifit import MetricSpec, MultiEstimator, PlateauHandler, Prune, TaskSpec, TrainerSpec  # isort: skip
from multifit import ValidationHandler  # isort: skip
from multifit.checkpoints import list_checkpoints
from multifit.handlers.delta_m import delta_m
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec

BATCHES = in_batches(two_head_arrays(40).values())
BASELINE = {"val_accuracy": 0.5, "val_size": 2.0}
METRICS = {"odd": MetricSpec(lambda y, x: 0.5, "size", "size"), **two_head_spec().metrics}


def new(spec: TaskSpec | None = None, rate: float = 0.02) -> MultiEstimator:
    seed_everything(3)
    trainer = TrainerSpec(".*", "adam", {"learning_rate": rate})
    return MultiEstimator(two_heads("hybridized"), spec or two_head_spec(), trainer, initializer="xavier")


def test_the_change_is_the_mean_over_tasks_and_more_is_better() -> None:
    random = np.random.RandomState(0)
    values, single = random.rand(4, 3) + 1, random.rand(3) + 1
    expected = (100 * np.array([1, -1, 1]) * (values / single - 1)).mean(axis=1)
    assert delta_m(values, single, [True, False, True]) == pytest.approx(list(expected), rel=1e-12)


def test_it_records_the_change_of_each_epoch_that_is_validated() -> None:
    validation = ValidationHandler(BATCHES, epoch_period=2)
    history = new().fit(BATCHES, epochs=2, event_handlers=[validation, DeltaM(BASELINE)])
    pairs = zip(history["val_accuracy"], history["val_size"])
    first, second = [100 * ((accuracy / 0.5 - 1) - (size / 2.0 - 1)) / 2 for accuracy, size in pairs]
    assert math.isnan(first) and history["delta_m"] == pytest.approx([first, second], rel=1e-12, nan_ok=True)


def test_handlers_monitor_it(tmp_path: Path) -> None:
    """The rate is so high that the change soon gets worse."""
    saving = CheckpointHandler(tmp_path, monitor="delta_m")
    plateau = PlateauHandler("delta_m", patience=1)
    trial = optuna.create_study(direction="maximize").ask()
    watching = [saving, plateau, EarlyStoppingHandler("delta_m", patience=2), Prune(trial, "delta_m")]
    handlers = [*watching, DeltaM({"val_size": 2.0})]
    history = new(rate=3.0).fit(BATCHES, BATCHES, epochs=9, event_handlers=handlers)
    best = int(np.argmax(history["delta_m"]))
    assert history.epochs == best + 3 and history["lr"][-1] == pytest.approx(0.3)
    infos = [info for info in list_checkpoints(saving.folder) if info.values]
    assert infos[0].directions == {"delta_m": "max"}
    assert max(info.values["delta_m"] for info in infos) == history["delta_m"][best]
    assert list(trial.study.trials[0].intermediate_values.values()) == history["delta_m"]
    wrong = Prune(optuna.create_study().ask(), "delta_m")
    with pytest.raises(ValueError, match='of "delta_m" higher values are better'):
        new().fit(BATCHES, BATCHES, epochs=2, event_handlers=[wrong, DeltaM(BASELINE)])


def test_the_baseline_is_read_from_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run, the first metric counts; without one that says what is better, the loss, not the coverage."""
    monkeypatch.setattr("multifit.estimator.run_folder.write_pictures", lambda *_: ())
    labels = ["digit", LabelSpec("size", missing="nan")]
    spec, values = two_head_spec(metrics=METRICS, labels=labels), {}
    for task, figure in {"digit": "val_accuracy", "size": "val_size"}.items():
        options = {"epochs": 1, "output": tmp_path / task, "event_handlers": []}
        history = new(spec.only(task)).fit(BATCHES, BATCHES, **options)
        values[figure] = history[figure][-1]
        assert json.loads((tmp_path / task / "settings.json").read_text())["tasks"] == [figure]
    handler = DeltaM(tmp_path / "digit", str(tmp_path / "size"))
    assert handler.baseline == values
    assert DeltaM(tmp_path / "digit", {"val_size": 3.0}).baseline == {**values, "val_size": 3.0}


class Records(Handler):
    """A handler of the user's, which may record any figure."""

    def epoch_end(self, estimator: Any, **_: Any) -> None:
        """Nothing yet."""


STOPPING = EarlyStoppingHandler("delta_m")
REFUSED = {
    "monitored without it": ([STOPPING], 'no figure "delta_m"', "; the handler DeltaM records it"),
    "beside another that records": (
        [STOPPING, Records()], 'no figure "delta_m"', "; the handler DeltaM records it"
    ),
    "an unknown figure": (
        [DeltaM({"val_acuracy": 0.5})], 'DeltaM: there is no figure "val_acuracy"',
        '(did you mean "val_accuracy"?)',
    ),
    "an unknown direction": (
        [DeltaM({"val_odd": 0.5})], "DeltaM: it is not known whether a lower or a",
        'higher "val_odd" is better',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("handlers", "start", "end"), REFUSED.values(), ids=REFUSED)
def test_what_a_fit_refuses(handlers: list[Any], start: str, end: str) -> None:
    estimator = new(two_head_spec(metrics=METRICS))
    with pytest.raises(ValueError) as error:
        estimator.fit(BATCHES, BATCHES, epochs=1, event_handlers=handlers)
    assert start in str(error.value) and end in str(error.value) and estimator.state.step == 0


@pytest.mark.parametrize(
    "baseline", [(), ({},), ({"val_size": 0.0},), ({"val_size": math.inf},), ({"val_size": "1"},), (3,)]
)
def test_baselines_that_are_none(baseline: Any) -> None:
    message = "DeltaM: baseline is .* valid is a path or a dict of positive numbers"
    with pytest.raises(ValueError, match=message):
        DeltaM(*baseline)
