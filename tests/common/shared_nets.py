"""Nets whose tasks share their parameters in several ways."""

from typing import Any

from multifit import LossSpec, TaskSpec
from tests.common.nets import Heads, hybridized, sequential
from tests.common.specs import BCE, CE, L2, digit_spec

from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip


class Skips(gluon.HybridBlock):
    """Three tasks, of which two share a layer; a skip; a parameter that two places use by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(10, in_units=10), nn.Dense(10, in_units=10, activation="tanh")
        self.pair = nn.Dense(10, in_units=10, activation="tanh")
        self.digit, self.parity = nn.Dense(5, in_units=10), nn.Dense(1, in_units=10)
        self.scale = self.params.get("scale", shape=(1, 10), init="ones")

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        features = self.first(x)
        features = features + self.second(features)
        pair = self.pair(F.broadcast_mul(features, scale))
        size = F.sum(F.broadcast_mul(F.BlockGrad(pair) + features, scale), axis=1, keepdims=True)
        return self.digit(pair), self.parity(pair + F.relu(features)), size


class KMax(gluon.HybridBlock):
    """One head takes the largest features, with their places; both take all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.top = nn.Dense(8, in_units=10), nn.Dense(5, in_units=3)
        self.digit, self.parity = nn.Dense(5, in_units=8), nn.Dense(1, in_units=8)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.body(x)
        values, places = F.topk(features, k=3, ret_typ="both")
        return self.digit(features) + self.top(values * (places + 1)), self.parity(features)


def three_tasks(parity: float = 0.5) -> TaskSpec:
    losses = {
        "digit": CE,
        "parity": LossSpec(BCE, weight=parity),
        "size": LossSpec(L2, "size", "parity", weight=0.1),
    }
    return digit_spec(outputs=["digit", "parity", "size"], losses=losses)


def heads(*layers: Any) -> Any:
    body = sequential(nn.Dense(8, activation="relu", in_units=10), *layers)
    return hybridized(Heads(body=body, digit=5, parity=1))


def two_heads() -> Heads:
    return Heads(digit=5, parity=1)


def two_losses(net: Any, x: Any, digit: Any, parity: Any) -> Any:
    """Return the weighted loss of each sample, as `digit_spec` declares it."""
    digits, parities = net(x)
    return CE(digits, digit) + 0.5 * BCE(parities, parity)


class Alone(gluon.HybridBlock):
    """Two nets in one."""

    def __init__(self) -> None:
        super().__init__()
        self.digit, self.parity = nn.Dense(5), nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.digit(x), self.parity(x)


class Nested(gluon.HybridBlock):
    """Two tasks branch behind a layer that a third one does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.pair = nn.Dense(6, activation="tanh"), nn.Dense(4, activation="tanh")
        self.digit, self.parity, self.size = nn.Dense(5), nn.Dense(1), nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.body(x)
        pair = self.pair(features)
        return self.digit(pair), self.parity(pair), self.size(features)


class Skipping(gluon.HybridBlock):
    """Two heads on features, and on what these are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.neck = nn.Dense(6, in_units=7, activation="tanh")
        self.digit, self.parity = nn.Dense(5, in_units=13), nn.Dense(1, in_units=13)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.neck(x)
        return self.digit(F.concat(features, x)), self.parity(F.concat(x, features))


class Tied(gluon.HybridBlock):
    """One head takes the weight of a layer below the body, with a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.Dense(10, in_units=10, use_bias=False)
        self.body = nn.Dense(10, in_units=10, activation="tanh")
        self.digit = nn.Dense(10, in_units=10, params=self.back.params)
        self.parity = nn.Dense(1, in_units=10)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.body(self.back(x))
        return self.digit(features), self.parity(features)


class Pretrained(gluon.HybridBlock):
    """The same behind a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.rest = nn.Dense(7, in_units=10, activation="tanh"), Skipping()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.rest(self.back(x))


class Chain(gluon.HybridBlock):
    """The first task shares a layer with the second, which shares another one with the third."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Dense(6, activation="tanh"), nn.Dense(6, activation="tanh")
        self.digit, self.parity, self.size = nn.Dense(5), nn.Dense(1), nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        one, other = self.one(x), self.other(x)
        return self.digit(one), self.parity(one + other), self.size(other)
