"""The types of MXNet's objects as the rest of the package sees them, without importing mxnet.

Each protocol has the members that the package uses: ``Array`` stands for ``mx.nd.NDArray``, ``Parameter`` for
``gluon.Parameter``, and so on. Their members mean what MXNet documents. Code under ``multifit/gluon/`` that
reads private fields of an MXNet object is annotated with MXNet's own class, such as ``mx.gluon.Trainer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional, Protocol, TypeVar, Union

import numpy as np

Numbers = np.ndarray[Any, Any]
"""NumPy's arrays, as opposed to :class:`Array`."""
Shape = tuple[int, ...]

AnyTensor = TypeVar("AnyTensor", bound="Tensor")


class Context(Protocol):
    """A device: ``mx.cpu(0)``, ``mx.gpu(1)``."""

    @property
    def device_type(self) -> str: ...  # "cpu", "gpu", "cpu_pinned" or "cpu_shared"
    @property
    def device_id(self) -> int: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> Any: ...


class Tensor(Protocol):
    """What graphs are written with: an ``mx.nd.NDArray`` or an ``mx.sym.Symbol``."""

    def __add__(self: AnyTensor, other: Any) -> AnyTensor: ...
    def __radd__(self: AnyTensor, other: Any) -> AnyTensor: ...
    def __sub__(self: AnyTensor, other: Any) -> AnyTensor: ...
    def __mul__(self: AnyTensor, other: Any) -> AnyTensor: ...
    def __rmul__(self: AnyTensor, other: Any) -> AnyTensor: ...
    def __truediv__(self: AnyTensor, other: Any) -> AnyTensor: ...
    def __neg__(self: AnyTensor) -> AnyTensor: ...
    def __eq__(self, other: object) -> Any: ...
    def __ne__(self, other: object) -> Any: ...
    def __lt__(self: AnyTensor, other: Any) -> AnyTensor: ...
    def __gt__(self: AnyTensor, other: Any) -> AnyTensor: ...
    def __ge__(self: AnyTensor, other: Any) -> AnyTensor: ...


class Array(Tensor, Protocol):
    """An ``mx.nd.NDArray``. Operations are asynchronous: only `asnumpy` and `asscalar` wait for them."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> Any: ...  # the NumPy type of its elements, such as numpy.float32
    @property
    def size(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    @property
    def context(self) -> Context: ...
    def asnumpy(self) -> Numbers: ...
    def asscalar(self) -> Any: ...
    def wait_to_read(self) -> None:
        """Wait until the array is computed."""

    def astype(self, dtype: Any) -> Array: ...
    def as_in_context(self, context: Any) -> Array: ...  # the array itself if it is there already
    def copy(self) -> Array: ...
    def copyto(self, other: Any) -> Any: ...  # to another array, or to a new one on a context
    def reshape(self, *shape: Any) -> Array: ...
    def __getitem__(self, key: Any) -> Array: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def __len__(self) -> int: ...


Slots = dict[str, Optional[Array]]
"""The inputs, labels and weights of one device's batch by name; None for a label that is missing."""


class BatchResult(Protocol):
    """What a step computed from a batch."""

    @property
    def batch(self) -> Any: ...  # its samples, and what the loader yielded
    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label`` and ``loss``: lists of arrays, one per device, or dicts of lists."""


class Parameter(Protocol):
    """A ``gluon.Parameter``: one array per device, and its gradients."""

    grad_req: str  # what a backward pass does with the gradient: "write", "add", or "null" for none

    @property
    def name(self) -> str: ...  # MXNet's own, such as dense0_weight, not the structural one
    @property
    def shape(self) -> Shape | None: ...  # an axis that is not known yet is 0
    @property
    def dtype(self) -> Any: ...  # the NumPy type of its elements, or that type's name
    def data(self, ctx: Any = None) -> Array: ...
    def grad(self, ctx: Any = None) -> Array: ...
    def list_data(self) -> list[Array]: ...
    def list_grad(self) -> list[Array]: ...
    def list_ctx(self) -> list[Context]: ...  # raises RuntimeError if it is not initialised
    def set_data(self, data: Any) -> None: ...
    def zero_grad(self) -> None: ...


class Net(Protocol):
    """A ``gluon.Block``: takes and returns arrays, or nested lists and tuples of arrays."""

    @property
    def name(self) -> str: ...  # MXNet's own, such as hybridsequential0
    def __call__(self, *inputs: Any) -> Any: ...
    def collect_params(self, select: str | None = None) -> Any: ...  # a ParameterDict


Parameters = Union[str, Net, Mapping[str, Parameter]]
"""Some of a net's parameters: a pattern of their names, a Block or a ``ParameterDict``."""


class Loss(Protocol):
    """A ``gluon.loss.Loss`` or function: arrays in the order of the spec, to values per sample.

    A loss of several parts returns a list of arrays.
    """

    def __call__(self, *arrays: Any, **options: Any) -> Any: ...  # any function, for type checkers


class Metric(Protocol):
    """An ``mx.metric.EvalMetric``, or anything with these three methods."""

    def update(self, *arrays: Any) -> None: ...  # update(labels, preds), or an array list per argument
    def get(self) -> Any: ...  # (name, value), (names, values) or values alone
    def reset(self) -> None: ...


class Schedule(Protocol):
    """An ``mx.lr_scheduler.LRScheduler``: the learning rate after a number of updates."""

    base_lr: float  # the rate from which the schedule computes the others

    def __call__(self, num_update: int) -> float: ...


class Initializer(Protocol):
    """An ``mx.init.Initializer``: writes a parameter's first values."""

    def __call__(self, desc: Any, arr: Any) -> None: ...


class Optimizer(Protocol):
    """An ``mx.optimizer.Optimizer``."""

    @property
    def learning_rate(self) -> float: ...  # the rate now, by the schedule if there is one
    @property
    def num_update(self) -> int: ...
    @property
    def lr_scheduler(self) -> Any: ...


class Trainer(Protocol):
    """A ``gluon.Trainer`` as ``estimator.trainers`` returns it: see ``gluon/optim/handle.py``."""

    learning_rate: float  # setting it while a schedule runs scales the rest of the schedule
    weight_decay: float | None  # this and the next one are None if the optimizer has none
    momentum: float | None

    @property
    def optimizer(self) -> Optimizer: ...
    def set_learning_rate(self, lr: float) -> None: ...
    def reset_schedule(self) -> None: ...
    def save_states(self, fname: str) -> None: ...
    def load_states(self, fname: str) -> None: ...


class Loader(Protocol):
    """A ``gluon.data.DataLoader``, ``mx.io.DataIter``, list, or other iterable of batches."""

    def __iter__(self) -> Iterator[Any]: ...


Handler = object
"""Anything with a method that is named after an event or a hook."""
