"""The types of MXNet's objects as the rest of the package sees them, without importing mxnet.

Each protocol has the members that the package uses: ``Array`` stands for ``mx.nd.NDArray``, ``Parameter`` for
``gluon.Parameter``, and so on. Code under ``multifit/gluon/`` that reads private fields of an MXNet object is
annotated with MXNet's own class instead, such as ``mx.gluon.Trainer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, TypeVar, Union

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Array",
    "Context",
    "Dataset",
    "Figures",
    "Initializer",
    "Loader",
    "Loss",
    "Metric",
    "Net",
    "Optimizer",
    "Parameter",
    "Schedule",
    "Shape",
    "Slots",
    "Tensor",
    "Trainer",
]

Shape = tuple[int, ...]
Figures = Mapping[str, float]
"""Values of losses, metrics and learning rates by name, such as ``{"train_loss": 0.1}``."""

AnyTensor = TypeVar("AnyTensor", bound="Tensor")


class Context(Protocol):
    """A device: ``mx.cpu(0)``, ``mx.gpu(1)``."""

    @property
    def device_type(self) -> str:
        """``"cpu"``, ``"gpu"``, ``"cpu_pinned"`` or ``"cpu_shared"``."""

    @property
    def device_id(self) -> int:
        """The device's index among those of its type."""

    def __enter__(self) -> Any:
        """Make it the default context of arrays that are created within the block."""

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
    """An ``mx.nd.NDArray``. Operations are asynchronous: only :meth:`asnumpy` and the like wait for them."""

    @property
    def shape(self) -> Shape:
        """The length of each axis."""

    @property
    def dtype(self) -> Any:
        """The NumPy type of its elements, such as ``numpy.float32``."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def context(self) -> Context:
        """The device that holds it."""

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """Wait for the array, and return a copy as NumPy array."""

    def asscalar(self) -> Any:
        """Wait for the array, and return its only element."""

    def astype(self, dtype: Any) -> Array:
        """Return a copy with another dtype."""

    def as_in_context(self, context: Any) -> Array:
        """Return the array itself if it is on `context`, else a copy there."""

    def copy(self) -> Array:
        """Return a copy on the same device."""

    def copyto(self, other: Any) -> Any:
        """Write its values to another array, or to a new one on a context."""

    def reshape(self, *shape: Any) -> Array:
        """Return the array with another shape."""

    def __getitem__(self, key: Any) -> Array: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def __len__(self) -> int: ...


Slots = dict[str, Optional[Array]]
"""The inputs, labels and weights of one device's batch by name; None for a label that is missing."""


class Parameter(Protocol):
    """A ``gluon.Parameter``: one array per device, and its gradients.

    Attributes
    ----------
    grad_req : {"write", "add", "null"}
        What a backward pass does with the gradient: overwrite it, add to it, or compute none.
    """

    grad_req: str

    @property
    def name(self) -> str:
        """MXNet's own name, such as ``dense0_weight``, not the structural one."""

    @property
    def shape(self) -> Shape | None:
        """The shape; an axis that is not known yet is 0."""

    @property
    def dtype(self) -> Any:
        """The NumPy type of its elements, or that type's name."""

    def data(self, ctx: Any = None) -> Array:
        """Return the values on one device."""

    def grad(self, ctx: Any = None) -> Array:
        """Return the gradient on one device."""

    def list_data(self) -> list[Array]:
        """Return the values, one array per device."""

    def list_grad(self) -> list[Array]:
        """Return the gradients, one array per device."""

    def list_ctx(self) -> list[Context]:
        """Return the devices; raises RuntimeError if the parameter is not initialised."""

    def set_data(self, data: Any) -> None:
        """Set the values on all devices."""

    def zero_grad(self) -> None:
        """Set the gradients to 0 on all devices."""


class Net(Protocol):
    """A ``gluon.Block``."""

    @property
    def name(self) -> str:
        """MXNet's own name, such as ``hybridsequential0``."""

    def __call__(self, *inputs: Any) -> Any:
        """Run the net; returns an array, or nested lists and tuples of arrays."""

    def collect_params(self, select: str | None = None) -> Any:
        """Return the ParameterDict of the net and its children."""


class Loss(Protocol):
    """A ``gluon.loss.Loss`` or function: arrays in the order of the spec, to values per sample."""

    def __call__(self, *arrays: Any) -> Any:
        """Return an array, or a list of arrays for a loss of several parts."""


class Metric(Protocol):
    """An ``mx.metric.EvalMetric``, or anything with these three methods."""

    def update(self, *arrays: Any) -> None:
        """Measure a batch: ``update(labels, preds)``, or an array list per argument."""

    def get(self) -> Any:
        """Return (name, value), (names, values) or values alone."""

    def reset(self) -> None:
        """Forget what was measured."""


class Schedule(Protocol):
    """An ``mx.lr_scheduler.LRScheduler``.

    Attributes
    ----------
    base_lr : float
        The rate from which the schedule computes the others.
    """

    base_lr: float

    def __call__(self, num_update: int) -> float:
        """Return the learning rate after so many updates."""


class Optimizer(Protocol):
    """An ``mx.optimizer.Optimizer``."""

    @property
    def learning_rate(self) -> float:
        """The rate now, by the schedule where there is one."""

    @property
    def num_update(self) -> int:
        """The number of updates so far."""

    @property
    def lr_scheduler(self) -> Any:
        """The schedule, or None."""


class Trainer(Protocol):
    """A ``gluon.Trainer`` as ``estimator.trainers`` returns it: see ``gluon/optim/trainer_handle.py``.

    Attributes
    ----------
    learning_rate : float
        The rate now. Setting it while a schedule runs scales the rest of the schedule.
    weight_decay, momentum : float or None
        None if the optimizer has none.
    betas : tuple of float, or None
        The decay of the means of gradients and of their squares; None if the optimizer has none.
    """

    learning_rate: float
    weight_decay: float | None
    momentum: float | None
    betas: tuple[float, float] | None

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""

    @property
    def settable(self) -> tuple[str, ...]:
        """The attributes above that this optimizer has."""

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate."""

    def reset_schedule(self) -> None:
        """Return to the schedule's own rates."""

    def save_states(self, fname: str) -> None:
        """Save the optimizer's states to a file."""

    def load_states(self, fname: str) -> None:
        """Load what :meth:`save_states` saved."""


class Loader(Protocol):
    """A ``gluon.data.DataLoader``, ``mx.io.DataIter``, list, or other iterable of batches."""

    def __iter__(self) -> Iterator[Any]: ...


class Dataset(Protocol):
    """A ``gluon.data.Dataset``: samples by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


Initializer = Union[str, Callable[..., None]]
"""An ``mx.init.Initializer``, or the name under which one is registered."""
