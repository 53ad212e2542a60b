"""Operators of MXNet and their translations, on the same arrays in float64."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multifit.gluon.compat import mx
from multifit.torch.operators.catalogue import WAITING
from multifit.torch.translate import translate
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
    arrays = [np.asarray(each) for each in arrays]
    symbol = as_symbol(make(*[mx.sym.var(f"x{i}") for i in range(len(arrays))]))
    differentiable = [i for i, a in enumerate(arrays) if a.dtype.kind == "f" and i not in constant]
    expected, heads = in_mxnet(symbol, arrays, differentiable, training)
    found = in_torch(symbol, arrays, differentiable, training, heads)
    for ours, theirs in zip(found, expected):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs):
            assert (our.shape, our.dtype) == (their.shape, their.dtype)
            np.testing.assert_allclose(our, their, rtol=tolerance, atol=tolerance)
    return found[0]


def as_symbol(made: Any) -> Any:
    return made if isinstance(made, mx.sym.Symbol) else mx.sym.Group(list(made))


def in_mxnet(symbol: Any, arrays: Sequence[Any], differentiable: Sequence[int], training: bool) -> Any:
    """Return outputs, gradients and the arrays afterwards; and the outputs' gradients that were used."""
    values = [mx.nd.array(a, dtype=a.dtype) for a in arrays]
    for i in differentiable:
        values[i].attach_grad()
    if differentiable:
        run = mx.nd.CachedOp(symbol)
        with mx.autograd.record(train_mode=training):
            outputs = run(*[values[int(name[1:])] for name in symbol.list_inputs()])
        outputs = outputs if isinstance(outputs, list) else [outputs]
    else:  # an operator without a gradient
        outputs = symbol.eval(mx.cpu(), **{name: values[int(name[1:])] for name in symbol.list_inputs()})
    random = np.random.RandomState(0)
    heads = [random.randn(*each.shape).astype(each.dtype) for each in outputs]
    if differentiable:
        mx.autograd.backward(
            outputs, [mx.nd.array(head, dtype=head.dtype) for head in heads], train_mode=training
        )
    gradients = [values[i].grad.asnumpy() for i in differentiable]
    return ([o.asnumpy() for o in outputs], gradients, [v.asnumpy() for v in values]), heads


def in_torch(
    symbol: Any, arrays: Sequence[Any], differentiable: Sequence[int], training: bool, heads: Sequence[Any]
) -> Any:
    """Return the same of the translation."""
    values = [
        torch.tensor(a, device=DEVICE).requires_grad_(i in differentiable) for i, a in enumerate(arrays)
    ]
    module = translate(symbol.tojson(), [f"x{i}" for i in range(len(arrays))], {}, training)
    with Waits() as waits:
        outputs = module(*values)
    assert not waits.met or WAITING & {node["op"] for node in json.loads(symbol.tojson())["nodes"]}
    live = [(o, torch.tensor(h, device=DEVICE)) for o, h in zip(outputs, heads) if o.requires_grad]
    if live:
        torch.autograd.backward(*zip(*live))
    gradients = [values[i].grad for i in differentiable]
    gradients = [
        np.zeros_like(arrays[i]) if g is None else g.numpy(force=True)
        for i, g in zip(differentiable, gradients)
    ]
    return [o.numpy(force=True) for o in outputs], gradients, [v.numpy(force=True) for v in values]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normal numbers."""
    return np.random.RandomState(seed + sum(shape)).randn(*shape)
