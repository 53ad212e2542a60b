"""Batches whose gradients accumulate: the update is that of one batch of all their samples."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mxnet import gluon, nd

from multifit import DataError, Every, LabelSpec, LossSpec, MultiEstimator, TrainerError, TrainerSpec
from multifit.handlers import StoppingHandler, TerminateOnNaN
from tests.common.accumulating import CASES, SGD, assert_is_one_batch, batches_of, net_of, spec_of, values_of
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import Reusing
from tests.common.grids import ONE, TWO
from tests.common.handlers import CutsPower, PowerCut, handler
from tests.common.nets import hybridized, two_heads
from tests.common.specs import two_head_spec

from .resume_runs import STEPS, Run, end_without_stop, make_spec, make_trainers, unequal


def assert_equal(one: Any, other: Any) -> None:
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


def fitted(
    data: Any, missing: bool = False, tokens: bool = False, handlers: Any = (), limit: Any = None,
    spec: Any = None, trainers: Any = None, context: Any = ONE, **options: Any,
) -> MultiEstimator:  # fmt: skip
    """Fit on batches of these sizes, or on these batches; `trainers` are made for the net."""
    net, spec = net_of(context), spec or spec_of(missing, tokens)
    trainers = TrainerSpec(".*", "sgd", SGD) if trainers is None else trainers(net)
    estimator = MultiEstimator(net, spec, trainers, context, **options)
    batches = batches_of(data, missing) if isinstance(data, tuple) else data
    estimator.fit(batches, **(limit or {"epochs": 1}), event_handlers=list(handlers))
    return estimator


@pytest.mark.parametrize(
    ("case", "window", "devices"), [(case, 3 + i % 2 * 2, (ONE, TWO)[i % 2]) for i, case in enumerate(CASES)]
)
def test_the_update_is_that_of_one_batch(case: str, window: int, devices: Any) -> None:
    """The window is of all batches, or of more than an epoch has."""
    assert_is_one_batch(case, window, context=devices)


def two(**rhythm: Any) -> Callable[[Any], Any]:
    return lambda net: {
        "body": TrainerSpec("body.*", "sgd", SGD, clip_norm=0.1, **rhythm),
        "heads": TrainerSpec("(digit|size).*", "adam", {"learning_rate": 0.02}, **rhythm),
    }


def penalise(estimator: Any, objectives: Any, pred: Any) -> Any:
    return [*objectives, *((y**2).mean().reshape((1,)) for y in pred["size"])]


def own(net: Any) -> Any:
    return gluon.Trainer(net.collect_params(), "sgd", SGD)


TWICE: dict[str, Any] = {"limit": {"epochs": 2}}
BOTH: dict[str, Any] = {"missing": True, "tokens": True}
WHOLE = {**BOTH, **TWICE, "data": (8, 2), "context": TWO}
PARTS = {**WHOLE, "data": (3, 1, 4, 2)}
THREE = {"every": 3, "accumulate": True}
PENALISED = {"missing": True, **TWICE, "handlers": [handler(priority=5.0, change_objective=penalise)]}
STOP = StoppingHandler(condition=lambda state: state.step == 3)
HOLD = handler(hold_update=lambda estimator: estimator.state.step == 3)
FIRST, _, LAST = batches_of((5, 5, 2))
PAIRS = {"accumulate": 2}
# options of a fit that accumulates, and of one that is equal
EQUAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two trainers": ({**PARTS, "trainers": two(**THREE)}, {**WHOLE, "trainers": two()}),
    "two, by the estimator": ({**PARTS, "trainers": two(), "accumulate": 3}, {**WHOLE, "trainers": two()}),
    "the default": (
        {**PARTS, "trainers": lambda net: None, "accumulate": 3}, {**WHOLE, "trainers": lambda net: None}),
    "a user's own": ({**PARTS, "trainers": own, "accumulate": 3}, WHOLE),
    "what an epoch leaves over": (
        {**BOTH, **TWICE, **PAIRS, "data": (2, 4, 3, 3, 2)}, {**BOTH, **TWICE, "data": (6, 6, 2)}),
    "what handlers add to the objective": (
        {**PENALISED, **PAIRS, "data": (5, 3)}, {**PENALISED, "data": (8,)}),
    "a second window that is held back": (
        {**PAIRS, "data": (2, 3, 3, 2, 2), "handlers": [HOLD]}, {"data": [FIRST, LAST]}),
    "a stop within a window": ({**PAIRS, "data": (3, 2, 3, 2, 4), "handlers": [STOP]}, {"data": (5, 3)}),
    "a DataIter that reuses its arrays": (
        {**BOTH, **PAIRS, "data": Reusing(batches_of((4, 4, 4), True))},
        {**BOTH, **PAIRS, "data": (4, 4, 4)}),
}  # fmt: skip


@pytest.mark.parametrize(("accumulating", "plain"), EQUAL.values(), ids=EQUAL)
def test_runs_that_are_equal(accumulating: dict[str, Any], plain: dict[str, Any]) -> None:
    assert_equal(values_of(fitted(**plain)), values_of(fitted(**accumulating)))


def test_reading_normalizers_ahead_draws_no_random_numbers() -> None:
    """A normalizer of 1 for each sample changes nothing."""

    def batch_fn(batch: Any) -> dict[str, Any]:
        x, digit, size, _ = batch
        return {"x": x + np.random.randn(*x.shape), "digit": digit, "size": size, "tokens": np.ones(len(x))}

    ends = []
    for tokens in (True, False):
        np.random.seed(2)
        spec = spec_of(False, tokens, batch_fn=batch_fn)
        ends.append(values_of(fitted((4, 4, 4), spec=spec, accumulate=2)))
    assert_equal(*ends)


def test_a_fit_that_failed_within_a_window_leaves_no_gradients() -> None:
    estimator = MultiEstimator(net_of(), spec_of(True), TrainerSpec(".*", "sgd", SGD), accumulate=2)
    with pytest.raises(PowerCut):
        estimator.fit(batches_of((4, 4), True), epochs=1, event_handlers=[CutsPower(1)])
    estimator.fit(batches_of((4, 4), True), epochs=2, event_handlers=[])
    assert_equal(values_of(fitted((8,), missing=True, **TWICE)), values_of(estimator))


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


def draw(estimator: Any) -> None:
    """Change gradients with NumPy's random numbers."""
    for parameters in estimator.gradients().values():
        for gradients in parameters.values():
            for gradient in gradients:
                gradient += 0.01 * np.random.randn()


