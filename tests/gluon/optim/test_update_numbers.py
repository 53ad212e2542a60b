"""States of optimizers are read and set for another engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit.gluon.compat import mx
from multifit.gluon.optim.handle import TrainerHandle
from multifit.gluon.optim.numbers import UpdateNumbers


@pytest.fixture
def numbers() -> Any:
    parameter = mx.gluon.Parameter("weight", shape=(2,), init="zeros")
    parameter.initialize()
    return UpdateNumbers(TrainerHandle("body", mx.gluon.Trainer([parameter], "adam")), [parameter])


def states(numbers: Any) -> Any:
    return numbers._trainer._updaters[0].states


def test_states_that_fit_keep_their_arrays(numbers: Any) -> None:
    one, two = np.ones(2, "float32"), np.full(2, 2, "float32")
    numbers.set_states([0], [(one, two)])
    before = states(numbers)[0]
    numbers.set_states([0], [(two, one)])
    assert all(mine is other for mine, other in zip(states(numbers)[0], before))
    np.testing.assert_array_equal(numbers.states()[0], [two, one])


@pytest.mark.parametrize("before", [None, "one", "two"])
def test_states_of_another_form_are_replaced(numbers: Any, before: Any) -> None:
    arrays = [mx.nd.zeros(3), mx.nd.zeros(2, dtype="float64")]
    states(numbers)[0] = {None: None, "one": arrays[0], "two": tuple(arrays)}[before]
    new = tuple(np.full(2, number, "float32") for number in (1, 2))
    numbers.set_states([0], [new])
    np.testing.assert_array_equal(numbers.states()[0], new)
    assert all(array.dtype == np.float32 for array in states(numbers)[0])
    assert not any(array.asnumpy().any() for array in arrays)


def test_a_part_of_a_state_may_be_missing(numbers: Any) -> None:
    numbers.set_states([0], [(np.ones(2, "float32"), None)])
    (one, none) = numbers.states()[0]
    assert one.tolist() == [1, 1] and none is None


def test_sparse_states_are_read_and_replaced(numbers: Any) -> None:
    states(numbers)[0] = mx.nd.ones((2, 1)).tostype("row_sparse")
    np.testing.assert_array_equal(numbers.states()[0], np.ones((2, 1)))
    numbers.set_states([0], [np.zeros((2, 1), "float32")])
    np.testing.assert_array_equal(numbers.states()[0], np.zeros((2, 1)))
