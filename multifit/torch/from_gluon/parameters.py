"""The parameters of Gluon's blocks as parameters and buffers of a module, and their values back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from ...gluon.compat import mx
from ...gluon.data.arrays import host_view, new_array
from ...gluon.data.devices import CPU
from ...gluon.optim.parameters import NamedParameters, learnable
from ...gluon.step.blocks import blocks_of
from ...utils.errors import Problem, raise_problems
from ...utils.protocols import Numbers
from ...utils.text import quoted
from .translate import add_modules, free_path

LAZY: Any = UninitializedParameter
LAZY_BUFFER: Any = UninitializedBuffer
WAY_OUT = 'or use engine="mxnet"'
GLUON_NORM = mx.gluon.nn.basic_layers._BatchNorm
NORMS = "BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm"


class Norm(nn.modules.batchnorm._BatchNorm):
    """A BatchNorm layer's parameters; in evaluation mode, its running statistics are frozen."""

    _load_from_state_dict = nn.Module._load_from_state_dict  # without a count of batches
    extra_repr = nn.Module.extra_repr

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.track_running_stats = self.affine = True

    @property
    def is_frozen(self) -> bool:
        """Whether the layer is in evaluation mode, or nothing learns of what it could learn."""
        learn = [each.requires_grad for each in self._parameters.values() if each is not None]
        return not self.training or (bool(learn) and not any(learn))


