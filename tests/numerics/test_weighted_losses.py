"""Weights of classes and samples: one step is that of the loop written by hand."""

from typing import Any

import numpy as np
import pytest

from tests.common.weighted_losses import CASES, step, step_by_hand

import mxnet as mx  # isort: skip

WAYS: dict[str, dict[str, Any]] = {
    "a graph": {},
    "operator by operator, on two devices": {"hybrid": False, "contexts": [mx.cpu(0), mx.cpu(1)]},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_the_loop_by_hand(name: str, way: str) -> None:
    parameters, figures = step(CASES[name], **WAYS[way])
    expected, loss = step_by_hand(CASES[name])
    np.testing.assert_allclose(figures["train_l"][0], loss, rtol=1e-9)
    for ours, by_hand in zip(parameters, expected):
        np.testing.assert_allclose(ours, by_hand, rtol=1e-8, atol=1e-10)
