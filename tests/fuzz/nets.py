"""Nets of a case, by kind: right ones, and ones that return something else, at once or later."""

from collections.abc import Callable
from typing import Any

import multifit  # noqa: F401  (before mxnet: Python 3.12 needs that)

import mxnet as mx  # isort: skip
from mxnet import gluon, nd

from .values import later, loop, returning


class Tiny(gluon.HybridBlock):
    """x (N, 4) -> p (N, 3), q (N, 1), with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = gluon.nn.BatchNorm(in_channels=4)
        self.p, self.q = gluon.nn.Dense(3, in_units=4), gluon.nn.Dense(1, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        hidden = self.norm(x)
        return self.p(hidden), self.q(hidden)


class Plain(gluon.Block):
    """The same as a Block, whose outputs a function may replace."""

    def __init__(self, function: Callable[..., Any] = lambda p, q: (p, q)) -> None:
        super().__init__()
        self.tiny, self.function = Tiny(), function

    def forward(self, x: Any) -> Any:
        return self.function(*self.tiny(x))


def net(kind: Any = "plain") -> Any:
    """Return a net by its kind; another value is returned as it is."""
    if not isinstance(kind, str) or kind not in NETS:
        return kind
    block = NETS[kind]()
    if kind != "deferred":
        block.initialize(mx.init.One())
    return block


def _hybridized() -> Any:
    block = Tiny()
    block.hybridize()
    return block


def both(p: Any, q: Any) -> Any:
    return p, q


NETS: dict[str, Callable[[], Any]] = {
    "plain": Plain, "hybrid": Tiny, "hybridized": _hybridized, "deferred": Plain,
    "one output": lambda: Plain(lambda p, q: p), "three outputs": lambda: Plain(lambda p, q: (p, q, q)),
    "a dict": lambda: Plain(lambda p, q: {"p": p, "q": q}), "nested": lambda: Plain(lambda p, q: (p, [q])),
    "none": lambda: Plain(returning(None)), "a number": lambda: Plain(returning(1.0)),
    "an array": lambda: Plain(lambda p, q: (p.asnumpy(), q)), "!loop": lambda: Plain(returning(loop())),
    "raises": lambda: Plain(lambda p, q: 1 / 0),
    "raises later": lambda: Plain(later(both, lambda p, q: 1 / 0)),
    "tuple of three later": lambda: Plain(later(both, lambda p, q: (p, q, q))),
    "!none later": lambda: Plain(later(both, returning(None))),
    "!text later": lambda: Plain(later(both, lambda p, q: (p, "text"))),
    "one output later": lambda: Plain(later(both, lambda p, q: p)),
    "fewer rows later": lambda: Plain(later(both, lambda p, q: (p[:3], q))),
    "another width later": lambda: Plain(later(both, lambda p, q: (nd.concat(p, p), q))),
    "scalar": lambda: Plain(lambda p, q: (p, nd.mean(q))), "no parameters": gluon.nn.Flatten,
    "empty": gluon.nn.HybridSequential, "detached": lambda: Plain(lambda p, q: (p.detach(), q.detach())),
    "two inputs": lambda: gluon.nn.HybridLambda(lambda F, a, b: (a, b)),
}  # fmt: skip
