"""Several sets for validation, each with figures of its own."""

import math
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    DataError,
    EarlyStoppingHandler,
    Every,
    History,
    MetricSpec,
    MultiEstimator,
    TaskSpec,
    TrainerSpec,
    ValidationHandler,
)
from tests.common.compare import snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import SILENT
from tests.common.joint_training import ByShape, assert_as_alone
from tests.common.nets import TWO_HEADS, two_heads
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import CE, L2, two_head_spec

TRAIN = in_batches(two_head_arrays(40).values())
CLEAN = TRAIN[:2]
NOISY = [(image + 1, (digit + 1) % 3, size) for image, digit, size in TRAIN[2:]]
SETS = {"clean": CLEAN, "noisy": NOISY}
FIGURES = ["loss", "digit", "size", "accuracy"]


def estimator_of(**options: Any) -> MultiEstimator:
    mx.random.seed(0)
    return MultiEstimator(two_heads(), two_head_spec(), TrainerSpec(".*", "sgd"), **options)


def figures_of(estimator: MultiEstimator, sets: Any = SETS, prefix: str = "") -> dict[str, float]:
    """Return the figures of each set, evaluated alone."""
    return {
        f"{prefix}{own}_{name}": value
        for own, data in sets.items()
        for name, value in estimator.evaluate(data, event_handlers=[]).items()
    }


def last(history: History) -> dict[str, float]:
    return {name: values[-1] for name, values in history.items() if name.startswith("val_")}


@pytest.mark.parametrize("by_handler", [False, True])
def test_a_fit_records_the_figures_of_each_set(by_handler: bool) -> None:
    estimator = estimator_of()
    validation: dict[str, Any] = {"val_data": SETS}
    if by_handler:
        validation = {"event_handlers": ValidationHandler(SETS)}
    history = estimator.fit(TRAIN, epochs=2, **validation)
    assert list(last(history)) == [f"val_{own}_{name}" for own in SETS for name in FIGURES]
    assert last(history) == pytest.approx(figures_of(estimator, prefix="val_"), rel=1e-6)
    assert history["val_clean_loss"][1] != history["val_noisy_loss"][1]


def test_an_evaluation_measures_each_set_by_itself() -> None:
    calls: list[Any] = []

    class Watch:
        def evaluate_begin(self, estimator: Any, batches: int) -> None:
            calls.append(batches)

        def evaluate_batch_end(self, estimator: Any, batch: Any) -> None:
            calls.append(batch.name)

        def evaluate_end(self, estimator: Any, figures: Any) -> None:
            calls.append(figures)

    estimator = estimator_of()
    figures = estimator.evaluate(SETS, event_handlers=Watch())
    assert figures == pytest.approx(figures_of(estimator), rel=1e-6)
    assert calls == [5, "clean", "clean", "noisy", "noisy", "noisy", figures]
    few = {name: batches[:1] for name, batches in SETS.items()}
    assert estimator.evaluate(SETS, batches=1) == pytest.approx(figures_of(estimator, few), rel=1e-6)


def test_validation_batches_are_those_of_each_set() -> None:
    estimator = estimator_of()
    history = estimator.fit(TRAIN, SETS, epochs=1, val_batches=1)
    few = {name: batches[:1] for name, batches in SETS.items()}
    assert last(history) == pytest.approx(figures_of(estimator, few, "val_"), rel=1e-6)


@pytest.mark.parametrize("names", [["digit", "size"], ["digit", "noisy"]])
def test_a_dict_in_which_a_key_names_a_task_has_loaders_that_are_measured_together(names: Any) -> None:
    estimator = estimator_of()
    figures = estimator.evaluate(dict(zip(names, SETS.values())), event_handlers=[])
    assert figures == pytest.approx(estimator.evaluate(CLEAN + NOISY, event_handlers=[]), rel=1e-6)


def test_a_set_may_lack_the_labels_of_a_task() -> None:
    sets = {"all": CLEAN, "digits": [{"image": image, "digit": digit} for image, digit, _ in NOISY]}
    figures = estimator_of().evaluate(sets, event_handlers=[])
    whole = figures_of(estimator_of())
    assert figures["all_size"] == pytest.approx(whole["clean_size"])
    assert figures["digits_accuracy"] == pytest.approx(whole["noisy_accuracy"])
    assert math.isnan(figures["digits_size"])


def test_the_figures_of_a_set_can_be_monitored(tmp_path: Path) -> None:
    handlers = [
        EarlyStoppingHandler("val_noisy_loss", patience=1, min_delta=100.0),
        CheckpointHandler(tmp_path, monitor="val_clean_accuracy", keep_best=1),
    ]
    estimator = estimator_of()
    history = estimator.fit(TRAIN, SETS, epochs=5, event_handlers=handlers)
    assert history.epochs == 2 and "val_noisy_loss has not improved" in str(estimator.state.stop_reason)
    found = [f"val_{own}_{name}" for own in ("clean", "other") for name in ("loss", "accuracy")]
    assert [estimator.direction(name) for name in found] == ["min", "max", None, None]
    assert estimator.direction("val_loss") == "min" and estimator.direction("train_clean_loss") is None
    assert sorted(estimator.validation_sets) == ["clean", "noisy"]


