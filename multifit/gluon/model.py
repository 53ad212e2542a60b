"""The net on its devices, equal on all ranks, and the spec of a net without one."""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..distributed import World
from ..engines import model, shared_parameters
from ..spec import TaskSpec
from ..spec.checks.trainers import listing
from ..utils.errors import Problem, raise_problems
from ..utils.protocols import Array
from .compat import mx
from .data.devices import resolve_context
from .graph.lower import precision_of
from .metrics import BinaryAccuracy
from .optim.parameters import initialize, named_parameters, real_dtype, statistics
from .ranks.collectives import all_reduce, broadcast
from .step.blocks import blocks_of
from .step.network import traces

losses = mx.gluon.loss
METRICS = (
    (losses.SoftmaxCrossEntropyLoss, "accuracy", lambda loss: mx.metric.Accuracy(axis=loss._axis)),
    (
        losses.SigmoidBinaryCrossEntropyLoss,
        "binary_accuracy",
        lambda loss: BinaryAccuracy(0.5 if loss._from_sigmoid else 0.0),
    ),
    (losses.L2Loss, "rmse", lambda loss: mx.metric.RMSE()),
    (losses.HuberLoss, "rmse", lambda loss: mx.metric.RMSE()),
    (losses.L1Loss, "mae", lambda loss: mx.metric.MAE()),
)


def default_spec(loss: object, log_once: Callable[[str], None]) -> TaskSpec:
    """Return the TaskSpec for a net with one input, output and label, and log the defaults.

    The names are "data", "output" and "label". The metric is accuracy for softmax cross entropy, binary
    accuracy for sigmoid cross entropy, RMSE for L2 and Huber, and MAE for L1; other losses have none. Raises
    SpecError if `loss` is not a loss.
    """

    def metrics(loss: Any) -> dict[str, Any]:
        sparse = getattr(loss, "_sparse_label", True)
        return {key: make(loss) for kind, key, make in METRICS if sparse and isinstance(loss, kind)}

    return model.default_spec(loss, log_once, metrics)


class Model:
    """A net with its parameters, on its devices.

    `context`, `initializer` and `precision` are those of :class:`multifit.MultiEstimator`. Losses that are
    Blocks may have parameters too. Raises SpecError if MXNet's NumPy interface is active, and ValueError for
    a context that does not exist, or a precision that is unknown or that the devices do not support.

    `parameters` are named by structure, such as ``body.0.weight``; `contexts` are the devices; `log_once` is
    called with a line to log once.
    """

    def __init__(
        self,
        net: Any,
        spec: TaskSpec,
        context: Any,
        initializer: Any,
        precision: str,
        log_once: Callable[[str], None],
    ) -> None:
        raise_problems(_numpy_problems(()))
        self.net = net
        self._spec, self._losses = spec, {term.key: term.spec.fn for term in spec.terms}
        self.parameters = self._current()
        net.apply(_mark_statistics)
        self._gradients = self._gradient_lists()
        self.contexts = resolve_context(context, list(self.parameters.values()))
        self.precision = precision_of(precision, self.contexts)
        if self.precision.rules is not None:
            log_once(self.precision.description)
        self._initializer, self.log_once, self._initialized = initializer, log_once, False
        self._known: dict[str, Any] = {}  # the parameters after the last forward pass, {} before the first

    @property
    def dtype(self) -> str:
        """The dtype of the real numbers that go into the net: float64 if all its parameters are."""
        return real_dtype(self.parameters.values())

    @property
    def has_right_gradients(self) -> bool:
        """Whether gradients are right whatever is frozen: MXNet's are corrected in a net that is traced."""
        return traces(self.net, self._spec)

    def lacking_gradients(self) -> list[Problem]:
        """Return the biases that would learn, but for which MXNet computes no gradient."""
        if self.has_right_gradients or any(each.device_type != "cpu" for each in self.contexts):
            return []
        blocks = {n: b for n, b in blocks_of(self.net).items() if isinstance(b, mx.gluon.nn.Dense) and b.bias}
        alone = [n for n, b in blocks.items() if b.weight.grad_req == "null" != b.bias.grad_req]
        message = '"{0}.weight" is frozen, but not "{0}.bias", for which MXNet then computes no gradient; {1}'
        way_out = "call net.hybridize(), or freeze both"
        return [Problem("trainer", message.format(name, way_out)) for name in alone]

    def check_parameters(self) -> None:
        """Raise SpecError if net and losses no longer have the parameters that they had when it was made.

        Trainers would still update the old ones.
        """
        raise_problems(model.changed_problems(self._current(), self.parameters))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Raise SpecError if net and losses have other parameters than when it was made, or last ran.

        A net that makes layers in its first forward pass can be evaluated, but not trained.
        """
        current = self._current()
        raise_problems(model.changed_problems(current, self._known or {**current, **self.parameters}))
        yield
        self.ran()

    def ran(self) -> list[Problem]:
        """Remember the parameters after a forward pass; return a problem if no trainer knows some of them."""
        self._known = self._current()
        return model.made_problems(self._known, self.parameters)

    def _current(self) -> dict[str, Any]:
        return named_parameters(self.net, self._losses)

    def discard_static_graphs(self) -> None:
        """Discard the graphs of blocks with ``static_shape=True`` if parameters have new arrays of gradients.

        They get these when they are initialised again, moved, or frozen and unfrozen. Such a graph would
        write to the old ones, and nothing would learn.
        """
        before, self._gradients = self._gradients, self._gradient_lists()
        if any(map(operator.is_not, before, self._gradients)):
            for block in (self.net, *self._losses.values()):
                if isinstance(block, mx.gluon.Block):
                    block.apply(_discard_static_graph)

    def _gradient_lists(self) -> list[Any]:
        """Return the lists of gradients, of which Gluon makes a new one whenever it makes new arrays."""
        return [parameter._grad for parameter in self.parameters.values()]

    def initialize(self) -> list[Problem]:
        """Initialise the parameters that are not initialised yet; return the problems."""
        problems = _numpy_problems(() if self._initialized else self.parameters.values())
        if problems or self._initialized:
            return problems
        sparse = [name for name, parameter in self.parameters.items() if parameter._stype != "default"]
        if sparse:
            message = f"net: {listing(sparse)} has row_sparse values, as in gluon.contrib.nn.SparseEmbedding"
            return [Problem("spec", f"{message}; use nn.Embedding(..., sparse_grad=True) in its place")]
        if self.precision.rules is not None and self.dtype != "float32":
            message = f'precision is "{self.precision.name}", but the net\'s parameters are {self.dtype}'
            return [Problem("spec", f'{message}; call net.cast("float32"), or use precision="float32"')]
        problems = initialize(self.parameters, self.contexts, self._initializer, self.log_once)
        self._initialized = not problems
        return problems


def _mark_statistics(block: mx.gluon.Block) -> None:
    """Mark a SymbolBlock's running statistics, which MXNet marks in its own layers only."""
    if isinstance(block, mx.gluon.SymbolBlock):
        for name in block._cached_graph[1].list_auxiliary_states():
            block.params[name]._differentiable = False


