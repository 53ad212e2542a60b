"""Weights of classes and samples with PyTorch: one step is that of the loop written by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.common.weighted_losses import CASES, Case, step, step_by_hand

from mxnet import gluon  # isort: skip


def traced(case: Case) -> Case:
    """Return the case with a function as a hybridized Block, which PyTorch needs."""
    fn = case.fn
    if fn is None or isinstance(fn, gluon.Block):
        return case
    block: Any = gluon.nn.HybridLambda(lambda F, *arrays: fn(*arrays))
    block.hybridize()
    return replace(case, fn=block)


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_the_loop_by_hand(name: str) -> None:
    parameters, figures = step(traced(CASES[name]), engine="torch", context="cpu")
    expected, loss = step_by_hand(CASES[name])
    np.testing.assert_allclose(figures["train_l"][0], loss, rtol=1e-8)
    for ours, by_hand in zip(parameters, expected):
        np.testing.assert_allclose(ours, by_hand, rtol=1e-7, atol=1e-9)
