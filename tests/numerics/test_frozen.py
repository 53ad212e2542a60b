"""What is frozen and unfrozen within a fit or between fits: honoured at the next batch, and resumed."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from multifit import CheckpointHandler, Every, MultiEstimator, TrainerError, TrainerSpec
from multifit.balance import DWA, MGDA
from tests.common.compare import assert_same_parameters, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO, in_turn, pairwise
from tests.common.hand_loop import ADAM, SILENT
from tests.common.handlers import Freezes, freeze
from tests.common.nets import hybridized
from tests.common.resuming import assert_resumes_bit_for_bit
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


def by_hand(net: Any, trainers: list[Any], freezes: dict[int, str], every: int = 1) -> None:
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


def trainer(net: Any, pattern: str, options: Any = None) -> Any:
    named = net._collect_params_with_prefix()
    chosen = [parameter for name, parameter in named.items() if re.fullmatch(pattern, name)]
    return gluon.Trainer(chosen, "adam", options or ADAM)


@in_turn("declared", ["trainer", "several", "accumulate", "accumulate all"])
def test_what_a_handler_freezes_and_unfreezes_is_trained_as_by_hand(declared, devices, hybrid) -> None:
    hand, net = twins(two_heads, BATCHES[0][0])
    net.collect_params().reset_ctx(devices)
    every = 2 if declared.startswith("accumulate") else 1
    patterns = PARTS if declared == "several" else {"all": ".*"}
    by_hand(hand, [trainer(hand, each) for each in patterns.values()], FREEZES, every)
    options = {"every": 2, "accumulate": True} if declared == "accumulate" else {}
    trainers: dict[str, Any] = {
        name: trainer(net, pattern)
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
    by_hand(hand, [trainer(hand, ".*")], FREEZES)
    estimator = MultiEstimator(net, digit_spec(), TrainerSpec(".*", "adam", ADAM))
    estimator.fit(BATCHES, epochs=EPOCHS, event_handlers=[*SILENT, Freezes(FREEZES)])
    assert_same_parameters(net, hand)


@pairwise("declared", ["a Trainer", "several"])
def test_what_becomes_trainable_between_fits_is_trained(declared: str, devices: list, hybrid: bool) -> None:
    """Moments, counts and schedules go on, also those of parameters that were frozen for a while."""
    hand, net = twins(two_heads, BATCHES[0][0])
    net.collect_params().reset_ctx(devices)

    def options() -> dict[str, Any]:
        if len(devices) > 1:  # where counts differ, MXNet's own trainer asks a schedule once for each device
            return ADAM
        return {"lr_scheduler": mx.lr_scheduler.FactorScheduler(step=3, factor=0.7, base_lr=0.01), **ADAM}

    patterns = PARTS if declared == "several" else {"all": ".*"}
    fits = ("body.bias", "body.*", "")
    freezes = {step * len(BATCHES): pattern for step, pattern in enumerate(fits)}
    by_hand(hand, [trainer(hand, each, options()) for each in patterns.values()], freezes)
    trainers = {
        name: trainer(net, pattern, options())
        if declared == "a Trainer"
        else TrainerSpec(pattern, "adam", options())
        for name, pattern in patterns.items()
    }
    estimator = MultiEstimator(hybridized(net, hybrid), digit_spec(), trainers, devices)
    for pattern in fits:
        freeze(net, pattern)
        estimator.fit(BATCHES, epochs=1, event_handlers=SILENT)
        trained = {name for name, p in estimator.parameters.items() if p.grad_req != "null"}
        assert {name for each in estimator.plan.trainers for name in each.parameters} == trained
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
    assert {n for n in before if (after[n] == before[n]).all()} == {n for n in before if "bias" in n}


@pytest.mark.parametrize(("declared", "stop"), [("spec", 4), ("accumulate", 7), ("trainer", 7)])
def test_it_resumes_with_what_was_frozen(tmp_path: Path, stop: int, declared: str) -> None:
    """At 4, an epoch has ended; the others are in the middle of one."""

    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        mx.random.seed(1)
        net, devices = twins(two_heads, BATCHES[0][0])[0], TWO if declared == "trainer" else ONE
        rhythm = {"every": 3, "accumulate": True} if declared == "accumulate" else {}
        trainers: Any = TrainerSpec(".*", "adam", ADAM, **rhythm)
        if declared == "trainer":
            net.collect_params().reset_ctx(devices)
            trainers = trainer(hybridized(net), ".*")
        estimator = MultiEstimator(net, digit_spec(), trainers, devices)
        saving = CheckpointHandler(folder, every=Every(stop, "batch"))
        handlers = [*SILENT, Freezes({0: "body.*", 4: "", 6: "digit.*|body.bias"}), saving, *handlers]
        estimator.fit(BATCHES, epochs=2, event_handlers=handlers, **options)
        assert {p.grad_req for p in net.collect_params().values()} == {"null", "write"}
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, stop)


def test_what_no_batch_reaches_cannot_be_unfrozen() -> None:
    net = twins(two_heads, BATCHES[0][0])[0]
    net.spare = gluon.nn.Dense(1)
    net.spare.initialize()
    freeze(net, "spare.*")
    with pytest.raises(TrainerError, match='the forward pass never reached "spare.weight"'):
        train = MultiEstimator(net, digit_spec(), SGD).fit
        train(BATCHES, epochs=1, event_handlers=[*SILENT, Freezes({2: ""})])
