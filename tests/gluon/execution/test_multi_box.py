"""SSD's loss as a graph of ours equals gluoncv's, in values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gluoncv.loss import SSDMultiBoxLoss

from multifit.gluon.compat import mx
from multifit.gluon.execution.multi_box import multi_box_loss

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all options": {"min_hard_negatives": 2, "negative_mining_ratio": 1.5, "rho": 0.3, "lambd": 2.0},
}


def computed(function: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the sums of all parts, and the gradients of scores and offsets."""
    given = [mx.nd.array(array) for array in arrays]
    for array in given[:2]:
        array.attach_grad()
    with mx.autograd.record():
        parts = function(*[[array] for array in given])
        total = parts[0][0].sum()
    total.backward()
    return [*[part[0].sum().asnumpy() for part in parts], *[array.grad.asnumpy() for array in given[:2]]]


@pytest.mark.parametrize("matched", [0.4, 0.0])
@pytest.mark.parametrize("options", OPTIONS)
def test_equals_gluoncvs_loss(options: str, matched: float) -> None:
    loss, random = SSDMultiBoxLoss(**OPTIONS[options]), np.random.RandomState(0)
    classes = random.randint(0, 4, (3, 9)) * (random.rand(3, 9) < matched)
    arrays = [random.randn(3, 9, 4), random.randn(3, 36), classes, random.randn(3, 9, 4)]
    one = computed(loss, arrays)
    other = computed(lambda *lists: multi_box_loss(loss, mx.nd, *lists), arrays)
    for ours, theirs in zip(other, one):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)
