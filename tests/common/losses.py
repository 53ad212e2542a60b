"""Small losses of a user's own."""

from typing import Any

import multifit  # noqa: F401  (before mxnet: Python 3.12 needs that)

from mxnet import gluon  # isort: skip

PARTS = ("mean", "sample", "all")


class SquaredError(gluon.HybridBlock):
    """The squared error, of the form that `axes` gives: "none" for (N, T), 0 for (N,), None for a scalar."""

    def __init__(self, axes: Any) -> None:
        super().__init__()
        self.axes = axes

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        loss = F.square(out - y)
        return loss if self.axes == "none" else F.mean(loss, axis=self.axes, exclude=self.axes is not None)


class Parts(gluon.HybridBlock):
    """The squared error in three forms, named PARTS: a scalar, (N,) and (N, T)."""

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        error = F.square(out - y)
        return F.mean(error), F.mean(error, axis=0, exclude=True), error