class Held:
    """Gluon's parameters, held by a module, by structural name.

    Those that can learn become parameters, and all others, such as running statistics and constants, become
    buffers. Those whose shape is not known yet get it with the first batch. `tensors` are the parameters that
    other modules hold already, by Gluon's parameter. `where` is the module's name in messages.
    """

    def __init__(
        self, module: nn.Module, block: Any, parameters: NamedParameters, tensors: dict[Any, nn.Parameter],
        where: str,
    ) -> None:  # fmt: skip
        self._module, self.parameters, self.where = module, dict(parameters), where
        self._requests = {name: each.grad_req for name, each in parameters.items()}
        self.paths = {name: free_path(name) for name in parameters}
        self.variables = {each.name: name for name, each in parameters.items()}
        raise_problems(self._problems())
        self.norms = {
            free_path(name): Norm()
            for name, each in blocks_of(block).items()
            if isinstance(each, GLUON_NORM) and name and f"{name}.running_mean" in parameters
        }
        can_learn = learnable(parameters)
        for name, parameter in parameters.items():
            holder, last = self._holder(name)
            if name not in can_learn:
                holder.register_buffer(last, LAZY_BUFFER(dtype=_dtype(parameter)))
                continue
            if parameter not in tensors:
                learns = parameter.grad_req != "null"
                tensors[parameter] = LAZY(learns, dtype=_dtype(parameter))
            holder.register_parameter(last, tensors[parameter])
        for other, name in parameters.other_names.items():
            holder, last = self._holder(other)
            setattr(holder, last, self.tensor(name))
        self.read()

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of a parameter."""
        found: Tensor = attrgetter(self.paths[name])(self._module)
        return found

    def tensors(self) -> list[Any]:
        """Return all tensors."""
        return [self.tensor(name) for name in self.parameters]

    def place(self, variable: str) -> tuple[dict[str, Any], str]:
        """Return where a variable of a symbol is kept: the module's dict of tensors, and the key."""
        holder, last = self._holder(self.variables[variable])
        return (holder._parameters if last in holder._parameters else holder._buffers), last

    def read(self) -> None:
        """Take the values that Gluon's parameters have."""
        for name, value in values_of(self.parameters).items():
            self._fill(name, value)
            parameter = self.parameters[name]
            if parameter.grad_req != self._requests[name]:
                self._requests[name] = parameter.grad_req
                self.tensor(name).requires_grad_(parameter.grad_req != "null")

    def write_back(self) -> None:
        """Copy the values to Gluon's parameters."""
        tensors = {name: self.tensor(name) for name in self.parameters}
        values = {n: t.numpy(force=True) for n, t in tensors.items() if not is_lazy(t) and t.numel()}
        for name, parameter in self.parameters.items():
            if parameter._data is None and name in values:  # it was loaded before a batch
                parameter._load_init(new_array(values[name]), None if parameter._deferred_init else [CPU])
        set_values(self.parameters, values)

    def infer(self, symbol: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give the parameters in a symbol the shapes that fit those of its inputs, and their first values."""
        read = [name for name in symbol.list_inputs() if name in self.variables]
        unknown = {name: self.parameters[self.variables[name]] for name in read}
        unknown = {name: parameter for name, parameter in unknown.items() if parameter._data is None}
        if unknown:
            known = {n: s for n, s in shapes.items() if n in symbol.list_inputs()}
            arguments, _, states = symbol.infer_shape(**known)
            names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
            found = dict(zip(names, [*arguments, *states]))
            for name, parameter in unknown.items():
                parameter.shape = found[name]
            for parameter in unknown.values():
                parameter._finish_deferred_init()
            self.read()
        for name in self.paths:  # which this symbol does not need
            tensor = self.tensor(name)
            if is_lazy(tensor):
                tensor.materialize((0,))

    def frozen_norms(self) -> tuple[bool, ...]:
        """Return which BatchNorm layers normalise by their running statistics in training too."""
        return tuple([norm.is_frozen for norm in self.norms.values()])

    def frozen_means(self, frozen: tuple[bool, ...]) -> set[str]:
        """Return the variables that are the running means of frozen layers."""
        paths = {f"{path}.running_mean" for path, is_frozen in zip(self.norms, frozen) if is_frozen}
        return {self.parameters[name].name for name, path in self.paths.items() if path in paths}

    def _fill(self, name: str, value: np.ndarray[Any, Any]) -> None:
        tensor = self.tensor(name)
        with torch.no_grad():
            if is_lazy(tensor):
                tensor.materialize(value.shape)
            if tensor.shape != value.shape:
                tensor.data = tensor.new_empty(value.shape)
            tensor.copy_(torch.from_numpy(value))

    def _holder(self, name: str) -> tuple[nn.Module, str]:
        path, _, last = free_path(name).rpartition(".")
        return add_modules(self._module, path, self.norms), last

    def _problems(self) -> list[Problem]:
        """Return the problems of parameters that have no tensors, or gradients that torch lacks."""
        of = self.parameters.items()
        found = {
            "have sparse gradients; use dense layers": [n for n, p in of if p._grad_stype != "default"],
            'are neither float32 nor float64; call net.cast("float32")': [
                n for n, p in of if np.dtype(p.dtype).name not in ("float32", "float64")
            ],
            'have grad_req="add"; give MultiEstimator(accumulate=...) or TrainerSpec(accumulate=True)': [
                n for n, p in of if p.grad_req == "add"
            ],
        }
        return [
            Problem("trainer", f'engine="torch": {self.where}: {quoted(names)} {what}, {WAY_OUT}')
            for what, names in found.items()
            if names
        ]


def _dtype(parameter: Any) -> torch.dtype:
    found: torch.dtype = getattr(torch, np.dtype(parameter.dtype).name)
    return found


def with_frozen(symbol: str, means: set[str]) -> str:
    """Return a symbol in which the BatchNorm layers with these running means are frozen."""
    graph = json.loads(symbol)
    for node in graph["nodes"]:
        if node["op"] in NORMS and graph["nodes"][node["inputs"][3][0]]["name"] in means:
            node.setdefault("attrs", {})["use_global_stats"] = "True"
    return json.dumps(graph)


def values_of(parameters: Mapping[str, mx.gluon.Parameter]) -> dict[str, Numbers]:
    """Return the values of the parameters that have values; copy what you keep: memory may be shared.

    Waits for the engine. Arrays that oneDNN keeps in a layout of its own, `asnumpy` would not take.
    """
    present = {name: p._data[0].as_in_context(CPU) for name, p in parameters.items() if p._data is not None}
    return {name: host_view(each) for name, each in present.items()}


def set_values(parameters: Mapping[str, mx.gluon.Parameter], values: Mapping[str, Numbers]) -> None:
    """Set the values of parameters on all of their devices; this also works while autograd records."""
    with mx.autograd.pause(train_mode=mx.autograd.is_training()):
        for name, value in values.items():
            parameters[name].set_data(new_array(value, CPU))
