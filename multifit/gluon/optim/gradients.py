"""The gradients of a trainer's parameters: which are fresh, and how they are prepared for an update.

A gradient is fresh from the backward pass that writes it until a trainer uses it. MXNet stores this flag on
the array of the parameter's values.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...engines.rhythm import AddedBatches
from ...engines.trainers import JointGradients
from ..compat import mx
from ..ranks.collectives import all_reduce


def is_fresh(values: mx.nd.NDArray) -> bool:
    """Whether the gradient of a parameter's values on one device has not been used yet."""
    return bool(values._fresh_grad)


def set_fresh(values: mx.nd.NDArray, fresh: bool) -> None:
    """Mark the gradient of a parameter's values on one device as fresh, or as used."""
    values._fresh_grad = fresh


def set_grad_req(parameter: mx.gluon.Parameter, request: str) -> None:
    """Set whether a parameter's gradients are overwritten ("write") or added up ("add"), and set them to 0.

    This keeps the arrays. Setting ``parameter.grad_req`` would replace them, and a block that was hybridized
    with ``static_shape=True`` would still write to the old arrays.
    """
    if parameter._grad is None or parameter.grad_req == request:  # there is nothing to replace
        parameter.grad_req = request
        return
    parameter._grad_req = request
    mx.autograd.mark_variables(replicas(parameter), parameter.list_grad(), request)
    parameter.zero_grad()


def replicas(parameter: mx.gluon.Parameter) -> list[mx.nd.NDArray]:
    """Return a parameter's arrays, one per device."""
    return parameter.list_data()


def fresh_flags(parameter: mx.gluon.Parameter) -> list[bool]:
    """Return for each device whether the parameter's gradient is fresh."""
    return [is_fresh(values) for values in replicas(parameter)]


def discard_gradients(parameters: Iterable[mx.gluon.Parameter]) -> None:
    """Mark gradients as used on all devices without using them; gradients that are added up become 0."""
    for parameter in parameters:
        for values in replicas(parameter):
            set_fresh(values, False)
        if parameter.grad_req == "add":
            parameter.zero_grad()


def updated_parameters(trainer: mx.gluon.Trainer) -> list[Any]:
    """Return the parameters of a trainer that have gradients."""
    return [parameter for parameter in trainer._params if parameter.grad_req != "null"]


def zero_stale(trainer: mx.gluon.Trainer) -> None:
    """Set gradients to 0 on the devices whose share of the batch did not reach a parameter, if another did.

    The sum of the parameter's gradients would else contain old ones.
    """
    for parameter in updated_parameters(trainer):
        pairs = list(zip(replicas(parameter), parameter.list_grad()))
        stale = [(values, gradient) for values, gradient in pairs if not is_fresh(values)]
        for values, gradient in stale if len(stale) < len(pairs) else ():
            mx.nd.zeros_like(gradient, out=gradient)
            set_fresh(values, True)


def scale_gradients(parameters: Iterable[mx.gluon.Parameter], factor: float) -> None:
    """Multiply fresh gradients by a factor, on each device and in place."""
    for parameter in parameters:
        for values, gradient in zip(replicas(parameter), parameter.list_grad()):
            if is_fresh(values):
                gradient *= factor


def clip_gradients(trainer: mx.gluon.Trainer, norm: float) -> None:
    """Scale a trainer's fresh gradients, which are reduced, so that their global norm is at most `norm`."""
    fresh = [p for p in updated_parameters(trainer) if is_fresh(replicas(p)[0])]
    sparse = mx.nd.sparse.RowSparseNDArray
    # ``gluon.utils.clip_global_norm`` fails for float64, and waits for the device to check the norm
    for context in fresh[0].list_ctx() if fresh else ():  # each device scales its own copy
        gradients: list[Any] = [p.grad(context) for p in fresh]
        flat = [each.norm() if isinstance(each, sparse) else each.reshape((-1,)) for each in gradients]
        scale = _scale(norm, tuple((each.size, np.dtype(each.dtype).name) for each in flat))(*flat)
        for gradient in gradients:
            gradient *= scale


