"""What handlers freeze and unfreeze within a fit: honoured at the next batch, as by hand, and resumed."""

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    MultiEstimator,
    TrainerError,
    TrainerSpec,
)
from multifit.balance import DWA, MGDA
from tests.common.compare import assert_same_parameters, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO, pairwise
from tests.common.hand_loop import ADAM, SILENT
from tests.common.handlers import CutsPower, Freezes, PowerCut, freeze
from tests.common.nets import hybridized
from tests.common.shared_nets import two_heads, two_losses
from tests.common.specs import digit_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

SGD = TrainerSpec(".*", "sgd", {"learning_rate": 0.05})
BATCHES = digit_batches([12, 12, 7, 12])
# what is frozen from a step on; 4 begins an epoch
FREEZES = {0: "body.*", 4: "", 6: "digit.*|body.bias", 9: "digit.bias"}
EPOCHS = 3
PARTS = {"heads": "(digit|parity).*", "body": "body.*"}


def by_hand(net: Any, trainers: list[Any], freezes: dict[int, str], every: int) -> None:
    samples = 0
    for step in range(EPOCHS * len(BATCHES)):
        if step in freezes:
            freeze(net, freezes[step], "write" if every == 1 else "add")
        x, *labels = map(nd.array, BATCHES[step % len(BATCHES)])
        with autograd.record():
            loss = two_losses(net, x, *labels)
        loss.backward()
        samples += len(x)
        if (step + 1) % every == 0:
            for trainer in trainers:
                trainer.step(samples, ignore_stale_grad=True)
            samples = 0
            for parameter in net.collect_params().values() if every > 1 else ():
                parameter.zero_grad()


def selected(net: Any, pattern: str) -> list[Any]:
    named = net._collect_params_with_prefix()
    return [parameter for name, parameter in named.items() if re.fullmatch(pattern, name)]


@pairwise("declared", ["trainer", "several", "accumulate", "accumulate all"])
def test_what_a_handler_freezes_and_unfreezes_is_trained_as_by_hand(
    declared: str, devices: list, hybrid: bool
) -> None:
    hand, net = twins(two_heads, BATCHES[0][0])
    net.collect_params().reset_ctx(devices)
    every = 2 if declared.startswith("accumulate") else 1
    patterns = PARTS if declared == "several" else {"all": ".*"}
    by_hand_trainers = [gluon.Trainer(selected(hand, each), "adam", ADAM) for each in patterns.values()]
    by_hand(hand, by_hand_trainers, FREEZES, every)
    options = {"every": 2, "accumulate": True} if declared == "accumulate" else {}
    trainers: dict[str, Any] = {
        name: gluon.Trainer(selected(net, pattern), "adam", ADAM)
        if declared in ("trainer", "accumulate all")
        else TrainerSpec(pattern, "adam", ADAM, **options)
        for name, pattern in patterns.items()
    }
    accumulate = 2 if declared == "accumulate all" else 1
    net = hybridized(net, hybrid)
    estimator = MultiEstimator(net, digit_spec(), trainers, devices, accumulate=accumulate)
    estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*SILENT, Freezes(FREEZES)])
    assert_same_parameters(net, hand)
    assert {name for name, p in estimator.parameters.items() if p.grad_req == "null"} == {"digit.bias"}
    assert {p.grad_req for p in estimator.parameters.values()} == {"null", "write"}


def test_a_block_of_static_shape_is_traced_again() -> None:
    """Its graph would go on writing gradients to the arrays of before."""
    hand, net = twins(two_heads, BATCHES[0][0])
    net.body.hybridize(static_alloc=True, static_shape=True)
    by_hand(hand, [gluon.Trainer(hand.collect_params(), "adam", ADAM)], FREEZES, every=1)
    estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", "adam", ADAM))
    estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*SILENT, Freezes(FREEZES)])
    assert_same_parameters(net, hand)


@pytest.mark.parametrize("balance", [DWA(), MGDA(on="parameters")], ids=["DWA", "MGDA of parameters"])
def test_methods_of_balancing_compare_what_is_trained(balance: Any) -> None:
    """Frozen in epoch 2 by a handler, or in a second estimator by name: the same values."""
    nets = twins(two_heads, BATCHES[0][0])
    for net, handlers in zip(nets, ([Freezes({4: ".*bias"})], [])):
        estimator = MultiEstimator(hybridized(net), digit_spec(), SGD, balance=copy.deepcopy(balance))
        estimator.fit(BATCHES, epochs=2 if handlers else 1, event_handlers=[*SILENT, *handlers])
    before = snapshot(nets[1])
    estimator = MultiEstimator(nets[1], digit_spec(), SGD, frozen=[".*bias"], balance=copy.deepcopy(balance))
    estimator.fit(BATCHES, epochs=1, event_handlers=SILENT)
    assert_same_parameters(*nets)
    after = snapshot(nets[1])
    assert {name for name in before if (after[name] == before[name]).all()} == {
        name for name in before if "bias" in name
    }


@pytest.mark.parametrize(("declared", "stop"), [("spec", 4), ("accumulate", 10), ("trainer", 7)])
def test_it_resumes_with_what_was_frozen(tmp_path: Path, stop: int, declared: str) -> None:
    """At 4, an epoch has ended; the others are in the middle of one."""
    ends = []
    for steps in (None, stop):
        folder = tmp_path / str(steps)
        for resume in (None, folder) if steps else (None,):
            mx.random.seed(1)
            net = twins(two_heads, BATCHES[0][0])[0]
            rhythm = {"every": 3, "accumulate": True} if declared == "accumulate" else {}
            trainer, devices = TrainerSpec(".*", "adam", ADAM, **rhythm), ONE
            if declared == "trainer":
                devices = TWO
                net.collect_params().reset_ctx(devices)
                trainer = gluon.Trainer(hybridized(net).collect_params(), "adam", ADAM)
            estimator = MultiEstimator(net, digit_spec(), trainer, devices)
            handlers = [*SILENT, Freezes(FREEZES), CheckpointHandler(folder, every=Every(1, "batch"))]
            if steps and resume is None:
                with pytest.raises(PowerCut):
                    estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*handlers, CutsPower(steps)])
            else:
                estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=handlers, resume=resume)
        ends.append(snapshot(net))
        assert {p.grad_req for p in net.collect_params().values()} == {"null", "write"}
    for name, value in ends[0].items():
        np.testing.assert_array_equal(ends[1][name], value, err_msg=name)


def test_what_no_batch_reaches_cannot_be_unfrozen() -> None:
    net = twins(two_heads, BATCHES[0][0])[0]
    net.spare = gluon.nn.Dense(1)
    net.spare.initialize()
    freeze(net, "spare.*")
    with pytest.raises(TrainerError, match='the forward pass never reached "spare.weight"'):
        MultiEstimator(net, digit_spec(), SGD).fit(
            BATCHES, epochs=1, event_handlers=[*SILENT, Freezes({2: ""})]
        )
