"""Batches whose gradients accumulate: the update is that of one batch of all their samples."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn

from multifit import CheckpointHandler, DataError, Every, LossSpec, MultiEstimator, TrainerError, TrainerSpec
from multifit.handlers import StoppingHandler, TerminateOnNaN
from multifit.utils.seeding import seed_everything
from tests.common.accumulating import CASES, SGD, assert_is_one_batch, batches_of, net_of, spec_of, values_of
from tests.common.compare import assert_unchanged, snapshot
from tests.common.grids import ONE, TWO
from tests.common.handlers import CutsPower, PowerCut, handler
from tests.common.nets import Heads, hybridized, sequential, two_heads
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import two_head_spec


def assert_equal(one: Any, other: Any) -> None:
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


def fitted(
    data: Any, missing: bool = False, tokens: bool = False, handlers: Any = (), limit: Any = None,
    spec: Any = None, **options: Any,
) -> MultiEstimator:  # fmt: skip
    """Fit on batches of these sizes, or on these batches."""
    spec = spec or spec_of(missing, tokens)
    estimator = MultiEstimator(net_of(), spec, TrainerSpec(".*", "sgd", SGD), **options)
    batches = batches_of(data, missing) if isinstance(data, tuple) else data
    estimator.fit(batches, **(limit or {"epochs": 1}), event_handlers=list(handlers))
    return estimator


@pytest.mark.parametrize(
    ("case", "window", "devices"), [(case, 3 + i % 2 * 2, (ONE, TWO)[i % 2]) for i, case in enumerate(CASES)]
)
def test_the_update_is_that_of_one_batch(case: str, window: int, devices: Any) -> None:
    """The window is of all batches, or of more than an epoch has."""
    assert_is_one_batch(case, window, context=devices)


ADAM = {"learning_rate": 0.02}


def two_trainers(net: Any, **rhythm: Any) -> dict[str, TrainerSpec]:
    return {
        "body": TrainerSpec("body.*", "sgd", SGD, clip_norm=0.1, **rhythm),
        "heads": TrainerSpec("(digit|size).*", "adam", ADAM, **rhythm),
    }


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {  # trainers, by a net and a rhythm; options of the estimator
    "one": (lambda net, **rhythm: TrainerSpec(".*", "adam", ADAM, **rhythm), {}),
    "two, clipped": (two_trainers, {}),
    "two, by the estimator": (two_trainers, {"accumulate": 3}),
    "the default": (lambda net: None, {"accumulate": 3}),
    "a user's own": (lambda net: gluon.Trainer(net.collect_params(), "sgd", SGD), {"accumulate": 3}),
}


@pytest.mark.parametrize("name", WAYS)
def test_trainers_that_accumulate(name: str) -> None:
    make, options = WAYS[name]
    found = []
    for sizes, rhythm, more in (
        ((8, 2), {}, {}),
        ((3, 1, 4, 2), {} if options else {"every": 3, "accumulate": True}, options),
    ):
        net = net_of(TWO)
        estimator = MultiEstimator(net, spec_of(True, True), make(net, **rhythm), TWO, **more)
        estimator.fit(batches_of(sizes, True), epochs=2, event_handlers=[])
        found.append(values_of(estimator))
    assert_equal(*found)


class Penalty:
    """Adds the mean of the squared outputs."""

    priority = 5.0

    def change_objective(self, estimator: Any, objectives: Any, pred: Any) -> Any:
        return [*objectives, *((y**2).mean().reshape((1,)) for y in pred["size"])]


class Reusing(list):  # type: ignore[type-arg]
    """Yields the same arrays again and again, with other values, as MXNet's iterators do."""

    def __iter__(self) -> Any:
        arrays = [nd.array(array, dtype="float64") for array in self[0]]
        for batch in super().__iter__():
            for array, values in zip(arrays, batch):
                array[:] = values
            yield mx.io.DataBatch(arrays[:1], arrays[1:])


def noisy(tokens: bool) -> MultiEstimator:
    """Train with noise that reading a batch draws; normalizers, which are read ahead, change nothing."""

    def batch_fn(batch: Any) -> dict[str, Any]:
        x, digit, size, _ = batch
        return {"x": x + np.random.randn(*x.shape), "digit": digit, "size": size, "tokens": np.ones(len(x))}

    np.random.seed(2)
    return fitted((4, 4, 4), spec=spec_of(False, tokens, batch_fn=batch_fn), accumulate=2)


def after_a_failure() -> MultiEstimator:
    """Train for two epochs after a fit that failed within a window."""
    estimator = MultiEstimator(net_of(), spec_of(True), TrainerSpec(".*", "sgd", SGD), accumulate=2)
    with pytest.raises(PowerCut):
        estimator.fit(batches_of((4, 4), True), epochs=1, event_handlers=[CutsPower(1)])
    estimator.fit(batches_of((4, 4), True), epochs=2, event_handlers=[])
    return estimator