@lru_cache(256)  # batches that reach other parameters need another operator
def _scale(norm: float, forms: Sequence[tuple[int, str]]) -> Any:
    """Return an operator that computes the factor for flat gradients of these sizes and dtypes.

    It costs as much as one operator; a dot product takes a fraction of the time of MXNet's norm.
    """
    flat = [mx.sym.var(f"gradient{number}") for number in range(len(forms))]
    total = mx.sym.sqrt(mx.sym.add_n(*(mx.sym.dot(each, each) for each in flat)))
    scale = mx.sym.broadcast_minimum(norm / (total + 1e-8), mx.sym.ones_like(total))
    return mx.nd.CachedOp(scale, (("static_alloc", True), ("static_shape", True)))


class FreshGradients(JointGradients):
    """The gradients of several ranks, each of which has summed them over its devices."""

    def is_reached(self, parameter: mx.gluon.Parameter) -> bool:
        """Whether samples on any device of this rank have reached a parameter."""
        return any(fresh_flags(parameter))

    def reach(self, parameter: mx.gluon.Parameter) -> None:
        """Give a parameter a fresh gradient of 0 on each device."""
        for values, gradient in zip(replicas(parameter), parameter.list_grad()):
            mx.nd.zeros_like(gradient, out=gradient)
            set_fresh(values, True)

    def sum(self, parameters: Sequence[Any]) -> None:
        """Replace the gradients of parameters on all devices by their sums over the ranks."""
        all_reduce(self._world, [parameter.list_grad()[0] for parameter in parameters])
        for parameter in parameters:
            first, *others = parameter.list_grad()
            for gradient in others:
                first.copyto(gradient)


class AddedGradients(AddedBatches):
    """The gradients of trainers that accumulate, which are added up from batch to batch.

    `trainers` are those that accumulate.
    """

    def __init__(self, trainers: Mapping[str, mx.gluon.Trainer]) -> None:
        super().__init__(trainers)
        self._trainers = trainers
        # the parameters whose grad_req is "write" outside of training, and their lists of arrays
        self._arrays: dict[mx.gluon.Parameter, tuple[Any, Any]] = {}

    def begin(self) -> None:
        """Let MXNet add gradients up instead of overwriting them.

        Called again after a handler has set a ``grad_req``. If that was "add" only for the time of training,
        and the handler has set "write", what was added so far still counts.
        """
        parameters = [each for trainer in self._trainers.values() for each in trainer._params]
        for parameter in (each for each in parameters if each.grad_req == "write"):
            set_grad_req(parameter, "add")
            values, gradients = self._arrays.get(parameter, (None, None))
            if gradients and values is parameter._data:  # Gluon has replaced the gradients alone
                for old, new in zip(gradients, parameter._grad):
                    old.copyto(new)
            self._arrays[parameter] = parameter._data, parameter._grad

    def remember(self) -> None:
        """Remember the arrays of gradients, as the first batch may have made them."""
        self._arrays = {each: (each._data, each._grad) for each in self._arrays}

    def declared_request(self, parameter: mx.gluon.Parameter) -> str:
        """Return a parameter's ``grad_req`` as it is outside of training."""
        return "write" if parameter in self._arrays and parameter.grad_req == "add" else parameter.grad_req

    def end(self) -> None:
        """Let MXNet overwrite gradients again, and discard those of a fit that failed."""
        for parameter in self._arrays:
            if parameter.grad_req == "add":  # else a handler has frozen it
                set_grad_req(parameter, "write")
        for name in self.waiting():
            parameters = updated_parameters(self._trainers[name])
            discard_gradients(each for each in parameters if each._data is not None)
        self.forget(self._trainers)
        self._arrays = {}


def start_kvstore(trainer: mx.gluon.Trainer) -> None:
    """Create the kvstore that adds up a trainer's gradients over its devices.

    MXNet reads all parameters for it; those that are frozen and that no batch has reached have no values.
    """
    parameters = trainer._params
    trainer._params = [parameter for parameter in parameters if parameter._data is not None]
    try:
        trainer._init_kvstore()
    finally:
        trainer._params = parameters
