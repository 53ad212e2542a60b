"""Validation data: sets with figures of their own, the first batches only, and data that never end."""

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import multifit
from multifit import DataError, Every, History, MetricSpec, MultiEstimator, Sharded, TaskSpec, TrainerSpec
from multifit.handlers import CheckpointHandler, EarlyStoppingHandler, ValidationHandler
from multifit.sampling import RoundRobin
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import Reusing, in_batches, two_head_arrays
from tests.common.hand_loop import SILENT
from tests.common.handlers import handler
from tests.common.joint_training import ByShape, assert_as_alone
from tests.common.nets import normed_heads, two_heads
from tests.common.ranks import run_ranks
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import CE, L2, two_head_spec
from tests.sampling.runs import parts

BATCHES = in_batches(two_head_arrays(40).values())  # five of 8 samples
CLEAN = BATCHES[:2]
NOISY = [(image + 1, (digit + 1) % 3, size) for image, digit, size in BATCHES[2:]]
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


def watching(calls: list[Any]) -> Any:
    """Return a handler that records an evaluation."""
    return handler(
        evaluate_begin=lambda estimator, batches: calls.append(batches),
        evaluate_batch_end=lambda estimator, batch: calls.append(getattr(batch, "name", None)),
        evaluate_end=lambda estimator, figures: calls.append(figures),
    )


@pytest.mark.parametrize("by_handler", [False, True])
def test_a_fit_records_figures_of_each_set_that_can_be_monitored(by_handler, tmp_path, log):
    handlers = [
        EarlyStoppingHandler("val_noisy_loss", patience=1, min_delta=100.0),
        CheckpointHandler(tmp_path, monitor="val_clean_accuracy", keep_best=1),
        *[ValidationHandler(SETS)] * by_handler,
    ]
    estimator = estimator_of()
    history = estimator.fit(BATCHES, None if by_handler else SETS, epochs=5, event_handlers=handlers)
    assert list(last(history)) == [f"val_{own}_{name}" for own in SETS for name in FIGURES]
    assert last(history) == pytest.approx(figures_of(estimator, prefix="val_"), rel=1e-6)
    assert history["val_clean_loss"][1] != history["val_noisy_loss"][1]
    assert history.epochs == 2 and "val_noisy_loss has not improved" in str(estimator.state.stop_reason)
    found = [f"val_{own}_{name}" for own in ("clean", "other") for name in ("loss", "accuracy")]
    assert [estimator.direction(name) for name in found] == ["min", "max", None, None]
    assert estimator.direction("val_loss") == "min" and estimator.direction("train_clean_loss") is None
    assert sorted(estimator.validation_sets) == ["clean", "noisy"]
    shown = next(line for line in log() if line.startswith("epoch 1/5")).split("train_size")[1]
    names = [word for word in shown.split() if word.startswith("val_")]
    assert names == [f"val_{own}_{name}" for own in SETS for name in ("loss", "accuracy", "size")]


def test_an_evaluation_measures_each_set_by_itself() -> None:
    calls: list[Any] = []
    estimator = estimator_of()
    figures = estimator.evaluate(SETS, event_handlers=watching(calls))
    assert figures == pytest.approx(figures_of(estimator), rel=1e-6)
    assert calls == [5, "clean", "clean", "noisy", "noisy", "noisy", figures]


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


def combined() -> TaskSpec:
    digit = TaskSpec(inputs=["image"], outputs=["digit"], labels=["digit"], losses={"digit": CE})
    size = TaskSpec(inputs=["image"], outputs=["size"], labels=["size"], losses={"size": L2})
    return TaskSpec.combine(shared=["image"], a=digit, b=size)


@pytest.mark.parametrize(("spec", "data"), [(combined(), BATCHES), (two_head_spec(), parts())])
def test_sets_hold_whole_batches_whatever_trains(spec: TaskSpec, data: Any) -> None:
    estimator = MultiEstimator(two_heads(), spec, TrainerSpec(".*", "sgd"))
    history = estimator.fit(data, SETS, epochs=1)
    assert last(history) == pytest.approx(figures_of(estimator, prefix="val_"), rel=1e-6)