def test_a_figure_of_all_sets_together_is_refused_before_training() -> None:
    estimator = estimator_of()
    with pytest.raises(ValueError, match='there is no figure "val_loss".*; figures are .*"val_noisy_loss"'):
        estimator.fit(TRAIN, SETS, epochs=1, event_handlers=EarlyStoppingHandler("val_loss"))
    assert not estimator.state.step


def test_the_log_shows_the_same_figures_for_each_set(log: Any) -> None:
    estimator = estimator_of()
    estimator.fit(TRAIN, {**SETS, "noisy_too": NOISY}, epochs=1)
    shown = next(line for line in log() if line.startswith("epoch 1/1")).split("train_size")[1]
    names = [word for word in shown.split() if word.startswith("val_")]
    key = ["loss", "accuracy", "size"]
    assert names == [f"val_{own}_{name}" for own in ("clean", "noisy", "noisy_too") for name in key]


def test_two_sets_with_a_figure_of_the_same_name_are_refused() -> None:
    spec = two_head_spec(metrics={"own_loss": MetricSpec(mx.metric.Accuracy(), "digit", "digit")})
    estimator = MultiEstimator(two_heads(), spec)
    with pytest.raises(DataError, match='val_data: two sets have a figure "val_a_own_loss"; rename one'):
        estimator.fit(TRAIN, {"a": CLEAN, "a_own": NOISY}, epochs=1)
    assert not estimator.state.step


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"clean": CLEAN, "noisy": []}, 'val_data["noisy"] is empty'),
        (
            {"clean": CLEAN, "noisy": iter(NOISY)},
            'val_data["noisy"] is a list_iterator, which can be read only',
        ),
        (
            {"clean": CLEAN, "noisy": [batch[:2] for batch in NOISY]},
            'val_data["noisy"]: there is no task "noisy"',
        ),
        ({"": CLEAN}, "give strings, the names of tasks or sets"),
        ({"clean": {"digit": CLEAN}}, 'val_data["clean"] is a dict, not a loader; only fit, check and eval'),
    ],
)
def test_a_set_that_cannot_be_measured_is_refused_before_training(sets: Any, message: str) -> None:
    estimator = estimator_of()
    with pytest.raises(DataError) as caught:
        estimator.fit(TRAIN, sets, epochs=2)
    assert message in str(caught.value) and not estimator.state.step


def test_sets_of_a_combined_spec_hold_whole_batches() -> None:
    digit = TaskSpec(inputs=["image"], outputs=["digit"], labels=["digit"], losses={"digit": CE})
    size = TaskSpec(inputs=["image"], outputs=["size"], labels=["size"], losses={"size": L2})
    spec = TaskSpec.combine(shared=["image"], a=digit, b=size)
    estimator = MultiEstimator(two_heads(), spec, TrainerSpec(".*", "sgd"))
    history = estimator.fit(TRAIN, SETS, epochs=1)
    assert last(history) == pytest.approx(figures_of(estimator, prefix="val_"), rel=1e-6)


def test_a_run_resumes_bit_for_bit_between_validations(tmp_path: Path) -> None:
    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        estimator = estimator_of()
        own = [
            ValidationHandler(SETS, epoch_period=None, batch_period=2, batches=1),
            CheckpointHandler(folder, Every(1, "batch"), seed=1),
            EarlyStoppingHandler("val_clean_accuracy", patience=3),
        ]
        estimator.fit(TRAIN, epochs=2, event_handlers=[*own, *SILENT, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 2, 3, 7)


def test_several_ranks_measure_the_sets_as_one_process_does() -> None:
    def train(world: Any) -> Any:
        net = two_heads()
        net.initialize(ByShape(world.rank))
        estimator = MultiEstimator(net, two_head_spec(), TrainerSpec(".*", "sgd"), world=world)
        figures = estimator.fit(TRAIN, SETS, epochs=2)
        return {**{name: np.array(figures[name]) for name in figures}, **snapshot(estimator.net)}

    assert assert_as_alone(train)["val_noisy_loss"].shape == (2,)


def test_a_loader_for_each_task_trains_with_sets_for_validation() -> None:
    places = {"digit": 1, "size": 2}
    tasks = {name: [(batch[0], batch[places[name]]) for batch in TRAIN] for name in TWO_HEADS}
    estimator = estimator_of()
    history = estimator.fit(tasks, SETS, epochs=1)
    assert last(history) == pytest.approx(figures_of(estimator, prefix="val_"), rel=1e-6)
