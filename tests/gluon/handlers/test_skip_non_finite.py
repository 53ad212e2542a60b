"""SkipNonFinite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, TaskSpec, TrainerSpec
from multifit.gluon.handlers import SkipNonFinite
from multifit.gluon.handlers.skip_non_finite import CHUNK, _all_finite

import mxnet as mx  # isort: skip
from mxnet import gluon
from mxnet.gluon import nn

from .training import fit, values


class Poison:
    """Puts a value into one gradient of one trainer, in the batches named."""

    def __init__(self, value: float, steps: Any, trainer: str = "trainer") -> None:
        self.value, self.steps, self.trainer = value, steps, trainer

    def change_gradients(self, estimator: Any) -> None:
        if estimator.state.step in self.steps:
            *_, last = estimator.gradients()[self.trainer].values()
            for gradient in last:
                gradient[0] = self.value


class Hold:
    """Holds the update of the batches named."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps

    def hold_update(self, estimator: Any) -> bool:
        return estimator.state.step in self.steps


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_batch_with_non_finite_gradients_updates_nothing(log: Any, devices: int, value: float) -> None:
    ours = fit([SkipNonFinite(), Poison(value, {1, 2, 6})], devices=devices)
    theirs = fit(Hold({1, 2, 6}), devices=devices)
    for one, other in zip(values(ours), values(theirs)):
        np.testing.assert_array_equal(one, other)
    end = "had gradients that were not finite and were set to 0"
    assert log() == [
        f'2 of 4 updates of the trainer "trainer" in epoch 1 {end}',
        f'1 of 4 updates of the trainer "trainer" in epoch 2 {end}',
    ]


def test_finite_gradients_are_not_changed(log: Any) -> None:
    for one, other in zip(values(fit([SkipNonFinite(), Poison(1e18, {3})])), values(fit(Poison(1e18, {3})))):
        np.testing.assert_array_equal(one, other)
    assert log() == []


def test_trainers_are_checked_one_by_one(log: Any) -> None:
    def trainers(head: float) -> Any:
        rates = {"body": ("0.*", 0.1), "head": ("1.*", head)}
        return {n: TrainerSpec(which, "sgd", {"learning_rate": r}) for n, (which, r) in rates.items()}

    handlers = [SkipNonFinite(), Poison(np.nan, set(range(8)), "head")]
    ours, theirs = fit(handlers, trainers=trainers(0.1)), fit(trainers=trainers(0.0))
    for one, other in zip(values(ours), values(theirs)):
        np.testing.assert_array_equal(one, other)
    assert ["4 of 4" in line and '"head"' in line for line in log()] == [True, True]


def test_sparse_gradients() -> None:
    def net() -> Any:
        mx.random.seed(1)
        found = nn.Sequential()
        found.add(nn.Embedding(5, 4, sparse_grad=True), nn.Dense(3, in_units=4))
        found.initialize()
        return found

    spec = TaskSpec(["y"], ["label"], {"ce": LossSpec(gluon.loss.SoftmaxCELoss(), "y", "label")})
    data = [(mx.nd.array([[0], [1]]), mx.nd.array([2, 0]))] * 3
    what = {"spec": spec, "data": data, "epochs": 1}
    ours = fit([SkipNonFinite(), Poison(np.nan, {1})], net=net(), **what)
    theirs = fit(Hold({1}), net=net(), **what)
    for one, other in zip(values(ours), values(theirs)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("bad", [None, 0, CHUNK - 1, CHUNK, CHUNK + 60])
def test_many_gradients_of_several_types(bad: int | None) -> None:
    arrays = [mx.nd.ones((2,), dtype="float16" if i % 5 == 0 else "float32") for i in range(2 * CHUNK)]
    if bad is not None:
        arrays[bad][1] = np.nan
    assert _all_finite(arrays).asscalar() == (bad is None)


def test_counts_continue_from_a_checkpoint(log: Any) -> None:
    first, second = SkipNonFinite(), SkipNonFinite()
    state = {}

    class Keep:
        def batch_end(self, estimator: Any) -> None:
            if estimator.state.step == 2:
                state.update(first.state_dict())

    fit([first, Poison(np.nan, {0, 1}), Keep()], epochs=None, batches=2)

    class Load:
        def batch_begin(self, estimator: Any) -> None:
            if estimator.state.step == 0:
                second.load_state_dict(state)

    fit([second, Poison(np.nan, {1}), Load()], epochs=None, batches=2)
    assert log()[-1].startswith("3 of 4 updates")
