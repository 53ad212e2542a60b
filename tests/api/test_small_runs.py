"""Small runs: a validation of the first batches only, training on a few batches, and data that never end."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import multifit
from multifit import DataError, MetricSpec, MultiEstimator, Sharded, TaskSpec, TrainerSpec, ValidationHandler
from multifit.sampling import RoundRobin
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import SILENT
from tests.common.nets import normed_heads, two_heads
from tests.common.ranks import run_ranks
from tests.common.specs import two_head_spec
from tests.sampling.runs import parts

BATCHES = in_batches(two_head_arrays(40).values())  # five of 8 samples


def estimator_of(**options: Any) -> MultiEstimator:
    mx.random.seed(0)
    return MultiEstimator(two_heads(), two_head_spec(), TrainerSpec(".*", "sgd"), **options)


class Endless:
    """A loader that can be read again and again, and says that it never ends."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(BATCHES)

    def __len__(self) -> int:
        return sys.maxsize


class Stream(Endless):
    """The same, which does not say so."""

    __len__ = None  # type: ignore[assignment]


def data_iter(folder: Path) -> Any:
    """Return an iterator of MXNet, whose batches take the same memory."""
    image, digit, size = two_head_arrays(40).values()
    np.savetxt(folder / "x.csv", np.column_stack([image, digit, size]), delimiter=",")
    return mx.io.CSVIter(data_csv=str(folder / "x.csv"), data_shape=(8,), batch_size=8)


LOADERS: dict[str, Callable[[], Any]] = {
    "list": lambda: BATCHES,
    "arrays": lambda: multifit.batches(*two_head_arrays(40).values(), batch_size=8),
    "DataLoader": lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(*two_head_arrays(40).values()), 8),
    "endless": Endless,
    "endless, but who knows": Stream,
    "once": lambda: iter(BATCHES),
    "too many": lambda: BATCHES[:2],
}


# ---- a part of the validation data -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOADERS)
def test_an_evaluation_may_be_of_the_first_batches(kind: str) -> None:
    seen: list[Any] = []

    class Watch:
        def evaluate_begin(self, estimator: Any, batches: int) -> None:
            seen.append(batches)

        def evaluate_batch_end(self, estimator: Any) -> None:
            seen.append("batch")

    estimator, count = estimator_of(), 2 if kind == "too many" else 3
    figures = estimator.evaluate(LOADERS[kind](), event_handlers=Watch(), batches=3)
    assert seen == [count] + ["batch"] * count
    assert figures == pytest.approx(estimator.evaluate(BATCHES[:count], event_handlers=[]), rel=1e-6)


def test_a_fit_may_validate_on_the_first_batches() -> None:
    expected = estimator_of().fit(BATCHES, BATCHES[:2], epochs=2)
    assert dict(estimator_of().fit(BATCHES, BATCHES, epochs=2, val_batches=2)) == dict(expected)
    handler = ValidationHandler(Endless(), batches=2)
    assert dict(estimator_of().fit(BATCHES, epochs=2, event_handlers=handler)) == dict(expected)


def test_of_several_loaders_the_first_batches_of_each_are_evaluated() -> None:
    data = parts()
    few = {name: batches[:2] for name, batches in data.items()}
    counts: list[Any] = []

    class Watch:
        def evaluate_begin(self, estimator: Any, batches: int) -> None:
            counts.append(batches)

    estimator = estimator_of()
    figures = estimator.evaluate(data, event_handlers=Watch(), batches=2)
    assert figures == estimator.evaluate(few, event_handlers=[]) and counts == [4]
    assert figures != estimator.evaluate(data, event_handlers=[])
    history = estimator.fit(data, data, epochs=1, val_batches=2)
    assert {name: history[f"val_{name}"][-1] for name in figures} == pytest.approx(
        estimator.evaluate(few, event_handlers=[])
    )


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


def test_overfit_without_validation_data_validates_on_nothing() -> None:
    assert "val_loss" not in estimator_of().fit(BATCHES, epochs=1, overfit=1)


def test_overfit_draws_the_batches_once() -> None:
    seen: list[Any] = []

    class Watch:
        def batch_end(self, estimator: Any, label: Any) -> None:
            seen.append(label["size"][0].asnumpy().ravel().tolist())

    data = multifit.batches(*two_head_arrays(40).values(), batch_size=8, shuffle=True)
    estimator_of().fit(data, epochs=3, overfit=2, event_handlers=[Watch(), *SILENT])
    assert seen[:2] * 3 == seen and seen[0] != BATCHES[0][2].ravel().tolist()


