"""Operators of MXNet and their translations, on the same arrays in float64."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multifit.gluon.compat import mx
from multifit.torch.from_gluon.operators import WAITING
from multifit.torch.from_gluon.translate import translate
from tests.torch.place import DEVICE

TOLERANCE = 1e-10  # of outputs and gradients


class Waits(TorchDispatchMode):
    """Remembers operators of torch that read numbers from the device."""

    OPERATORS = {"aten::_ctc_loss", "aten::_local_scalar_dense", "aten::equal", "aten::nonzero"}

    def __init__(self) -> None:
        super().__init__()
        self.met: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.met |= self.OPERATORS & {function._schema.name}
        return function(*args, **(kwargs or {}))


def assert_agree(
    make: Callable[..., Any],
    *arrays: Any,
    training: bool = True,
    constant: Sequence[int] = (),
    tolerance: float = TOLERANCE,
) -> list[np.ndarray]:
    """Assert that what `make` makes of symbols computes the same in MXNet and translated.

    Compared are the outputs with their shapes and types, the arrays afterwards (running statistics change)
    and the gradients of all float arrays but those at `constant`. Returns the outputs.
    """
    values = {f"x{i}": np.asarray(each) for i, each in enumerate(arrays)}
    made = make(*map(mx.sym.var, values))
    symbol = made if isinstance(made, mx.sym.Symbol) else mx.sym.Group(list(made))
    trained = [f"x{i}" for i in range(len(arrays)) if values[f"x{i}"].dtype.kind == "f" and i not in constant]
    expected, heads = in_mxnet(symbol, values, trained, training)
    found = in_torch(symbol, values, trained, training, heads)
    for ours, theirs in zip(found, expected):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs):
            assert (our.shape, our.dtype) == (their.shape, their.dtype)
            np.testing.assert_allclose(our, their, rtol=tolerance, atol=tolerance)
    return found[0]


Values = Mapping[str, np.ndarray]


def in_mxnet(symbol: Any, values: Values, trained: Sequence[str], training: bool) -> Any:
    """Return outputs, gradients and the arrays afterwards; and the outputs' gradients that were used."""
    arrays = {name: mx.nd.array(value, dtype=value.dtype) for name, value in values.items()}
    for name in trained:
        arrays[name].attach_grad()
    if trained or not training:
        run = mx.nd.CachedOp(symbol)
        mode = mx.autograd.record if trained else mx.autograd.pause
        with mode(train_mode=training):
            outputs = run(*[arrays[name] for name in symbol.list_inputs()])
        outputs = outputs if isinstance(outputs, list) else [outputs]
    else:  # perhaps an operator without a gradient, which a CachedOp does not take
        outputs = symbol.eval(mx.cpu(), **{name: arrays[name] for name in symbol.list_inputs()})
    random = np.random.RandomState(0)
    heads = [random.randn(*each.shape).astype(each.dtype) for each in outputs]
    if trained:
        gradients = [mx.nd.array(head, dtype=head.dtype) for head in heads]
        mx.autograd.backward(outputs, gradients, train_mode=training)
    of_trained = [arrays[name].grad.asnumpy() for name in trained]
    return ([o.asnumpy() for o in outputs], of_trained, [each.asnumpy() for each in arrays.values()]), heads


def in_torch(
    symbol: Any, values: Values, trained: Sequence[str], training: bool, heads: Sequence[Any]
) -> Any:
    """Return the same of the translation."""
    tensors = {name: torch.tensor(value, device=DEVICE) for name, value in values.items()}
    for name in trained:
        tensors[name].requires_grad_()
    module = translate(symbol.tojson(), list(values), {}, training)
    with Waits() as waits:
        outputs = module(*tensors.values())
    assert not waits.met or WAITING & {node["op"] for node in json.loads(symbol.tojson())["nodes"]}
    live = [(o, torch.tensor(h, device=DEVICE)) for o, h in zip(outputs, heads) if o.requires_grad]
    if live:
        torch.autograd.backward(*zip(*live))
    gradients = [(name, tensors[name].grad) for name in trained]
    of_trained = [np.zeros_like(values[n]) if g is None else g.numpy(force=True) for n, g in gradients]
    after = [tensor.numpy(force=True) for tensor in tensors.values()]
    return [o.numpy(force=True) for o in outputs], of_trained, after


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normal numbers."""
    return np.random.RandomState(seed + sum(shape)).randn(*shape)