def _discard_static_graph(block: mx.gluon.Block) -> None:
    if isinstance(block, mx.gluon.HybridBlock) and dict(block._flags).get("static_shape"):
        block._clear_cached_op()


def _numpy_problems(parameters: Iterable[Any]) -> list[Problem]:
    """Return a problem if arrays are ``mx.np.ndarray``s, which the operators of losses do not take."""
    if mx.util.is_np_array() or mx.util.is_np_shape():
        message = (
            "MXNet's NumPy interface is active (npx.set_np()), which losses and metrics cannot work with"
        )
        return [Problem("spec", f"{message}; call npx.reset_np() first, and write nets with F's operators")]
    arrays = [array for parameter in parameters for array in parameter._data or ()]
    if any(isinstance(array, mx.np.ndarray) for array in arrays):
        message = (
            "the net was initialised with MXNet's NumPy interface, and its parameters are mx.np.ndarrays"
        )
        return [
            Problem("spec", f"net: {message}; initialise it after npx.reset_np(), or load them from a file")
        ]
    return []


class SharedParameters(shared_parameters.SharedParameters):
    """Shares parameters, and averages running statistics."""

    def __init__(
        self, world: World, parameters: Mapping[str, Any], frozen: Callable[[], Collection[str]] = tuple
    ) -> None:
        super().__init__(world, frozen)
        self._parameters = parameters

    def arrays(self) -> Mapping[str, Array]:
        """Return the array on the first device of each parameter that has values, by name."""
        present = {name: p for name, p in self._parameters.items() if p._data is not None}
        return {name: parameter.list_data()[0] for name, parameter in present.items()}

    def average_statistics(self) -> None:
        """Give all ranks the mean of values without gradients, such as BatchNorm's running statistics."""
        if self._world.alone:
            return
        of_net, frozen = statistics(self._parameters), self._frozen()
        averaged = [parameter for name, parameter in of_net.items() if name not in frozen]
        if not averaged:
            return
        first = [parameter.list_data()[0] for parameter in averaged]
        all_reduce(self._world, first)
        for array in first:
            array *= 1.0 / self._world.size
        _copy_to_devices(averaged)

    def share(self) -> None:
        """Give all ranks the first rank's parameters."""
        present = [parameter for parameter in self._parameters.values() if parameter._data is not None]
        broadcast(self._world, [parameter.list_data()[0] for parameter in present])
        _copy_to_devices(present)
        self.are_shared = True


def _copy_to_devices(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        first, *others = parameter.list_data()
        for array in others:
            first.copyto(array)
