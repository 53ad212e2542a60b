"""Trainers that do not update after every batch."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerError, TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import ADAM, SGD, SILENT, train
from tests.common.nets import hybridized, sequential
from tests.common.shared_nets import two_heads, two_losses
from tests.common.specs import L2, digit_spec, one_loss_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

BATCHES = digit_batches([12, 12, 12, 7, 12, 1, 12, 12])
HEADS = "(digit|parity).*"


def trainers(every: int, accumulate: bool = False, **options: Any) -> dict[str, TrainerSpec]:
    return {
        "body": TrainerSpec("body.*", "sgd", SGD, every=every, accumulate=accumulate, **options),
        "heads": TrainerSpec(HEADS, "adam", ADAM),
    }


def train_by_hand(net: Any, every: int, norm: float | None) -> None:
    body = net.body.collect_params()
    heads = [*net.digit.collect_params().values(), *net.parity.collect_params().values()]
    body_trainer, head_trainer = gluon.Trainer(body, "sgd", SGD), gluon.Trainer(heads, "adam", ADAM)
    for number, batch in enumerate(BATCHES, 1):
        with autograd.record():
            loss = two_losses(net, *map(nd.array, batch)).sum()
        loss.backward()
        head_trainer.step(len(batch[0]))
        if number % every == 0:
            if norm is not None:
                gluon.utils.clip_global_norm([p.grad() for p in body.values()], norm * len(batch[0]))
            body_trainer.step(len(batch[0]))


@pytest.mark.parametrize(
    ("every", "norm", "devices", "how"),
    [(3, None, TWO, "write"), (2, 0.05, ONE, "write"), (3, None, ONE, "add")],
)
def test_equals_a_loop_by_hand(every: int, norm: Any, devices: list, how: str) -> None:
    """Clipping sees the gradients that are used; gradients that the user adds up are discarded too."""
    hand, net = twins(two_heads, BATCHES[0][0])
    train_by_hand(hand, every, norm)
    net.collect_params().setattr("grad_req", how)
    train(hybridized(net, norm is None), digit_spec(), BATCHES, devices, trainers(every, clip_norm=norm))
    assert_same_parameters(net, hand)


@pytest.mark.parametrize("accumulate", [False, True])
def test_several_fits_equal_one(accumulate: bool) -> None:
    """Gradients are computed in between, and fits end where trainers do not wait, or discard gradients."""
    one, other = twins(two_heads, BATCHES[0][0])
    train(one, digit_spec(), BATCHES, ONE, trainers(3, accumulate))
    estimator = MultiEstimator(other, digit_spec(), trainers(3, accumulate))
    parts = BATCHES[:3], BATCHES[3:6], BATCHES[6:]
    for part in parts if accumulate else (BATCHES[:2], BATCHES[2:7], BATCHES[7:]):
        estimator.fit(part, epochs=1, event_handlers=SILENT)
        assert {p.grad_req for p in other.collect_params().values()} == {"write"}
        with autograd.record():
            loss = sum(output.sum() for output in other(nd.array(BATCHES[0][0])))
        loss.backward()
        estimator.find_learning_rate(BATCHES * 2, batches=10)
    assert_same_parameters(one, other, rtol=0, atol=0)


def test_a_schedule_counts_the_trainers_own_updates() -> None:
    schedule = mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=1.0)
    declared = {
        "body": TrainerSpec("body.*", "sgd", lr_scheduler=schedule, every=3),
        "heads": TrainerSpec(HEADS, "sgd", lr_scheduler=schedule),
    }
    estimator = train(two_heads(), digit_spec(), BATCHES, ONE, declared)
    rows = [trainer.row()[3] for trainer in estimator.plan.trainers]
    assert rows[0].startswith("SGD, learning rate 1, every 3 batches: ") and "every" not in rows[1]
    updates = {name: trainer.optimizer.num_update for name, trainer in estimator.trainers.items()}
    assert updates == {"body": 2, "heads": 8}
    assert estimator.learning_rates() == {"lr_body": 0.5, "lr_heads": 0.5**7}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, r'trainers\["body"\]: every is 0; valid is a whole number of at least 1'),
        ({"accumulate": 2}, "accumulate is 2; valid is True or False"),
    ],
)
def test_wrong_rhythms_are_refused(options: Any, text: str) -> None:
    declared = {"body": TrainerSpec("body.*", "sgd", **options), "heads": TrainerSpec(HEADS)}
    with pytest.raises(TrainerError, match=text):
        MultiEstimator(two_heads(), digit_spec(), declared).fit(BATCHES, epochs=1)


def test_sparse_gradients_cannot_be_added() -> None:
    net = sequential(nn.Embedding(6, 2, sparse_grad=True), nn.Dense(2))
    words = np.array([[1, 2], [3, 4]], "float32"), np.ones((2, 2), "float32")
    for options in ({}, {"accumulate": True}):
        estimator = MultiEstimator(net, one_loss_spec(L2), TrainerSpec(".*", "sgd", every=2, **options))
        error = pytest.raises(TrainerError, match='of 2 batches, but those of "0.weight" are sparse')
        with error if options else nullcontext():
            estimator.fit([words] * 2, epochs=1, event_handlers=SILENT)
