"""FusedUpdate equals the trainer's own update, whatever changes between two batches."""

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit.gluon.optim import updates
from multifit.gluon.optim.handle import TrainerHandle
from multifit.gluon.optim.updates import FusedUpdate
from tests.common.grids import ONE, TWO

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

SIZES = [(3, 4), (21,), (1,), (5, 6), (2,), (4,), (3,)]


@pytest.fixture(autouse=True)
def _groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are two large arrays, and more small ones than a group has."""
    monkeypatch.setattr(updates, "SMALL", 20)
    monkeypatch.setattr(updates, "GROUP_SIZE", 4)


def a_trainer(optimizer: Any, options: Any = None, contexts: Any = ONE, falls: bool = False) -> Any:
    parameters = []
    for i, shape in enumerate(SIZES):
        parameters.append(gluon.Parameter(f"p{i}_weight", shape=shape))
        values = nd.array(np.random.RandomState(i).normal(size=shape))
        parameters[-1].initialize(mx.init.Constant(values), contexts)
    parameters[2].lr_mult, parameters[1].wd_mult = 0.5, 2.0
    options = dict(options or {})
    if falls:
        options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=options["learning_rate"])
    return gluon.Trainer(parameters, optimizer, options, update_on_kvstore=False)


def backward(trainer: Any, step: int, skip: int | None = None) -> None:
    random, totals = np.random.RandomState(100 + step), []
    with autograd.record():
        for i, parameter in enumerate(trainer._params):
            factors = random.normal(size=parameter.shape)
            for data in parameter.list_data() if i != skip else ():
                totals.append((data * data * nd.array(factors, ctx=data.context)).sum())
    autograd.backward(totals)
    trainer.allreduce_grads()


def train_twins(
    optimizer: str,
    options: dict[str, Any],
    contexts: Any = ONE,
    change: Callable[[Any, int], object] = lambda trainer, step: None,
    skips: bool = False,
    falls: bool = False,
) -> tuple[Any, Any]:
    """Train twice, once with FusedUpdate; return its trainer and the other one, whose values are equal."""
    ours, theirs = (a_trainer(optimizer, options, contexts, falls) for _ in range(2))
    update = FusedUpdate(ours)
    for step in range(6):
        for trainer in (ours, theirs):
            backward(trainer, step, skip=step if skips and step % 2 else None)
            change(trainer, step)
        update()
        theirs.update(1, ignore_stale_grad=True)
        assert not any(data._fresh_grad for p in ours._params for data in p.list_data())
    for a, b in zip(ours._params, theirs._params):
        for mine, other in zip(a.list_data(), b.list_data()):
            np.testing.assert_allclose(mine.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-5)
    return ours, theirs


SGD, ADAM = {"learning_rate": 0.05, "momentum": 0.9}, {"learning_rate": 0.01}


@pytest.mark.parametrize(
    ("optimizer", "options", "contexts", "falls"),
    [
        ("sgd", {"learning_rate": 0.05}, ONE, False),
        ("sgd", {**SGD, "wd": 0.01, "clip_gradient": 0.5}, TWO, False),
        ("sgd", {"learning_rate": 0.05, "momentum": -0.5}, TWO, False),
        ("sgd", {"learning_rate": 0.05, "momentum": np.float32(0.5)}, ONE, True),
        ("adam", {**ADAM, "beta1": 0.5, "epsilon": 1e-4, "wd": 0.05, "clip_gradient": 0.1}, ONE, False),
        ("adam", {"learning_rate": 0.05}, TWO, True),
        ("adamw", {**ADAM, "wd": 0.05}, TWO, False),
        ("adamw", {"learning_rate": 0.05, "wd": 0.0, "clip_gradient": 0.1}, ONE, True),
        ("rmsprop", {"learning_rate": 0.01}, ONE, False),
    ],
    ids=str,
)
def test_equals_the_trainers_own_update(
    optimizer: str, options: dict[str, Any], contexts: Any, falls: bool
) -> None:
    """Also where a batch does not reach a parameter now and then."""
    ours, theirs = train_twins(optimizer, options, contexts, skips=True, falls=falls)
    assert ours.optimizer.num_update == theirs.optimizer.num_update
    assert ours.optimizer._all_index_update_counts == theirs.optimizer._all_index_update_counts
    assert ours.learning_rate == theirs.learning_rate


def set_momentum(trainer: Any, step: int) -> None:
    TrainerHandle("sgd", trainer).momentum = 0.9 * (step % 2)  # also to 0 and back


def set_options(trainer: Any, step: int) -> None:
    trainer.set_learning_rate(0.01 * (step + 1))
    trainer.optimizer.wd, trainer.optimizer.clip_gradient = 0.1 * (step % 2), 0.5 * (step // 3) or None
    trainer._params[0].lr_mult, trainer._params[1].wd_mult = 1 + step, step


def set_scale(trainer: Any, step: int) -> None:
    trainer._scale = (1.0, 0.0, 0.5)[step % 3]  # MXNet's operator for AdamW skips an update at 0


EACH = {"sgd": SGD, "adam": ADAM, "adamw": ADAM}
CHANGES = [*product((set_options, set_scale), EACH), (set_momentum, "sgd")]


@pytest.mark.parametrize(("change", "optimizer"), CHANGES)
def test_what_changes_between_batches_counts(change: Any, optimizer: str) -> None:
    train_twins(optimizer, EACH[optimizer], change=change)


class Own(mx.optimizer.SGD):
    """A user's optimizer."""

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        for each in weight:
            each[:] = 7


def test_optimizers_and_trainers_of_users_update_by_themselves() -> None:
    trainer, asked = a_trainer(Own()), []
    backward(trainer, 0)
    FusedUpdate(trainer)()
    assert all((p.data() == 7).asnumpy().all() for p in trainer._params)
    kind = type("Mine", (gluon.Trainer,), {"_update": lambda self, ignore_stale_grad: asked.append(self)})
    FusedUpdate(own := kind(trainer._params, "sgd", update_on_kvstore=False))()
    assert asked == [own]


@pytest.mark.parametrize(
    ("options", "overflow", "moved"),
    [
        ({"grad_stype": "row_sparse"}, False, [False, True, False, False]),
        ({"dtype": "float64"}, False, [True] * 4),
        ({}, True, [False] * 4),  # MXNet's automatic mixed precision skips the update
    ],
    ids=["sparse", "float64", "amp"],
)
def test_special_parameters_are_left_to_the_trainer(options: Any, overflow: bool, moved: list[bool]) -> None:
    parameter = gluon.Parameter("weight", shape=(4, 3), **options)
    parameter.initialize(mx.init.One())
    trainer = gluon.Trainer([parameter], "sgd", {"learning_rate": 1.0}, update_on_kvstore=False)
    if overflow:
        trainer._amp_loss_scaler = SimpleNamespace(has_overflow=lambda params: True)
    with autograd.record():
        total = parameter.data() * 3
        if "grad_stype" in options:  # of row 1
            total = nd.Embedding(nd.array([1]), parameter.data(), input_dim=4, output_dim=3, sparse_grad=True)
    total.backward()
    FusedUpdate(trainer)()
    assert (parameter.data().asnumpy() != 1).any(axis=1).tolist() == moved