BOTH = {"missing": True, "tokens": True}
STOP = StoppingHandler(condition=lambda state: state.step == 3)
HOLD = handler("Hold", hold_update=lambda estimator: estimator.state.step == 3)
FIRST, _, LAST = batches_of((5, 5, 2))
PENALISED: dict[str, Any] = {"missing": True, "handlers": [Penalty()], "limit": {"epochs": 2}}
PAIRS = partial(fitted, accumulate=2)
EQUAL: dict[str, tuple[Callable[[], MultiEstimator], Callable[[], MultiEstimator]]] = {
    "what an epoch leaves over": (
        lambda: PAIRS((2, 4, 3, 3, 2), **BOTH, limit={"epochs": 3}),
        lambda: fitted((6, 6, 2), **BOTH, limit={"epochs": 3}),
    ),
    "what handlers add to the objective": (
        lambda: PAIRS((5, 3), **PENALISED), lambda: fitted((8,), **PENALISED)
    ),
    "a second window that is held back": (
        lambda: PAIRS((2, 3, 3, 2, 2), handlers=[HOLD]), lambda: fitted([FIRST, LAST])
    ),
    "a stop within a window": (lambda: PAIRS((3, 2, 3, 2, 4), handlers=[STOP]), lambda: fitted((5, 3))),
    "a DataIter that reuses its arrays": (
        lambda: PAIRS(Reusing(batches_of((4, 4, 4), True)), **BOTH), lambda: PAIRS((4, 4, 4), **BOTH)
    ),
    "noise, with normalizers that are read ahead": (lambda: noisy(True), lambda: noisy(False)),
    "a fit that failed within a window": (
        after_a_failure, lambda: fitted((8,), missing=True, limit={"epochs": 2})
    ),
}  # fmt: skip


@pytest.mark.parametrize(("accumulating", "plain"), EQUAL.values(), ids=EQUAL)
def test_runs_that_are_equal(accumulating: Any, plain: Any) -> None:
    assert_equal(values_of(plain()), values_of(accumulating()))


def test_a_limit_in_a_window_ends_it_and_no_more_is_read() -> None:
    batches = iter(batches_of((3, 2, 3, 2, 4), True))
    accumulated = fitted(batches, **BOTH, limit={"batches": 3}, accumulate=2)
    assert len(list(batches)) == 2
    assert_equal(values_of(fitted((5, 3), **BOTH)), values_of(accumulated))


def test_losses_that_are_bound_to_a_trainer_have_its_window() -> None:
    """Each head is trained as by an estimator whose trainers all accumulate as many batches."""

    def run(**windows: int) -> dict[str, np.ndarray]:
        losses = {
            "digit": LossSpec(hybridized(gluon.loss.SoftmaxCrossEntropyLoss()), trainers="digit"),
            "size": LossSpec(hybridized(gluon.loss.L2Loss()), normalize_by="tokens", trainers="size"),
        }
        trainers = {
            name: TrainerSpec(f"{name}.*", "sgd", SGD, every=every, accumulate=True)
            for name, every in windows.items()
        }
        estimator = MultiEstimator(net_of(), spec_of(True, True, losses=losses), trainers, frozen=["body.*"])
        estimator.fit(batches_of((2, 3, 1, 2, 2, 1, 1), True), epochs=2, event_handlers=[])
        return values_of(estimator)

    mixed, twos, threes = run(digit=2, size=3), run(digit=2, size=2), run(digit=3, size=3)
    assert_equal({name: (threes if name.startswith("size") else twos)[name] for name in mixed}, mixed)


def test_gradient_requests_are_restored() -> None:
    net = net_of()
    net(nd.zeros((1, 5), dtype="float64"))
    net.body.bias.grad_req, net.digit.bias.grad_req = "null", "add"
    before = {name: p.grad_req for name, p in net.collect_params().items()}
    frozen, seen = net.body.bias.data().asnumpy(), set[str]()
    watch = handler("Watch", batch_end=lambda e: seen.update(p.grad_req for p in e.parameters.values()))
    estimator = MultiEstimator(net, spec_of(), accumulate=2)
    estimator.fit(batches_of((4, 4)), epochs=1, event_handlers=[watch])
    assert seen == {"add", "null"}
    assert {name: p.grad_req for name, p in net.collect_params().items()} == before
    np.testing.assert_array_equal(net.body.bias.data().asnumpy(), frozen)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "left over"])
def test_a_run_that_meets_nan_keeps_the_parameters_of_the_last_update(place: int) -> None:
    batches = batches_of((4, 4, 4), True)
    start = net_of()
    start(nd.array(batches[0][0], dtype="float64"))
    batches[place] = (batches[place][0] * np.nan, *batches[place][1:])
    estimator = fitted(batches, True, handlers=[TerminateOnNaN()], accumulate=2)
    assert f"batch {place + 1}" in str(estimator.state.stop_reason)
    if place == 2:
        assert_equal(values_of(fitted((8,), True)), values_of(estimator))
    else:
        assert_unchanged(estimator.net, snapshot(start))


