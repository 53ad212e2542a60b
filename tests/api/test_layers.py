"""check(layers=True) lists the net's blocks, what they return and their parameters."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec
from tests.common.compare import assert_unchanged, snapshot
from tests.common.grids import two_settings
from tests.common.nets import hybridized, normed_heads, two_heads
from tests.common.specs import CE, two_head_spec

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip


def layers(estimator: MultiEstimator, batches: Any) -> dict[str, tuple[str, str, int]]:
    return {each.name: each[1:] for each in estimator.check(batches, layers=True).layers}


@two_settings
def test_each_block_is_listed(devices: Any, hybrid: bool, batches: Any) -> None:
    net = hybridized(two_heads("hybrid" if hybrid else "plain"), hybrid)
    estimator = MultiEstimator(net, two_head_spec(), context=devices)
    size = len(batches[0][0]) // len(devices)  # of one device's share
    assert layers(estimator, batches) == {
        "body": ("Dense", f"({size}, 8) float32", 56),
        "body.act": ("Activation", f"({size}, 8) float32", 0),
        "digit": ("Dense", f"({size}, 3) float32", 27),
        "size": ("Dense", f"({size}, 1) float32", 9),
    }
    assert estimator.check(batches).layers == ()


def test_it_moves_nothing_and_training_runs_as_without_it(batches: Any) -> None:
    """Neither running statistics nor graphs change, though blocks are called one by one."""
    nets = []
    for checked in (False, True):
        mx.random.seed(1)
        net = hybridized(normed_heads())
        estimator = MultiEstimator(net, two_head_spec(), initializer=mx.init.One())
        estimator.fit(batches, epochs=1)
        if checked:
            before = snapshot(net)
            assert "BatchNorm" in {kind for kind, *_ in layers(estimator, batches).values()}
            assert_unchanged(net, before)
        mx.random.seed(2)
        estimator.fit(batches, epochs=1)
        assert net._active and "one graph" in str(estimator.plan)
        nets.append(net)
    assert_unchanged(nets[1], snapshot(nets[0]))


class Odd(mx.gluon.Block):
    """Calls one block twice, another that shares its parameters, one that returns a list, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(4, in_units=4)
        self.same = nn.Dense(4, in_units=4, params=self.first.params)
        self.pair, self.idle = Pair(), nn.Dense(2, in_units=3)
        self.scale = self.params.get("scale", shape=(1,))

    def forward(self, x: Any) -> Any:
        first, second = self.pair(self.same(self.first(self.first(x))))
        return (first + second) * self.scale.data()


class Pair(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return [x, x * 2]


def test_unusual_blocks() -> None:
    net = Odd()
    spec = TaskSpec(outputs=["y"], labels=["label"], losses={"l": LossSpec(CE, "y", "label")})
    estimator = MultiEstimator(net, spec, initializer=mx.init.One(), frozen=["idle.*"])
    batch = np.ones((2, 4), "float32"), np.zeros(2, "float32")
    array = "(2, 4) float32"
    assert layers(estimator, [batch]) == {
        "net": ("Odd", array, 1),
        "first": ("Dense", array, 20),
        "same": ("Dense", array, 0),
        "pair": ("Pair", f"[{array}, {array}]", 0),
        "idle": ("Dense", "-", 8),
    }
    text = estimator.check([batch], layers=True).to_text(100)
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("in all")] == ["29"]


def test_a_net_of_one_layer_and_one_of_symbols() -> None:
    batch = np.ones((2, 4), "float32"), np.zeros(2, "float32")
    assert layers(MultiEstimator(nn.Dense(3), CE), [batch]) == {"net": ("Dense", "(2, 3) float32", 15)}
    data = mx.sym.var("data")
    net = mx.gluon.SymbolBlock(mx.sym.FullyConnected(data, num_hidden=3, name="fc"), data)
    assert layers(MultiEstimator(net, CE), [batch]) == {"net": ("SymbolBlock", "(2, 3) float32", 15)}


def test_a_block_that_fails_leaves_the_net_as_it_was(batches: Any) -> None:
    class Fails(nn.HybridSequential):
        fails = False

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            if self.fails:
                raise ArithmeticError("later")
            return super().hybrid_forward(F, x)

    net = Fails()
    net.add(nn.Dense(3))
    net.hybridize()
    estimator = MultiEstimator(net, CE)
    data = [batch[:2] for batch in batches]
    estimator.check(data)
    net.fails = True
    with pytest.raises(ArithmeticError, match="later"):
        estimator.check(data, layers=True)
    assert net._active and not net._forward_hooks