def accumulating_run(folder: Path, every: int = 1) -> Run:
    """Return a run whose data have noise that is drawn when they are read."""
    return Run(
        folder / "run", "noisy", every=Every(every, "batch"),
        spec=lambda: make_spec(labels=[LabelSpec("digit", missing=-1), "size"]),
        trainers=lambda: {n: replace(each, every=3, accumulate=True) for n, each in make_trainers().items()},
        handlers=lambda: [handler("Draws", change_gradients=draw)],
    )  # fmt: skip


@pytest.mark.parametrize(("every", "step"), [(1, 4), (2, 8)])
def test_a_run_resumes_within_a_window_bit_for_bit(every: int, step: int, tmp_path: Path) -> None:
    """What was read ahead is read again, with the same noise."""
    run = accumulating_run(tmp_path, every)
    run.crash(step)
    run.resume()
    assert unequal(run.end(), end_without_stop(run, "accumulating")) == []


def test_a_finished_run_that_resumes_updates_with_what_its_limit_left_over(tmp_path: Path) -> None:
    """And one that trains more goes on in the window."""
    run = accumulating_run(tmp_path)
    run.fit(batches=8)
    ended = run.end()
    run.resume(batches=8)
    assert unequal(run.end(), ended) == []
    run.resume(batches=STEPS)
    assert unequal(run.end(), end_without_stop(run, "accumulating", batches=STEPS)) == []


BODY_ALONE = {"body": TrainerSpec("body.*", every=2, accumulate=True), "heads": TrainerSpec("[ds].*")}
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "another rhythm": ({"trainers": TrainerSpec(".*", every=3), "accumulate": 2}, spec_of(),
        r"trainers: every=3, but MultiEstimator\(accumulate=2\) is for all trainers; leave every= out, or"),
    "two windows of a loss": ({"trainers": BODY_ALONE}, spec_of(True),
        r'losses\["digit"\]: is divided by the samples that have its labels, in all batches of an update, '
        r'but its trainers accumulate different numbers of batches: 2 of "body", 1 of "heads"; let them'),
    "two windows of a loss with tokens": ({"trainers": BODY_ALONE}, spec_of(False, True),
        r'losses\["size"\]: is divided by normalize_by, in all batches of an update'),
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
