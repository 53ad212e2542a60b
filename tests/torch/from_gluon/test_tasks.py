"""Nets and losses of the task files: as modules, they compute what they do with MXNet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit import TaskSpec
from multifit.cli import build_parser
from multifit.cli.task import Choices, Task
from multifit.engines import Setup
from multifit.gluon.compat import mx
from multifit.gluon.optim.parameters import named_parameters
from multifit.gluon.step.blocks import blocks_of
from multifit.gluon.step.loss_calls import call_loss
from multifit.spec.checks.results import at_path, bind_outputs
from multifit.spec.terms import by_reference
from multifit.torch import loss_calls as native
from tests.torch.from_gluon.bridges import assert_same, bridged, by_sample

TASKS = Path(__file__).parents[3] / "tasks"
PICTURES = ("train_count=4", "val_count=2", "batch_size=2", "size=64")
CASES = [
    ("cells",),
    ("classification", "model=lenet", "batch_size=4"),
    ("dcgan",),
    ("detection", *PICTURES, "base=tiny", "dataset=shapes"),
    ("diabetes",),
    ("digits",),
    ("language",),
    ("logistic_regression",),
    ("scenes", *PICTURES),
    ("segmentation", *PICTURES, "dataset=scenes"),
    ("sentiment", "model=birnn"),
    ("sentiment", "model=textcnn"),
    ("translation", "train_count=80", "val_count=8"),
    ("translation", "train_count=80", "val_count=8", "model=transformer"),
]
Arrays = dict[str, np.ndarray]


def declared(task: str, *settings: str) -> tuple[Any, Any, Arrays]:
    """Return the net of a task, without dropout, its spec, and the slots of a batch, in float64."""
    chosen = ["--set", *settings] if settings else []
    run = Task(Choices(build_parser().parse_args(["train", str(TASKS / f"{task}.py"), "--quiet", *chosen])))
    session, net = run.estimator._session, run.estimator.net
    batch = session.splitter("train").split(next(iter(run.data[0])))
    for block in blocks_of(net).values():
        for name in {"_rate", "_dropout"} & set(vars(block)):
            setattr(block, name, 0)
    net.cast("float64")
    slots = {name: each.asnumpy() for name, each in batch.slots[0].items() if each is not None}
    floats = {name: each.astype("float64") for name, each in slots.items() if each.dtype.kind == "f"}
    return net, session.spec, {**slots, **floats}


def picked(spec: TaskSpec, result: Any) -> dict[str, Any]:
    """Return the declared outputs by name."""
    paths, problems = bind_outputs(spec.outputs, result, "the net")
    assert not problems
    return {name: at_path(result, path) for name, path in paths.items()}


def of_gluon(net: Any, spec: TaskSpec, slots: Arrays) -> tuple[Arrays, dict[str, Any], Arrays]:
    """Return outputs, losses by part and gradients of a step with MXNet, in NumPy."""
    arrays = {name: mx.nd.array(value, dtype=value.dtype) for name, value in slots.items()}
    with mx.autograd.record():
        outputs = picked(spec, net(*[arrays[name] for name in spec.inputs]))
        parts = {term.key: call_loss(term, by_reference(outputs, arrays)) for term in spec.terms}
        total = sum(part[term.minimized].sum() for term, part in zip(spec.terms, parts.values()))
    total.backward()
    parameters = named_parameters(net, {term.key: term.spec.fn for term in spec.terms})
    gradients = {name: p.grad().asnumpy() for name, p in parameters.items() if p.grad_req != "null"}
    losses = {key: [by_sample(each.asnumpy()) for each in part] for key, part in parts.items()}
    return {name: each.asnumpy() for name, each in outputs.items()}, losses, gradients


def of_torch(setup: Setup, slots: Arrays) -> tuple[Arrays, dict[str, Any], Arrays]:
    """Return the same of the module."""
    spec, tensors = setup.spec, {name: torch.from_numpy(np.array(each)) for name, each in slots.items()}
    outputs = picked(spec, setup.net(*[tensors[name] for name in spec.inputs]))
    parts = {term.key: native.call_loss(term, by_reference(outputs, tensors)) for term in spec.terms}
    sum(part[term.minimized].sum() for term, part in zip(spec.terms, parts.values())).backward()
    trained = {name: each for name, each in setup.net.named_parameters() if each.requires_grad}
    gradients = {n: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for n, p in trained.items()}
    losses = {key: [by_sample(each.detach().numpy()) for each in part] for key, part in parts.items()}
    return {name: each.detach().numpy() for name, each in outputs.items()}, losses, gradients


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_step_of_a_task(case: tuple[str, ...]) -> None:
    net, spec, slots = declared(*case)
    setup, bridge = bridged(net, spec)
    with torch.no_grad():
        setup.net.eval()(*[torch.from_numpy(slots[name]) for name in spec.inputs])  # gives parameters values
    setup.net.train()
    bridge.write_back()
    theirs = of_gluon(net, spec, slots)
    assert_same(of_torch(setup, slots), theirs, 1e-8)
    before = {n: p.data().asnumpy() for n, p in net._collect_params_with_prefix().items()}  # after its step
    bridge.write_back()
    after = {n: p.data().asnumpy() for n, p in net._collect_params_with_prefix().items()}
    if "dcgan" not in case:  # in which a layer runs twice: MXNet updates its statistics in the other order
        assert_same(after, before, 1e-8)  # running statistics, too