def test_a_run_resumes_bit_for_bit_between_validations(tmp_path: Path) -> None:
    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        estimator = estimator_of()
        own = [
            ValidationHandler(SETS, epoch_period=None, batch_period=2, batches=1),
            CheckpointHandler(folder, Every(1, "batch"), seed=1),
            EarlyStoppingHandler("val_clean_accuracy", patience=3),
        ]
        estimator.fit(BATCHES, epochs=2, event_handlers=[*own, *SILENT, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 3)


def test_several_ranks_measure_the_sets_as_one_process_does() -> None:
    def train(world: Any) -> Any:
        net = two_heads()
        net.initialize(ByShape(world.rank))
        estimator = MultiEstimator(net, two_head_spec(), TrainerSpec(".*", "sgd"), world=world)
        figures = estimator.fit(BATCHES, SETS, epochs=2)
        return {**{name: np.array(figures[name]) for name in figures}, **snapshot(estimator.net)}

    assert assert_as_alone(train)["val_noisy_loss"].shape == (2,)


TWICE = two_head_spec(metrics={"own_loss": MetricSpec(mx.metric.Accuracy(), "digit", "digit")})
# the sets, options of a fit, the message, and changes of the estimator
WRONG: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "without a label": ({"clean": CLEAN, "noisy": [batch[:2] for batch in NOISY]},
        'val_data["noisy"]: there is no task "noisy"', {}),
    "without a name": ({"": CLEAN}, "give strings, the names of tasks or sets", {}),
    "a figure of two": (
        {"a": CLEAN, "a_own": NOISY}, 'val_data: two sets have a figure "val_a_own_loss"; rename one',
        {"spec": TWICE}),
    "a figure of all": (
        SETS, 'there is no figure "val_loss"', {"handlers": EarlyStoppingHandler("val_loss")}),
}  # fmt: skip


@pytest.mark.parametrize(("sets", "message", "changes"), WRONG.values(), ids=WRONG)
def test_a_set_that_cannot_be_measured_is_refused_before_training(sets, message, changes):
    estimator = MultiEstimator(two_heads(), changes.get("spec", two_head_spec()))
    with pytest.raises(ValueError) as caught:
        estimator.fit(BATCHES, sets, epochs=2, event_handlers=changes.get("handlers"))
    assert message in str(caught.value) and not estimator.state.step


# ---- a part of the data ------------------------------------------------------------------------------------


