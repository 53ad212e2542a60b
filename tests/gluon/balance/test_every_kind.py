"""What holds for methods of losses, of gradients at features and of gradients of parameters alike."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, Every, LabelSpec, LossSpec, MetricSpec, SkipNonFinite, TrainerSpec
from multifit.balance import DWA, GLS, RLW, GradNorm, PCGrad, Sum, Uncertainty, UPGrad
from tests.common.compare import assert_same_parameters, twins
from tests.common.grids import TWO
from tests.common.hand_loop import SILENT
from tests.common.nets import hybridized
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.shared_nets import heads, two_heads
from tests.common.specs import BCE, CE, digit_spec
from tests.gluon.balance.by_hand import BATCHES, fitted
from tests.gluon.balance.test_losses import METHODS, Constant, Halving

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip

KINDS: dict[str, Callable[..., Any]] = {
    "losses": GLS,
    "losses, in NumPy": Halving,
    "features": partial(UPGrad, on="features"),
    "parameters": UPGrad,
}
of_every_kind = pytest.mark.parametrize("kind", KINDS)
PARITY = LossSpec(BCE, weight=0.5)


@of_every_kind
def test_groups_of_losses_are_tasks(kind: str) -> None:
    """Two halves of a loss in one task are that loss; a loss in no group is a task of its own."""
    whole, halves = twins(heads, BATCHES[0][0])
    fitted(whole, KINDS[kind]())
    half = LossSpec(CE, "digit", "digit", weight=0.5)
    spec = digit_spec(losses={"a": half, "parity": PARITY, "b": half})
    history = fitted(halves, KINDS[kind](tasks={"digit": ["a", "b"]}), spec=spec).history
    assert_same_parameters(halves, whole)
    assert "train_weight_digit" in history and "train_weight_a" not in history


@of_every_kind
def test_a_task_of_weight_0_is_out(kind: str) -> None:
    """As if its loss did not exist, which the geometric mean would notice."""
    without, beside = twins(heads, BATCHES[0][0])
    fitted(without, KINDS[kind]())
    losses = {"digit": CE, "other": LossSpec(BCE, "parity", "parity", weight=0), "parity": PARITY}
    history = fitted(beside, KINDS[kind](), spec=digit_spec(losses=losses)).history
    assert_same_parameters(beside, without)
    assert np.isnan(history["train_weight_other"]).all()
    assert "losses" in kind or np.isnan(history["train_cosine_other_parity"]).all()


# ---- tasks without labels


class Ones(Halving):
    """A user's own method that leaves all weights at 1, in NumPy."""

    def weights(self, measured: Any, state: dict) -> tuple:
        return np.ones(measured.tasks), state


def without_digits(batch: Any) -> Any:
    return batch[0], np.full_like(batch[1], -1), batch[2]


def with_missing(net: Any, method: Any, batches: Any, rate: float = 0.0, **options: Any) -> Any:
    spec = digit_spec(labels=[LabelSpec("digit", missing=-1), "parity"])
    trainers = TrainerSpec(".*", "sgd", {"learning_rate": rate})
    return fitted(hybridized(net), method, batches, spec=spec, trainers=trainers, **options).history.last


MEASURING: dict[str, Callable[[], Any]] = {
    **KINDS,
    "losses, every other batch": partial(GLS, every=2),
    "features, every other batch": partial(UPGrad, on="features", every=2),
    "random weights": RLW,
    "a user's own that needs nothing": Constant,
}


@pytest.mark.parametrize(("kind", "devices"), list(zip(MEASURING, [None, TWO] * len(MEASURING))))
def test_figures_of_a_task_are_means_over_the_batches_with_its_labels(kind: str, devices: Any) -> None:
    net, full, method = two_heads(), BATCHES[0], MEASURING[kind]()
    net.initialize(ctx=devices)
    one, both, never = (
        with_missing(net, method, batches, devices=devices)
        for batches in ([full], [full, without_digits(full)], [without_digits(full)])
    )
    names = [name for name in one if "digit" in name and any(it in name for it in ("weight", "norm", "cos"))]
    assert names
    assert {name: both[name] for name in names} == pytest.approx({name: one[name] for name in names})
    assert np.isnan([never[name] for name in names]).all()


@pytest.mark.parametrize(
    "make", [DWA, Ones, partial(Sum, on="features"), Sum], ids=["device", "NumPy", "features", "parameters"]
)
def test_a_task_without_labels_when_weights_are_computed_keeps_its_last_one(make: Any) -> None:
    """These methods give weights of 1, whether they compute them in every batch or in every other."""
    batches = [without_digits(BATCHES[0]), BATCHES[1]] * 2
    usual, seldom = twins(two_heads, BATCHES[0][0])
    with_missing(usual, make(), batches, rate=0.1)
    last = with_missing(seldom, make(every=2), batches, rate=0.1)
    assert_same_parameters(seldom, usual)
    assert last["train_weight_digit"] == 1


@of_every_kind
def test_a_batch_that_is_not_finite_counts_with_the_weights_before_it(kind: str) -> None:
    good, bad = BATCHES[0], tuple(map(np.copy, BATCHES[1]))
    bad[0][0, 0] = np.inf  # relu would make 0 of NaN
    nets = two_heads(), *twins(two_heads, good[0])
    first, both, alone = (
        fitted(hybridized(net), KINDS[kind](), batches, handlers=[SkipNonFinite()]).history.last
        for net, batches in zip(nets, ([bad], [good, bad], [good]))
    )
    for name in ("train_weight_digit", "train_weight_parity"):
        start = 0.5 if KINDS[kind]().averages else 1.0
        assert first[name] == start and both[name] == alone[name] != start


# ---- states


@pytest.mark.parametrize(
    "method",
    [Uncertainty(learning_rate=0.5), GradNorm(on="features", learning_rate=0.5)],
    ids=["losses", "features"],
)
def test_checks_searches_and_profiles_leave_a_method_as_it_is(method: Any) -> None:
    nets = twins(heads, BATCHES[0][0])
    one, other = (fitted(net, method) for net in nets)
    other.check(BATCHES)
    other.find_learning_rate(BATCHES, batches=10)
    other.profile(BATCHES, batches=3)
    for estimator in (one, other):
        estimator.fit(BATCHES, epochs=1, event_handlers=SILENT)
    assert one.history["train_weight_digit"] == other.history["train_weight_digit"]
    assert_same_parameters(*nets)


def mean_parity(labels: Any, outputs: Any) -> float:
    return float(np.mean(outputs))


RESUMED = {
    **{name: METHODS[name] for name in ("DWA", "FAMO, every other batch", "a user's own that looks back")},
    "a preference, smooth": UPGrad(preference={"digit": 3}, smooth=0.8, normalize="mean"),
    "PCGrad, every other batch": PCGrad(every=2),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_fit_is_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    """In the third epoch, DWA compares the losses of the two before."""

    def run(folder: Path, *handlers: Any, **options: Any) -> Any:
        net = heads(nn.BatchNorm(in_channels=8), nn.Dropout(0.5))
        mx.random.seed(5)
        net.initialize(mx.init.Xavier())
        spec = digit_spec(metrics={"on_host": MetricSpec(mean_parity, "parity", "parity")})
        handlers = CheckpointHandler(folder, Every(5, "batch"), seed=1), *handlers
        return fitted(net, RESUMED[name], BATCHES[:4], 3, spec=spec, handlers=handlers, fit=options)

    assert_resumes_bit_for_bit(run, tmp_path, 6)
