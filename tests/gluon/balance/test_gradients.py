"""Methods that compare gradients where the tasks branch: equal to a loop by hand; their figures and plans."""

import re
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MultiEstimator, TrainerSpec
from multifit.balance import (
    IMTLG,
    IMTLL,
    MGDA,
    STCH,
    DualProj,
    GradNorm,
    GramianMethod,
    PCGrad,
    Sum,
    Uncertainty,
    UPGrad,
)  # fmt: skip
from multifit.balance.means import CHUNK, GradientFigures
from multifit.balance.weighing import weigh_gradients
from multifit.gluon.step.stage import RERUN_STEP
from multifit.seeding import mixed
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO, pairwise
from tests.common.hand_loop import SGD, SILENT, SIZES
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import KMax, Nested, Skips, heads, three_tasks, two_heads
from tests.common.specs import BCE, CE, L2, digit_spec
from tests.numerics.test_waiting import Waits, placed, waits  # noqa: F401

import mxnet as mx  # isort: skip
from mxnet import autograd, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


BATCHES = digit_batches(SIZES)


NETS = {
    "two heads": (lambda: heads(), digit_spec),
    "running statistics": (lambda: heads(nn.BatchNorm(in_channels=8)), digit_spec),
    "dropout": (lambda: heads(nn.Dropout(0.5), nn.Dense(8, in_units=8), nn.Dropout(0.5)), digit_spec),
    "skips": (lambda: hybridized(Skips()), three_tasks),
    "topk": (lambda: hybridized(KMax()), digit_spec),
    "a label that is an input": (
        lambda: hybridized(Heads(body=sequential(nn.Dense(10, in_units=10)), digit=5, copy=10)),
        lambda: digit_spec(
            outputs=["digit", "copy"],
            labels=["digit", "parity"],
            losses={"digit": CE, "copy": LossSpec(L2, "copy", "x")},
            unused=["parity"],
        ),
    ),
}


def fitted(net: Any, method: Any, epochs: int = 2, devices: Any = None, **options: Any) -> Any:
    """Fit, with the random numbers of every step seeded as those of a graph that is cut are."""

    class Seeds:
        def batch_begin(self, estimator: Any, **arguments: Any) -> None:
            state = estimator.state
            mx.random.seed(mixed(7, RERUN_STEP, state.epoch, state.step, 0, 0) % 2**31)

    trainers = options.pop("trainers", TrainerSpec(".*", "sgd", SGD))
    handlers = [*SILENT, Seeds(), *options.pop("handlers", [])]
    batches = options.pop("batches", BATCHES)
    spec = options.pop("spec", None) or digit_spec()
    estimator = MultiEstimator(net, spec, trainers, devices, balance=method, **options)
    estimator.state.seed = 7
    estimator.fit(batches, epochs=epochs, event_handlers=handlers)
    return estimator


@pytest.mark.parametrize(
    ("name", "devices"), [*((name, None) for name in NETS), ("running statistics", TWO), ("skips", TWO)]
)
def test_with_weights_of_1_a_fit_is_that_of_the_sum_bit_for_bit(name: str, devices: Any) -> None:
    make, spec = NETS[name]
    plain, cut = twins(make, BATCHES[0][0])
    batches = BATCHES if devices is None else BATCHES[:-1]
    for net, method in ((plain, None), (cut, Sum(on="features"))):
        fitted(net, method, devices=devices, batches=batches, spec=spec())
    if name == "skips":  # the gradients of more than two places may be added in another order
        assert_same_parameters(cut, plain, rtol=1e-6, atol=1e-7)
    else:
        assert_unchanged(cut, snapshot(plain))


def test_the_first_batch_counts_once_for_statistics_that_it_initialises() -> None:
    nets = [
        hybridized(Heads(body=sequential(nn.Dense(8), nn.BatchNorm()), digit=5, parity=1)) for _ in range(2)
    ]
    for net, method in zip(nets, (None, Sum(on="features"))):
        net.initialize(mx.init.Constant(0.1))
        fitted(net, method, 1)
    assert_unchanged(nets[1], snapshot(nets[0]))


