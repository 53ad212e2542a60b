"""Gluon nets and the modules that are trained in their place, on the same batches."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from multifit import TaskSpec
from multifit.distributed import ALONE
from multifit.distributed.log_once import LogOnce, get_logger
from multifit.engines import Setup
from multifit.gluon.compat import mx
from multifit.gluon.optim.parameters import named_parameters
from multifit.gluon.step.loss_calls import call_loss
from multifit.spec.checks.results import at_path, bind_outputs
from multifit.spec.terms import by_reference
from multifit.torch import loss_calls as native
from multifit.torch.from_gluon import Bridge, converted

LOG = LogOnce(get_logger())
Arrays = Mapping[str, np.ndarray]


def bridged(net: Any, spec: Any, trainers: Any = None, **options: Any) -> tuple[Setup, Bridge]:
    """Return what the bridge makes of a net, a spec and trainers."""
    fields = {"context": "cpu", "initializer": None, "frozen": (), "precision": "float32", "balance": None}
    setup = Setup(net, spec, trainers, compile=False, world=ALONE, **{**fields, **options})
    return converted(setup, LOG)


def of_gluon(
    net: Any, spec: TaskSpec, slots: Arrays
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return outputs, losses by part and gradients of a step with MXNet, in NumPy."""
    arrays = {name: mx.nd.array(value, dtype=value.dtype) for name, value in slots.items()}
    with mx.autograd.record():
        result = net(*[arrays[name] for name in spec.inputs])
        outputs = picked(spec, result)
        parts = {term.key: call_loss(term, by_reference(outputs, arrays)) for term in spec.terms}
        total = sum((part[term.minimized].sum() for term, part in zip(spec.terms, parts.values())))
    total.backward()
    parameters = named_parameters(net, {term.key: term.spec.fn for term in spec.terms})
    gradients = {n: p.grad().asnumpy() for n, p in parameters.items() if p.grad_req != "null"}
    numbers = {key: [by_sample(each.asnumpy()) for each in part] for key, part in parts.items()}
    return {name: each.asnumpy() for name, each in outputs.items()}, numbers, gradients


def of_torch(setup: Setup, slots: Arrays) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the same of the module."""
    net, spec = setup.net, setup.spec
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in slots.items()}
    outputs = picked(spec, net(*[tensors[name] for name in spec.inputs]))
    arrays = by_reference(outputs, tensors)
    parts = {term.key: native.call_loss(term, arrays) for term in spec.terms}
    sum(part[term.minimized].sum() for term, part in zip(spec.terms, parts.values())).backward()
    losses = {term.key: term.spec.fn for term in spec.terms if isinstance(term.spec.fn, torch.nn.Module)}
    parameters = dict(net.named_parameters())
    parameters.update({f"losses.{k}.{n}": p for k, fn in losses.items() for n, p in fn.named_parameters()})
    gradients = {
        name: np.zeros(each.shape) if each.grad is None else each.grad.numpy()
        for name, each in parameters.items()
        if each.requires_grad
    }
    numbers = {key: [by_sample(each.detach().numpy()) for each in part] for key, part in parts.items()}
    return {name: each.detach().numpy() for name, each in outputs.items()}, numbers, gradients


def by_sample(values: np.ndarray) -> np.ndarray:
    """Return the sums of a loss's values over each sample."""
    return values.reshape(len(values), -1).sum(axis=1) if values.ndim else values


def picked(spec: TaskSpec, result: Any) -> dict[str, Any]:
    """Return the declared outputs by name."""
    paths, problems = bind_outputs(spec.outputs, result, "the net")
    assert not problems
    return {name: at_path(result, path) for name, path in paths.items()}


def assert_same(ours: Any, theirs: Any, tolerance: float, path: str = "") -> None:
    """Assert that nested arrays are equal up to a share of the largest number in each."""
    if isinstance(theirs, Mapping):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_same(ours[name], theirs[name], tolerance, f"{path} {name}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            assert_same(one, other, tolerance, path)
    else:
        assert ours.shape == theirs.shape or ours.size == theirs.size == 1, path
        np.testing.assert_allclose(
            ours.reshape(theirs.shape),
            theirs,
            rtol=0,
            atol=tolerance * np.abs(theirs).max(initial=1),
            err_msg=path,
        )