def test_overfit_copies_batches_that_an_iterator_would_overwrite(tmp_path: Path) -> None:
    def split(batch: Any) -> Any:
        rows = batch.data[0]
        return {"image": rows[:, :6], "digit": rows[:, 6], "size": rows[:, 7:]}

    def train(data: Any, **options: Any) -> Any:
        mx.random.seed(0)
        estimator = MultiEstimator(two_heads(), two_head_spec(**options.pop("spec", {})))
        return dict(estimator.fit(data, epochs=2, **options))

    found = train(data_iter(tmp_path), overfit=3, spec={"batch_fn": split})
    for name, values in train(BATCHES[:3]).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4)


def test_overfit_takes_the_first_batches_of_each_loader() -> None:
    data, whole = {name: batches[:1] for name, batches in parts().items()}, parts()
    history = estimator_of().fit(data, data, epochs=2, sampling=RoundRobin())
    found = estimator_of().fit(whole, whole, epochs=2, overfit=1, sampling=RoundRobin())
    assert dict(found) == dict(history)


def test_overfit_with_a_spec_of_its_own_for_evaluation_limits_the_validation_data() -> None:
    metric = MetricSpec(mx.metric.MAE(), "size", "truth")
    evaluate = TaskSpec(
        inputs=["image"],
        outputs=["digit", "size"],
        labels=["truth"],
        metrics={"mae": metric},
        unused=["digit"],
    )
    data = [(image, size) for image, _, size in BATCHES]

    def train(*data: Any, **options: Any) -> Any:
        mx.random.seed(0)
        return dict(
            MultiEstimator(two_heads(), two_head_spec(evaluate=evaluate)).fit(*data, epochs=2, **options)
        )

    assert train(BATCHES, data, overfit=2) == train(BATCHES[:2], data[:2])


def test_a_net_can_learn_a_few_batches_by_heart() -> None:
    trainer = TrainerSpec(".*", "adam", {"learning_rate": 0.05})
    estimator = MultiEstimator(normed_heads(), two_head_spec(), trainer)
    history = estimator.fit(BATCHES, BATCHES, epochs=60, overfit=1, event_handlers=SILENT, seed=1)
    assert history["train_accuracy"][-1] == history["val_accuracy"][-1] == 1


# ---- what is refused ---------------------------------------------------------------------------------------

CYCLE = "is a cycle, which never ends; give "
REFUSED: dict[str, tuple[Callable[[MultiEstimator], Any], type, str]] = {
    "validation data": (
        lambda e: e.fit(BATCHES, Endless(), epochs=2), DataError,
        "val_data is a Endless, which never ends; give val_batches=100"),
    "validation data, once": (
        lambda e: e.fit(BATCHES, itertools.cycle(BATCHES), epochs=1), DataError,
        f"val_data {CYCLE}val_batches=100"),
    "data of a handler": (
        lambda e: e.fit(BATCHES, epochs=1, event_handlers=ValidationHandler(Endless())), DataError,
        "val_data is a Endless, which never ends; give ValidationHandler(…, batches=100)"),
    "a loader of several": (
        lambda e: e.fit(BATCHES, {"digit": BATCHES, "size": Endless()}, epochs=1), DataError,
        'val_data["size"] is a Endless, which never ends; give val_batches=100'),
    "an epoch": (
        lambda e: e.fit(Sharded(Endless()), epochs=2), DataError,
        "train_data is a Endless, which never ends; give batches=1000"),
    "loaders without a size": (
        lambda e: e.fit({"digit": BATCHES, "size": Endless()}, batches=2), DataError,
        'train_data["size"] is a Endless that does not know how many batches it has'),
    "an evaluation": (
        lambda e: e.evaluate(itertools.repeat(BATCHES[0])), DataError,
        "data is a repeat, which never ends; give batches=100"),
    "numbers": (lambda e: e.evaluate(itertools.count()), DataError, "data is a count, which never ends"),
    "a prediction": (
        lambda e: e.predict(itertools.cycle(BATCHES)), DataError, f"data {CYCLE}itertools.islice(data, 100)"),
    "nothing to limit": (
        lambda e: e.fit(BATCHES, epochs=1, val_batches=2), ValueError,
        "val_batches limits val_data=, which is not given; ValidationHandler has batches="),
    "a resumed run": (
        lambda e: e.fit(BATCHES, epochs=1, overfit=2, resume="runs"), ValueError,
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