def train_by_hand(net: Any, method: Any, batches: list, parts: int = 1) -> dict[str, list]:
    """Train a net of two heads as the papers do; `parts` batches make one update."""
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", dict(SGD))
    weights, state = np.ones(2), method.start(2)
    preference = method.preference and np.array([1.5, 0.5])
    used: dict[str, list] = {"weights": [], "norms": [], "cosine": []}
    for parameter in net.collect_params().values():
        parameter.grad_req = "add"
    for step, batch in enumerate(batches):
        x, digit, parity = (nd.array(array, dtype=array.dtype) for array in batch)
        with autograd.record():
            features = net.body(x)
        copies = [features.detach(), features.detach()]
        for each in copies:
            each.attach_grad()
        with autograd.record():
            losses = [CE(net.digit(copies[0]), digit).mean(), 0.5 * BCE(net.parity(copies[1]), parity).mean()]
            update = batches[step // parts * parts :][:parts]
            share = len(batch[0]) / sum(len(each[0]) for each in update)
            shares = [loss * share for loss in losses]
        autograd.backward(shares)
        rows = np.stack([each.grad.asnumpy().ravel() for each in copies]).astype("float64")
        gramian = rows @ rows.T
        if step % method.every == 0:
            numbers = np.array([loss.asscalar() for loss in losses], "float64")
            weights, state = weigh_gradients(
                method, numbers, gramian, weights, state, 0, step, preference=preference
            )
            norms = np.sqrt(np.diag(gramian))
            used["norms"].append(norms)
            used["cosine"].append(gramian[0, 1] / norms.prod())
        used["weights"].append(weights)
        features.backward(sum(float(w) * each.grad for w, each in zip(weights, copies)))
        if (step + 1) % parts == 0:
            trainer.step(1)
            for parameter in net.collect_params().values():
                parameter.zero_grad()
    return used


METHODS = {
    "UPGrad": UPGrad(on="features", normalize=True),
    "MGDA, every other batch": MGDA(on="features", every=2),
    "GradNorm": GradNorm(on="features", learning_rate=0.5),
    "PCGrad": PCGrad(on="features"),
    "preferred and smooth": IMTLG(on="features", preference={"digit": 3}, smooth=0.6, normalize="largest"),
}


@pairwise("name", METHODS)
def test_a_fit_is_the_loop_by_hand(name: str, devices: list, hybrid: bool) -> None:
    method, batches = METHODS[name], BATCHES[:-1]
    by_hand, net = twins(two_heads, batches[0][0])
    used = train_by_hand(by_hand, method, batches)
    history = fitted(hybridized(net), method, 1, devices, batches=batches).history
    assert_same_parameters(net, by_hand)
    for task, label in enumerate(("digit", "parity")):
        expected = {"weight": used["weights"], "gradnorm": used["norms"]}
        for figure, rows in expected.items():
            mean = np.mean([row[task] for row in rows])
            assert history[f"train_{figure}_{label}"] == pytest.approx([mean], rel=1e-4)
    assert history["train_cosine_digit_parity"] == pytest.approx([np.mean(used["cosine"])], abs=1e-5)
    assert history["train_conflict"] == pytest.approx([np.mean(np.array(used["cosine"]) < -0.1)])


def test_accumulated_batches() -> None:
    """Every batch is weighed by itself, and counts with its samples."""
    by_hand, net = twins(two_heads, BATCHES[0][0])
    train_by_hand(by_hand, UPGrad(on="features"), BATCHES[:4], parts=2)
    fitted(hybridized(net), UPGrad(on="features"), 1, batches=BATCHES[:4], accumulate=2)
    assert_same_parameters(net, by_hand)


def test_several_trainers_and_clipping() -> None:
    """Weights of 1/2 and half the rate are the sum; clipping sees the combined gradient."""

    class Halves(GramianMethod):
        def solve(self, gramian: Any, step: int = 0) -> Any:
            return np.full(len(gramian), 0.5)

    def trainers(rate: float, norm: float) -> dict:
        return {
            "body": TrainerSpec("body.*", "sgd", {"learning_rate": rate}, clip_norm=norm),
            "heads": TrainerSpec("(digit|parity).*", "sgd", {"learning_rate": 0.1}),
        }

    plain, cut = twins(two_heads, BATCHES[0][0])
    fitted(hybridized(plain), None, trainers=trainers(0.1, 0.02))
    fitted(hybridized(cut), Halves(on="features"), trainers=trainers(0.2, 0.01))
    assert_same_parameters(cut, plain)


def of_parity(array: Any) -> Any:
    """Return what is remembered of the second task; on the device, the first row are weights."""
    array = getattr(array, "asnumpy", lambda: array)()
    return array[1:, 1] if array.ndim == 2 else array[1]


@pytest.mark.parametrize(
    "method",
    [
        UPGrad(on="features", smooth=0.5),
        GradNorm(on="features", learning_rate=0.5),
        IMTLL(learning_rate=0.5),
        STCH(),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_batch_without_a_label_of_a_task_leaves_the_task_out(method: Any) -> None:
    """Nothing that the method remembers of it moves."""
    without = [(x, digit, np.full_like(parity, np.nan)) for x, digit, parity in BATCHES[2:4]]
    spec = digit_spec(labels=["digit", LabelSpec("parity", missing="nan")])
    estimator = fitted(hybridized(two_heads()), method, 1, batches=BATCHES[:2], spec=spec)
    before = estimator._session.balancer.state()["memory"]
    history = estimator.fit(without, epochs=1, event_handlers=SILENT)
    assert np.isnan(history["train_weight_parity"][0]) and history["train_weight_digit"][0] > 0
    after = estimator._session.balancer.state()["memory"]
    for name, value in before.items():
        np.testing.assert_array_equal(of_parity(after[name]), of_parity(value), name)


def test_one_read_a_batch(waits: Waits) -> None:  # noqa: F811
    batches = placed(digit_batches([8] * 8))
    fitted(hybridized(two_heads()), DualProj(on="features"), 1, batches=batches, handlers=[waits])
    assert waits.count == 7


@pytest.mark.bfloat16
def test_in_bfloat16() -> None:
    plain, cut = twins(lambda: heads(nn.Dense(16, in_units=8)), BATCHES[0][0])
    for net, method in ((plain, None), (cut, Sum(on="features"))):
        fitted(net, method, precision="bfloat16")
    assert_same_parameters(cut, plain, rtol=0.05, atol=0.01)


def gramians(count: int) -> list[np.ndarray]:
    rows = np.random.RandomState(0).randn(count, 3, 4)
    return [each @ each.T for each in rows]


def added(figures: GradientFigures, batches: list[np.ndarray]) -> dict[str, float]:
    for gramian in batches:
        figures.add_gramian(gramian)
    return figures.read()


def test_reading_and_saving_in_between_change_no_bit() -> None:
    batches = gramians(CHUNK + 5)
    whole, first, second = (GradientFigures(["a", "b", "c"]) for _ in range(3))
    added(first, batches[:7])
    second.load(first.state())
    assert added(second, batches[7:]) == added(whole, batches)
    whole.reset()
    assert np.isnan(whole.read()["conflict"])


def test_a_task_counts_in_the_batches_in_which_it_has_a_gradient() -> None:
    """Figures that no batch has measured are NaN, also where several batches are saved and loaded."""
    there = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
    batches = [gramian * np.outer(each, each) for gramian, each in zip(gramians(4), there)]
    half, figures = (GradientFigures(["a", "b", "c"]) for _ in range(2))
    added(half, batches[:2])
    figures.load(half.state())
    read = added(figures, batches[2:])
    pairs = [batches[i] for i in (0, 3)]
    cosines = [g[0, 1] / np.sqrt(g[0, 0] * g[1, 1]) for g in pairs]
    expected = {
        "gradnorm_a": np.mean([np.sqrt(batches[i][0, 0]) for i in (0, 1, 3)]),
        "gradnorm_b": np.mean([np.sqrt(g[1, 1]) for g in pairs]),
        "cosine_a_b": np.mean(cosines),
        "conflict": np.mean(np.array(cosines) < -0.1),
        **dict.fromkeys(["gradnorm_c", "cosine_a_c", "cosine_b_c"], np.nan),
    }
    assert read == pytest.approx(expected, nan_ok=True)


def test_the_plan_names_the_method_and_its_tasks() -> None:
    for method, name, option in (
        (UPGrad(on="features", every=2), "UPGrad", "every=2"),
        (Uncertainty(), "Uncertainty", "every=1"),
    ):
        plan = MultiEstimator(hybridized(two_heads()), digit_spec(), balance=method).check(BATCHES)
        text = " ".join(str(plan).split())
        (said,) = re.findall(rf"balanced by {name}\((.*?)\): the tasks (.*?) parameters", text)
        assert option in said[0] and said[1] == '"digit", "parity"'
    assert "balanced" not in str(MultiEstimator(hybridized(two_heads()), digit_spec()).check(BATCHES))


def test_the_plan_says_what_is_shared() -> None:
    for on, gradients in (("features", "1.96 kB"), ("parameters", "6.04 kB")):
        estimator = MultiEstimator(hybridized(Skips()), three_tasks(), balance=UPGrad(on=on))
        plan = " ".join(str(estimator.check(BATCHES)).split())
        assert "tasks share 7 parameters and branch at 3 arrays" in plan
        assert 'shared: "scale", "first.weight", "first.bias", "second.weight", ' in plan
        assert f"the tasks' gradients take {gradients}" in plan
    plan = MultiEstimator(hybridized(Nested()), three_tasks(), balance=UPGrad(on="features")).check(BATCHES)
    expected = "branch at 2 arrays; 2 pairs of tasks have none of these in common and count as orthogonal"
    assert expected in " ".join(str(plan).split())


def test_a_check_finds_which_losses_reach_which_trainer() -> None:
    trainers = {name: TrainerSpec(f"{name}.*") for name in ("body", "digit", "parity")}
    plan = MultiEstimator(
        hybridized(two_heads()), digit_spec(), trainers, balance=UPGrad(on="features")
    ).check(BATCHES)
    reached = {trainer.name: trainer.losses for trainer in plan.trainers}
    assert reached == {"body": ("digit", "parity"), "digit": ("digit",), "parity": ("parity",)}
