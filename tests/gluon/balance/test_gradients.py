"""Methods that compare gradients: equal to a loop by hand, or to the sum; and their plans."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MultiEstimator, SpecError, TrainerSpec
from multifit.balance import (
    IMTLG,
    IMTLL,
    MGDA,
    DualProj,
    GradNorm,
    Sum,
    Uncertainty,
    UPGrad,
)  # fmt: skip
from tests.common.compare import assert_same_parameters, assert_unchanged, copy_parameters, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SILENT
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import (
    KMax,
    Nested,
    Pretrained,
    Skipping,
    Skips,
    Tied,
    heads,
    three_tasks,
    two_heads,
)  # fmt: skip
from tests.common.specs import CE, L2, digit_spec
from tests.gluon.balance import by_hand
from tests.gluon.balance.by_hand import BATCHES, EVEN, ByHand
from tests.numerics.test_waiting import Waits, placed, waits  # noqa: F401

import mxnet as mx  # isort: skip
from mxnet import nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

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
of_both = pytest.mark.parametrize("on", ["features", "parameters"])


def fitted(net: Any, method: Any, epochs: int = 2, devices: Any = None, **options: Any) -> MultiEstimator:
    """Fit, with random numbers that are seeded for each batch, and again after the check of the first."""

    class Seeds:
        def batch_begin(self, estimator: Any) -> None:
            estimator.state.seed = 7
            estimator.reseed()

    handlers = [Seeds(), *options.pop("handlers", [])]
    batches = options.pop("batches", BATCHES)
    return by_hand.fitted(net, method, batches, epochs, devices, handlers=handlers, **options)


@pytest.mark.parametrize(
    ("name", "on", "devices"),
    [
        *((name, "features", None) for name in NETS),
        *((name, "features", TWO) for name in ("running statistics", "skips")),
        ("running statistics", "parameters", None),
        ("nested", "parameters", None),
    ],
)
def test_with_weights_of_1_a_fit_is_that_of_the_sum(name: str, on: str, devices: Any) -> None:
    """Bit for bit, unless gradients are added in another order: those of parameters, or of many places."""
    make, spec = NETS.get(name, (lambda: hybridized(Nested()), three_tasks))
    plain, cut = twins(make, BATCHES[0][0])
    for net, method in ((plain, None), (cut, Sum(on=on))):
        fitted(net, method, 1, devices, batches=EVEN if devices else BATCHES, spec=spec())
    if on == "features" and name != "skips":
        assert_unchanged(cut, snapshot(plain))
    else:
        assert_same_parameters(cut, plain, rtol=1e-5, atol=1e-6)


def test_the_first_batch_counts_once_for_statistics_that_it_initialises() -> None:
    bodies = [sequential(nn.Dense(8), nn.BatchNorm()) for _ in range(2)]
    nets = [hybridized(Heads(body=body, digit=5, parity=1)) for body in bodies]
    for net, method in zip(nets, (None, Sum(on="features"))):
        net.initialize(mx.init.Constant(0.1))
        fitted(net, method, 1)
    assert_unchanged(nets[1], snapshot(nets[0]))


# Net, method, the parameters that are compared, devices, and how many batches make an update.
FEATURES, PAIR = ("features",), ("body", "pair")
AS_BY_HAND: dict[str, tuple[Any, ...]] = {
    "every other batch": (two_heads, MGDA(on="features", every=2), FEATURES, ONE, 1),
    "of losses too": (two_heads, GradNorm(on="features", learning_rate=0.5), FEATURES, TWO, 1),
    "preferred, of one length": (
        two_heads, IMTLG(on="features", preference={"digit": 3}, normalize="largest"), FEATURES, TWO, 1
    ),
    "smooth": (two_heads, DualProj(on="features", smooth=0.6), FEATURES, ONE, 1),
    "of two batches": (two_heads, UPGrad(on="features"), FEATURES, ONE, 2),
    "parameters": (Nested, UPGrad(on="parameters"), PAIR, TWO, 1),
    "parameters of one layer": (Nested, UPGrad(on="body.*"), ("body",), ONE, 1),
    "parameters, of two batches": (Nested, UPGrad(on="parameters"), PAIR, ONE, 2),
    "parameters, every other batch, of three": (Nested, MGDA(on="parameters", every=2), PAIR, TWO, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_BY_HAND)
def test_a_fit_is_the_loop_by_hand(name: str) -> None:
    """Every batch is weighed by itself, also where several make an update, and counts with its samples."""
    make, method, compared, devices, window = AS_BY_HAND[name]
    hand, net = twins(make, EVEN[0][0])
    expected = ByHand(hand, method, EVEN, 1, window, compared=compared)
    options = {"spec": three_tasks() if make is Nested else digit_spec(), "accumulate": window}
    history = by_hand.fitted(hybridized(net), method, EVEN, 1, devices, **options).history
    assert_same_parameters(net, hand)
    for task, label in enumerate(("digit", "parity", "size")[: len(expected.weights)]):
        for figure, batches in {"weight": expected.epochs[0], "gradnorm": expected.norms}.items():
            mean = np.mean([each[task] for each in batches])
            assert history[f"train_{figure}_{label}"] == pytest.approx([mean], rel=1e-3)
    assert history["train_cosine_digit_parity"] == pytest.approx([np.mean(expected.cosines)], abs=1e-5)
    if make is two_heads:
        assert history["train_conflict"] == pytest.approx([np.mean(np.array(expected.cosines) < -0.1)])


@pytest.mark.parametrize(
    "method",
    [UPGrad(on="features", smooth=0.5), IMTLL(learning_rate=0.5)],
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
        np.testing.assert_array_equal(after[name][1], value[1], name)


@pytest.mark.parametrize("absent", [False, True], ids=["all tasks", "a task is absent"])
def test_one_read_a_batch(absent: bool, waits: Waits) -> None:  # noqa: F811
    batches = digit_batches([8] * 8)
    for _, _, parity in batches[1::2] if absent else ():
        parity[:] = np.nan
    spec = digit_spec(labels=["digit", LabelSpec("parity", missing="nan")]) if absent else None
    options: Any = {"batches": placed(batches), "handlers": [waits], "spec": spec}
    fitted(hybridized(two_heads()), DualProj(on="features"), 1, **options)
    assert waits.count == 7


@pytest.mark.bfloat16
def test_in_bfloat16() -> None:
    plain, cut = twins(lambda: heads(nn.Dense(16, in_units=8)), BATCHES[0][0])
    for net, method in ((plain, None), (cut, Sum(on="features"))):
        fitted(net, method, precision="bfloat16")
    assert_same_parameters(cut, plain, rtol=0.05, atol=0.01)


# ---- frozen parameters, and those that users change


@pytest.mark.parametrize(("on", "accumulate"), [("features", 2), (".*weight", 1)])
def test_frozen_parameters_are_not_compared(on: str, accumulate: int) -> None:
    """However a layer is frozen, weights and figures are those of training on what it computes."""
    nets = [*twins(Pretrained, BATCHES[0][0]), Skipping()]
    nets[2].initialize()
    copy_parameters(nets[0].rest, nets[2])
    nets[1].back.collect_params().setattr("grad_req", "null")
    made = [(nets[0].back(nd.array(x)).asnumpy(), *labels) for x, *labels in EVEN]
    first, *others = (
        by_hand.fitted(hybridized(net), MGDA(on=on), batches, 2, frozen=frozen, accumulate=accumulate).history
        for net, batches, frozen in zip(nets, (EVEN, EVEN, made), (["back.*"], [], []))
    )
    for history in others:
        for figure in first:
            np.testing.assert_allclose(history[figure], first[figure], rtol=1e-5, err_msg=figure)


@of_both
def test_a_bias_learns_beside_a_frozen_weight_that_the_body_takes_too(on: str) -> None:
    nets = twins(Tied, BATCHES[0][0])
    for net, method in zip(nets, (None, Sum(on=on))):
        by_hand.fitted(hybridized(net), method, EVEN, 2, frozen=["back.weight"])
    assert_same_parameters(nets[1], nets[0])


@of_both
def test_a_body_that_is_frozen_has_nothing_to_balance(on: str) -> None:
    options: Any = {"frozen": ["back.*", "rest.neck.*"], "balance": UPGrad(on=on)}
    estimator = MultiEstimator(hybridized(Pretrained()), digit_spec(), **options)
    with pytest.raises(SpecError, match="the tasks share no parameter that is trained"):
        estimator.check(BATCHES)


def test_gradients_that_the_user_adds_up_are_compared_batch_by_batch() -> None:
    """The trainer updates after each batch, and uses what that has added."""
    nets = twins(Nested, BATCHES[0][0])
    for net, request in zip(nets, ("write", "add")):
        net.collect_params().setattr("grad_req", request)
        by_hand.fitted(hybridized(net), MGDA(on="parameters", every=2), EVEN, spec=three_tasks())
    assert_same_parameters(*nets, rtol=0, atol=0)


# ---- plans


def plan_of(net: Any, method: Any, spec: Any = None, trainers: Any = None) -> Any:
    return MultiEstimator(hybridized(net), spec or digit_spec(), trainers, balance=method).check(BATCHES)


TASKS = '): the tasks "digit", "parity"'
SHARED = (
    "share 7 parameters and branch at 3 arrays",
    'shared: "scale", "first.weight", "first.bias", ',
)
APART = "branch at 2 arrays; 2 pairs of tasks have none of these in common and count as orthogonal"
# Net, method, and what the plan says.
PLANS: list[tuple[Any, Any, list[str]]] = [
    (two_heads, UPGrad(on="features", every=2), ["balanced by UPGrad(every=2, ", TASKS]),
    (two_heads, Uncertainty(), ["balanced by Uncertainty(", "every=1", TASKS]),
    (Skips, UPGrad(on="features"), [*SHARED, "the tasks' gradients take 1.96 kB"]),
    (Skips, UPGrad(), [*SHARED, "the tasks' gradients take 6.04 kB"]),
    (Nested, UPGrad(on="features"), [APART]),
]


@pytest.mark.parametrize(("make", "method", "parts"), PLANS)
def test_the_plan_names_the_method_its_tasks_and_what_they_share(make: Any, method: Any, parts: Any) -> None:
    plan = " ".join(str(plan_of(make(), method, None if make is two_heads else three_tasks())).split())
    assert [part for part in parts if part not in plan] == []


def test_a_check_finds_which_losses_reach_which_trainer() -> None:
    trainers = {name: TrainerSpec(f"{name}.*") for name in ("body", "digit", "parity")}
    plan = plan_of(two_heads(), UPGrad(on="features"), trainers=trainers)
    reached = {trainer.name: trainer.losses for trainer in plan.trainers}
    assert reached == {"body": ("digit", "parity"), "digit": ("digit",), "parity": ("parity",)}
    assert "balanced" not in str(plan_of(two_heads(), None))
