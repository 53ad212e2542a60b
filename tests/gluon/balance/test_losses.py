"""Methods that need losses only: equal to a loop by hand, without waiting."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, LabelSpec, LossSpec, MultiEstimator, SpecError, TrainerSpec
from multifit.balance import DWA, FAMO, GLS, IMTLL, RLW, STCH, LossMethod, Uncertainty
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO, pairwise
from tests.common.hand_loop import SGD, SILENT
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import two_heads
from tests.common.specs import BCE, CE, digit_spec
from tests.gluon.balance.by_hand import BATCHES, EVEN, ByHand, fitted
from tests.numerics.test_waiting import Waits, placed, waits  # noqa: F401

from mxnet.gluon import nn  # isort: skip


class Halving(LossMethod):
    """A user's own method in NumPy, which counts its batches."""

    on_device = False

    def start(self, tasks: int) -> dict:
        return {"batches": 0}

    def weights(self, measured: Any, state: dict) -> tuple:
        count = state["batches"] + 1
        return 1 / (measured.losses + count), {"batches": count}


class LookingBack(Halving):
    """A user's own method that sees the losses after the update, too, and counts how often it does."""

    looks = 0

    def after_update(self, measured: Any, after: Any, state: dict) -> dict:
        type(self).looks += 1
        return {"batches": state["batches"] + float(after[0] < measured.losses[0])}


class Constant(LossMethod):
    """A user's own method that needs nothing, on the device."""

    needs = "nothing"

    def weights(self, measured: Any, state: dict) -> tuple:
        return measured.losses * 0.25, state


METHODS = {
    "Uncertainty": Uncertainty(learning_rate=0.1),
    "Uncertainty, sgd": Uncertainty(learning_rate=0.1, optimizer="sgd"),
    "IMTLL": IMTLL(learning_rate=0.1),
    "DWA": DWA(),
    "RLW": RLW(seed=3),
    "GLS": GLS(),
    "GLS, every other batch": GLS(every=2),
    "STCH": STCH(mu=0.5),
    "FAMO": FAMO(learning_rate=0.5),
    "FAMO, every other batch": FAMO(learning_rate=0.5, every=2),
    "a user's own": Halving(),
    "a user's own that looks back": LookingBack(),
}


def normed() -> Heads:
    return Heads(body=sequential(nn.Dense(8, activation="relu"), nn.BatchNorm()), digit=5, parity=1)


PLAIN = ["FAMO", "a user's own that looks back"]  # nets that are not hybridized


@pytest.mark.parametrize(
    ("name", "hybrid"), [*((name, True) for name in METHODS), *((name, False) for name in PLAIN)]
)
def test_a_fit_is_the_loop_by_hand(name: str, hybrid: bool) -> None:
    method = METHODS[name]
    hand, net = twins(normed, BATCHES[0][0])
    epochs = {"DWA": 3, "STCH": 2}.get(name, 1)  # so many are there before the weights are not equal
    by_hand = ByHand(hand, method, BATCHES[1:], epochs).epochs
    history = fitted(hybridized(net, hybrid), method, BATCHES[1:], epochs).history
    assert_same_parameters(net, hand)
    for task, figure in enumerate(("train_weight_digit", "train_weight_parity")):
        expected = [np.mean([weights[task] for weights in epoch]) for epoch in by_hand]
        np.testing.assert_allclose(history[figure], expected, rtol=1e-4)


def own(out: Any, label: Any) -> Any:
    return BCE(out, label)


# Spec and options of the estimator, and of the loop by hand.
OTHERS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "traced": (IMTLL(learning_rate=0.1), {}, {}),
    "operator by operator": (
        IMTLL(learning_rate=0.1),
        {"spec": digit_spec(losses={"digit": CE, "parity": LossSpec(own, weight=0.5)})}, {},
    ),
    "accumulated, each weighed by itself": (GLS(), {"accumulate": 2}, {"window": 2}),
    "nothing is needed": (Constant(), {}, {}),
}  # fmt: skip


@pairwise("name", OTHERS)
def test_on_several_devices_and_for_all_sorts_of_losses(name: str, devices: list, hybrid: bool) -> None:
    method, options, by_hand = OTHERS[name]
    hand, net = twins(two_heads, EVEN[0][0])
    ByHand(hand, method, EVEN, **by_hand)
    fitted(hybridized(net, hybrid), method, EVEN, 1, devices, **options)
    assert_same_parameters(net, hand)


def test_a_method_looks_back_at_batches_that_devices_share_unequally() -> None:
    batches = digit_batches([8, 5, 3])
    one, two = twins(two_heads, batches[0][0])
    for net, devices in ((one, None), (two, TWO)):
        fitted(hybridized(net), FAMO(learning_rate=0.5), batches, 2, devices)
    assert_same_parameters(two, one)


@pytest.mark.parametrize(
    ("method", "devices", "missing"),
    [
        (Uncertainty(), TWO, None), (DWA(), None, None), (RLW(), None, -1), (GLS(every=2), TWO, -1),
        (STCH(), None, -1), (Constant(), None, -1),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_nothing_waits(method: Any, devices: Any, missing: Any, waits: Waits) -> None:  # noqa: F811
    """Neither for weights nor to know whether labels are missing."""
    spec = digit_spec(labels=[LabelSpec("digit", missing=missing), "parity"])
    batches = placed(digit_batches([8] * 8))
    fitted(hybridized(two_heads()), method, batches, 1, devices, handlers=[waits], spec=spec)
    assert waits.count == 0


@pytest.mark.parametrize(
    ("rhythms", "looks"),
    [([{"every": 2}], 4), ([{"every": 2, "accumulate": True}, {"every": 4}], 4), ([{"every": 2}, {}], 8)],
)
def test_a_method_looks_back_only_where_a_trainer_has_updated(rhythms: list, looks: int) -> None:
    patterns = [".*"] if len(rhythms) == 1 else ["body.*", "(digit|parity).*"]
    trainers = {each: TrainerSpec(each, "sgd", SGD, **rhythm) for each, rhythm in zip(patterns, rhythms)}
    LookingBack.looks = 0
    fitted(two_heads(), LookingBack(), digit_batches([8] * 8), trainers=trainers)
    assert LookingBack.looks == looks


def test_another_method_is_another_run(tmp_path: Path) -> None:
    def run(method: Any, **options: Any) -> None:
        estimator = MultiEstimator(two_heads(), digit_spec(), balance=method)
        estimator.fit(BATCHES, epochs=1, event_handlers=[*SILENT, CheckpointHandler(tmp_path)], **options)

    run(DWA())
    for method, message in (
        (None, 'balance: {"method": "DWA"'),
        (GLS(), 'balance.method: "DWA" in the checkpoint, "GLS" here'),
        (DWA(temperature=3), 'balance.options["temperature"]: 2.0 in the checkpoint, 3.0 here'),
        (DWA(tasks={"all": ["digit"]}), "balance.tasks"),
    ):
        with pytest.raises(SpecError) as raised:
            run(method, resume=tmp_path)
        assert message in str(raised.value)