class Endless:
    """A loader that can be read again and again, and says that it never ends."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(BATCHES)

    def __len__(self) -> int:
        return sys.maxsize


class Stream(Endless):
    """The same, which does not say so."""

    __len__ = None  # type: ignore[assignment]


LOADERS: dict[str, Callable[[], Any]] = {
    "list": lambda: BATCHES,
    "arrays": lambda: multifit.batches(*two_head_arrays(40).values(), batch_size=8),
    "DataLoader": lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(*two_head_arrays(40).values()), 8),
    "endless": Endless,
    "endless, but who knows": Stream,
    "once": lambda: iter(BATCHES),
    "too many": lambda: BATCHES[:2],
}


@pytest.mark.parametrize("kind", LOADERS)
def test_an_evaluation_may_be_of_the_first_batches(kind: str) -> None:
    calls: list[Any] = []
    estimator, count = estimator_of(), 2 if kind == "too many" else 3
    figures = estimator.evaluate(LOADERS[kind](), event_handlers=watching(calls), batches=3)
    assert calls == [count, *[None] * count, figures]
    assert figures == pytest.approx(estimator.evaluate(BATCHES[:count], event_handlers=[]), rel=1e-6)


@pytest.mark.parametrize("data", [parts(), SETS], ids=["loaders", "sets"])
def test_of_several_loaders_and_sets_the_first_batches_of_each_are_evaluated(data: Any) -> None:
    few = {name: batches[:2] for name, batches in data.items()}
    calls: list[Any] = []
    estimator = estimator_of()
    figures = estimator.evaluate(data, event_handlers=watching(calls), batches=2)
    assert figures == pytest.approx(estimator.evaluate(few, event_handlers=[])) and calls[0] == 4
    assert figures != estimator.evaluate(data, event_handlers=[])
    history = estimator.fit(BATCHES, data, epochs=1, val_batches=2)
    assert {name: history[f"val_{name}"][-1] for name in figures} == pytest.approx(
        estimator.evaluate(few, event_handlers=[])
    )


def test_a_handler_may_validate_on_the_first_batches() -> None:
    expected = estimator_of().fit(BATCHES, BATCHES[:2], epochs=2)
    validation = ValidationHandler(Endless(), batches=2)
    assert dict(estimator_of().fit(BATCHES, epochs=2, event_handlers=validation)) == dict(expected)


@pytest.mark.parametrize("wrap", [list, Sharded])
def test_ranks_evaluate_the_first_batches_together(wrap: Any) -> None:
    def evaluate(world: Any) -> Any:
        estimator = estimator_of(world=world)
        estimator.evaluate(BATCHES, event_handlers=[])  # gives all the parameters of the first
        few = estimator.evaluate(wrap(BATCHES), event_handlers=[], batches=3)
        return few, estimator.evaluate(wrap(BATCHES[:3]), event_handlers=[])

    for few, expected in run_ranks(2, evaluate):
        assert few == pytest.approx(expected)


# ---- training on a few batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOADERS)
def test_overfit_trains_and_validates_on_the_first_batches(kind: str, log: Any) -> None:
    few = BATCHES[:3] if kind != "too many" else BATCHES[:2]
    expected = estimator_of()
    history = expected.fit(few, few, epochs=3)
    other = [tuple(array * 100 for array in batch) for batch in BATCHES]
    found = estimator_of()
    assert dict(found.fit(LOADERS[kind](), other, epochs=3, overfit=3)) == dict(history)
    assert_unchanged(found.net, snapshot(expected.net))
    assert "overfit=3: trains on the first batches alone, the same ones in each epoch" in log()


def test_overfit_draws_the_batches_once() -> None:
    """Without validation data, it validates on nothing."""
    seen: list[Any] = []
    watch = handler(batch_end=lambda estimator, label: seen.append(label["size"][0].asnumpy().tolist()))
    data = multifit.batches(*two_head_arrays(40).values(), batch_size=8, shuffle=True)
    history = estimator_of().fit(data, epochs=3, overfit=2, event_handlers=[watch, *SILENT])
    assert seen[:2] * 3 == seen and seen[0] != BATCHES[0][2].tolist()
    assert "val_loss" not in history


def test_overfit_copies_batches_that_an_iterator_would_overwrite() -> None:
    expected = dict(estimator_of().fit(BATCHES[:3], epochs=2))
    assert dict(estimator_of().fit(Reusing(BATCHES), epochs=2, overfit=3)) == expected


def test_overfit_takes_the_first_batches_of_each_loader() -> None:
    data, whole = {name: batches[:2] for name, batches in parts().items()}, parts()
    history = estimator_of().fit(data, data, epochs=2, sampling=RoundRobin())
    found = estimator_of().fit(whole, whole, epochs=2, overfit=2, sampling=RoundRobin())
    assert dict(found) == dict(history)


def test_overfit_with_a_spec_of_its_own_for_evaluation_limits_the_validation_data() -> None:
    metrics = {"mae": MetricSpec(mx.metric.MAE(), "size", "truth")}
    declared = {"inputs": ["image"], "outputs": ["digit", "size"], "labels": ["truth"], "unused": ["digit"]}
    evaluate = TaskSpec(**declared, metrics=metrics)
    data = [(image, size) for image, _, size in BATCHES]

    def train(*data: Any, **options: Any) -> Any:
        mx.random.seed(0)
        estimator = MultiEstimator(two_heads(), two_head_spec(evaluate=evaluate))
        return dict(estimator.fit(*data, epochs=2, **options))

    assert train(BATCHES, data, overfit=2) == train(BATCHES[:2], data[:2])


def test_a_net_can_learn_a_few_batches_by_heart() -> None:
    trainer = TrainerSpec(".*", "adam", {"learning_rate": 0.05})
    estimator = MultiEstimator(normed_heads(), two_head_spec(), trainer)
    history = estimator.fit(BATCHES, BATCHES, epochs=60, overfit=1, event_handlers=SILENT, seed=1)
    assert history["train_accuracy"][-1] == history["val_accuracy"][-1] == 1


# ---- what is refused ---------------------------------------------------------------------------------------


CYCLE = "is a cycle, which never ends; give "
REFUSED: dict[str, tuple[Callable[[MultiEstimator], Any], type, str]] = {
    "validation data": (lambda e: e.fit(BATCHES, Endless(), epochs=2), DataError,
        "val_data is a Endless, which never ends; give val_batches=100"),
    "validation data, once": (lambda e: e.fit(BATCHES, itertools.cycle(BATCHES), epochs=1), DataError,
        f"val_data {CYCLE}val_batches=100"),
    "data of a handler": (
        lambda e: e.fit(BATCHES, epochs=1, event_handlers=ValidationHandler(Endless())), DataError,
        "val_data is a Endless, which never ends; give ValidationHandler(…, batches=100)"),
    "a loader of several": (
        lambda e: e.fit(BATCHES, {"digit": BATCHES, "size": Endless()}, epochs=1), DataError,
        'val_data["size"] is a Endless, which never ends; give val_batches=100'),
    "an epoch": (lambda e: e.fit(Sharded(Endless()), epochs=2), DataError,
        "train_data is a Endless, which never ends; give batches=1000"),
    "an evaluation": (lambda e: e.evaluate(itertools.repeat(BATCHES[0])), DataError,
        "data is a repeat, which never ends; give batches=100"),
    "numbers": (lambda e: e.evaluate(itertools.count()), DataError, "data is a count, which never ends"),
    "a prediction": (
        lambda e: e.predict(itertools.cycle(BATCHES)), DataError, f"data {CYCLE}itertools.islice(data, 100)"),
    "nothing to limit": (lambda e: e.fit(BATCHES, epochs=1, val_batches=2), ValueError,
        "val_batches limits val_data=, which is not given; ValidationHandler has batches="),
    "a resumed run": (lambda e: e.fit(BATCHES, epochs=1, overfit=2, resume="runs"), ValueError,
        "overfit= only tries out whether a net can learn a few batches by heart; leave it out to resume"),
    "no batch": (lambda e: e.fit(iter([]), epochs=1, overfit=2), DataError, "train_data is empty"),
    "a number": (lambda e: e.fit(BATCHES, epochs=1, overfit=0), ValueError, "overfit is 0; valid is a whole"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_never_ends_or_has_no_use_is_refused(case: str) -> None:
    call, error, message = REFUSED[case]
    estimator = estimator_of()
    with pytest.raises(error) as caught:
        call(estimator)
    assert message in str(caught.value) and not estimator.state.step


def test_several_ranks_do_not_overfit() -> None:
    errors = run_ranks(2, lambda world: estimator_of(world=world).fit(BATCHES, epochs=1, overfit=2))
    assert all("in several processes" in str(error) for error in errors)


def test_endless_data_are_fine_where_something_else_ends_the_run() -> None:
    estimator = estimator_of()
    estimator.fit(Endless(), Endless(), batches=3, val_batches=1)
    estimator.fit(itertools.cycle(BATCHES), batches=2)
    estimator.check(Endless(), Endless())
    assert estimator.state.step == 5
    ended = itertools.repeat(BATCHES[0], 2)
    assert estimator.evaluate(ended, event_handlers=[]) == pytest.approx(
        estimator.evaluate(BATCHES[:1], event_handlers=[])
    )
