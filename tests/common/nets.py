"""Small nets that many tests train, and a loss of several parts."""

from collections.abc import Callable
from typing import Any

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

TWO_HEADS = {"digit": 3, "size": 1}


def as_tuple(*outputs: Any) -> tuple[Any, ...]:
    """Return the outputs of the heads as they are."""
    return outputs


class Heads(gluon.HybridBlock):
    """A body of one layer, and a head of one layer for each name: ``Heads(digit=5, parity=1)``.

    `form` makes the net's return value of the heads' outputs; `body` replaces the layer of `hidden` units.
    """

    def __init__(
        self, form: Callable[..., Any] = as_tuple, hidden: int = 8, body: Any = None, **heads: int
    ) -> None:
        super().__init__()
        add_layers(self, form, hidden, body, heads)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.body(image)
        return self.form(*[getattr(self, name)(features) for name in self.names])


class PlainHeads(gluon.Block):
    """The same as a Block; `calls` lists the shape of every batch that it was called with."""

    def __init__(
        self, form: Callable[..., Any] = as_tuple, hidden: int = 8, body: Any = None, **heads: int
    ) -> None:
        super().__init__()
        add_layers(self, form, hidden, body, heads)
        self.calls: list[tuple[int, ...]] = []

    def forward(self, image: Any) -> Any:
        self.calls.append(image.shape)
        features = self.body(image)
        return self.form(*[getattr(self, name)(features) for name in self.names])


class MakesLayer(gluon.HybridBlock):
    """A net that makes its last layer in its first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = gluon.nn.Dense(4)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        if not hasattr(self, "made"):
            self.made = gluon.nn.Dense(3, in_units=4)
            self.made.initialize()
        return self.made(self.body(image))


PARTS = ("mean", "sample", "all")


class Parts(gluon.HybridBlock):
    """The squared error in three forms, named PARTS: a scalar, (N,) and (N, T)."""

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        error = F.square(out - y)
        return F.mean(error), F.mean(error, axis=0, exclude=True), error


def add_layers(net: Any, form: Callable[..., Any], hidden: int, body: Any, heads: dict[str, int]) -> None:
    """Give a net its layers."""
    net.form, net.names = form, list(heads)
    net.body = nn.Dense(hidden, activation="relu", prefix="body_") if body is None else body
    for name, units in heads.items():
        setattr(net, name, nn.Dense(units, prefix=f"{name}_"))


def two_heads(kind: str = "plain") -> Any:
    """Return a net with the heads "digit" and "size"; `kind` is plain, hybrid or hybridized."""
    net = (PlainHeads if kind == "plain" else Heads)(**TWO_HEADS)
    return hybridized(net) if kind == "hybridized" else net


def normed_heads(dropout: float = 0.3) -> Heads:
    """Return two heads on a body with running statistics and dropout."""
    return Heads(
        body=sequential(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dropout(dropout)), **TWO_HEADS
    )


def sequential(*layers: Any) -> Any:
    """Return a HybridSequential of the layers."""
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def mlp(outputs: int, contexts: Any = None, hybrid: bool = True, norm: bool = False, inputs: int = 4) -> Any:
    """Return an initialised net of 4 `inputs`, 5 hidden units and `outputs`, equal each time it is made."""
    mx.random.seed(3)
    normalization = [nn.BatchNorm(in_channels=5)] if norm else []
    net = sequential(
        nn.Dense(5, in_units=inputs, activation="tanh"), *normalization, nn.Dense(outputs, in_units=5)
    )
    net.initialize(mx.init.Xavier(), ctx=contexts)
    return hybridized(net, hybrid)


def hybridized(net: Any, active: bool = True, **flags: Any) -> Any:
    """Hybridize a net if `active`, and return it."""
    if active:
        net.hybridize(**flags)
    return net
