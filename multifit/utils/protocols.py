"""Names of types for annotations: MXNet's classes and MultiEstimator, without importing them.

Type checkers and editors see the classes; when the code runs, the names stand for anything. MXNet has no type
hints, so mypy does not check what is called on its objects.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import mxnet as mx

    from ..estimator import MultiEstimator as MultiEstimator

    Array: TypeAlias = mx.nd.NDArray
    Context: TypeAlias = mx.Context
    Initializer: TypeAlias = mx.init.Initializer
    Loader: TypeAlias = Iterable[Any]
    Loss: TypeAlias = Callable[..., Any]
    Metric: TypeAlias = mx.metric.EvalMetric
    Net: TypeAlias = mx.gluon.Block
    Optimizer: TypeAlias = mx.optimizer.Optimizer
    Parameter: TypeAlias = mx.gluon.Parameter
    Symbol: TypeAlias = mx.sym.Symbol
    Trainer: TypeAlias = mx.gluon.Trainer

    class Schedule(Protocol):
        """A learning rate by the number of updates: MXNet's schedulers, and those of `multifit.schedules`."""

        base_lr: float

        def __call__(self, num_update: int) -> float:
            """Return the rate after a number of updates."""

else:
    Array = Context = Initializer = Loader = Loss = Metric = MultiEstimator = Any
    Net = Optimizer = Parameter = Schedule = Symbol = Trainer = Any

Numbers = np.ndarray[Any, Any]
"""NumPy's arrays, as opposed to those of MXNet."""
Shape = tuple[int, ...]
Tensor = Array | Symbol
"""What graphs are written with."""
Slots = dict[str, Array | None]
"""The inputs, labels and weights of one device's batch by name; None for a label that is missing."""
Parameters = str | Net | Mapping[str, Parameter]
"""Some of a net's parameters: a pattern of their names, a Block or a ``ParameterDict``."""
Handler = object
"""Anything with a method that is named after an event or a hook."""


class BatchResult(Protocol):
    """What a step computed from a batch."""

    @property
    def batch(self) -> Any:
        """Its samples, and what the loader yielded."""

    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label`` and ``loss``: lists of arrays, one per device, or dicts of lists."""