def test_a_wrong_batch_is_named_when_it_is_its_turn() -> None:
    batches = batches_of((4, 4, 2, 4), True)
    batches[3] = batches[3][:3]
    estimator = MultiEstimator(net_of(), spec_of(True, True), accumulate=2)
    with pytest.raises(DataError, match="epoch 1, batch 4"):
        estimator.fit(batches, epochs=1, event_handlers=[])
    assert estimator.state.step == 3


def test_figures_count_only_the_batches_that_were_trained_on() -> None:
    image = np.ones((4, 6), "float32")
    labels = {"digit": np.ones(4, "float32"), "size": np.ones((4, 1), "float32")}
    data = {name: [{"image": image, name: label}] * 4 for name, label in labels.items()}
    stop = StoppingHandler(condition=lambda state: state.step == 5)
    estimator = MultiEstimator(two_heads("hybrid"), two_head_spec(), accumulate=4)
    history = estimator.fit(data, epochs=1, event_handlers=[stop])
    assert sum(history[f"train_batches_{name}"][0] for name in data) == 5


# ---- resuming ----------------------------------------------------------------------------------------------


class Noisy:
    """Samples with noise of NumPy's and MXNet's generators, drawn when they are read."""

    def __init__(self) -> None:
        (arrays,) = batches_of([14], True)
        self._arrays = [array.astype("float32") for array in arrays]

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        x, *labels = (array[place] for array in self._arrays)
        noise = np.random.randn(*x.shape) + mx.nd.random.normal(shape=x.shape).asnumpy()
        return (x + 0.1 * noise).astype("float32"), *labels


class Draws:
    """Draws NumPy's random numbers in each step, which change the gradients."""

    def change_gradients(self, estimator: Any) -> None:
        for parameters in estimator.gradients().values():
            for gradients in parameters.values():
                for gradient in gradients:
                    gradient += 0.01 * np.random.randn()


@pytest.mark.parametrize(("every", "steps"), [(1, (1, 4)), (2, (7,))])
def test_a_run_resumes_within_a_window_bit_for_bit(every: int, steps: Any, tmp_path: Path) -> None:
    """What was read ahead is read again, with the same noise."""

    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        seed_everything(4)
        net = Heads(body=sequential(nn.Dense(6), nn.Dropout(0.3)), digit=3, size=2)
        net.initialize(mx.init.Xavier())
        data = gluon.data.DataLoader(Noisy(), 3, shuffle=True)
        trainers = TrainerSpec(".*", "sgd", SGD)
        estimator = MultiEstimator(hybridized(net), spec_of(True, True), trainers, accumulate=3)
        saving = CheckpointHandler(folder, Every(every, "batch"), seed=1)
        estimator.fit(data, epochs=2, event_handlers=[Draws(), saving, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, *steps)


def test_a_finished_run_that_resumes_updates_with_what_its_limit_left_over(tmp_path: Path) -> None:
    """And one that trains more goes on in the window."""

    def run(folder: str, batches: int, **resume: Any) -> Any:
        estimator = MultiEstimator(net_of(), spec_of(), TrainerSpec(".*", "sgd", SGD), accumulate=2)
        saving = CheckpointHandler(tmp_path / folder, Every(1, "batch"), seed=1)
        data = batches_of((3, 2, 3, 2, 4))
        estimator.fit(data, batches=batches, event_handlers=[saving], **resume)
        return values_of(estimator)

    ended = run("parts", 3)
    assert_equal(run("parts", 3, resume=tmp_path / "parts"), ended)
    np.testing.assert_equal(run("parts", 5, resume=tmp_path / "parts"), run("whole", 5))


# ---- what is refused ---------------------------------------------------------------------------------------


BODY_ALONE = {"body": TrainerSpec("body.*", every=2, accumulate=True), "heads": TrainerSpec("[ds].*")}
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "another rhythm": (
        {"trainers": TrainerSpec(".*", every=3), "accumulate": 2}, spec_of(),
        r"trainers: every=3, but MultiEstimator\(accumulate=2\) is for all trainers; leave every= out, or",
    ),
    "two windows of a loss": (
        {"trainers": BODY_ALONE}, spec_of(True),
        r'losses\["digit"\]: is divided by the samples that have its labels, in all batches of an update, '
        r'but its trainers accumulate different numbers of batches: 2 of "body", 1 of "heads"; let them',
    ),
    "two windows of a loss with tokens": (
        {"trainers": BODY_ALONE}, spec_of(False, True),
        r'losses\["size"\]: is divided by normalize_by, in all batches of an update',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_one_update_is_refused(case: str) -> None:
    options, spec, message = REFUSED[case]
    net = net_of()
    net(nd.zeros((1, 5), dtype="float64"))
    before = snapshot(net)
    with pytest.raises((TrainerError, ValueError), match=message):
        MultiEstimator(net, spec, **options).fit(batches_of((4, 4)), epochs=1, event_handlers=[])
    assert_unchanged(net, before)
