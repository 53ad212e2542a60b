"""Random numbers have the distributions that MXNet's have."""

import pytest
import torch

from multifit.gluon.compat import mx
from multifit.torch.translate import translate

S = mx.sym


@pytest.mark.parametrize(
    ("make", "mean", "deviation"),
    [
        (lambda x: S.random.uniform(1, 3, shape=(100, 100)), 2, 3**-0.5),
        (lambda x: S.random.normal(1, 3, shape=(100, 100)), 1, 3),
        (lambda x: S.random.uniform_like(x, low=1, high=3), 2, 3**-0.5),
        (lambda x: S.random.normal_like(x, loc=1, scale=3), 1, 3),
    ],
)
def test_mean_and_deviation(make, mean, deviation):
    x = S.var("x")
    module = translate(S.Group([make(x), x]).tojson(), ["x"], {})
    torch.manual_seed(0)
    numbers, _ = module(torch.zeros(100, 100))
    assert numbers.mean().item() == pytest.approx(mean, abs=0.1)
    assert numbers.std().item() == pytest.approx(deviation, rel=0.03)
    assert not torch.equal(module(torch.zeros(100, 100))[0], numbers)
