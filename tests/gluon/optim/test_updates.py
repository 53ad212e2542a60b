"""FusedUpdate equals the trainer's own update, whatever changes between two batches."""

from pathlib import Path
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


OPTIONS: dict[str, dict[str, list[Any]]] = {
    "sgd": {"momentum": [0.0, 0.9, -0.5, np.float32(0.5)]},
    "adam": {"beta1": [0.9, 0.5], "epsilon": [1e-8, 1e-4]},
    "adamw": {"beta1": [0.9, 0.5]},
    "rmsprop": {"centered": [False, True]},
}


def set_options(trainer: Any, step: int) -> None:
    trainer.set_learning_rate(0.01 * (step + 1))
    trainer.optimizer.wd, trainer.optimizer.clip_gradient = 0.1 * (step % 2), 0.5 * (step // 3) or None
    trainer._params[0].lr_mult, trainer._params[1].wd_mult = 1 + step, step


def set_scale(trainer: Any, step: int) -> None:
    trainer._scale = (1.0, 0.0, 0.5)[step % 3]  # MXNet's operator for AdamW skips an update at 0


def set_momentum(trainer: Any, step: int) -> None:
    if type(trainer.optimizer) is mx.optimizer.SGD:
        TrainerHandle("sgd", trainer).momentum = 0.9 * (step % 2)  # also to 0 and back


def load_states(trainer: Any, step: int) -> None:
    trainer.save_states(f"states {step}")
    trainer.load_states(f"states {step}")


def renew_arrays(trainer: Any, step: int) -> None:
    trainer._params[0].grad_req, trainer._params[1].grad_req = "null", "add"
    trainer._params[0].grad_req = "write"


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_trainers_own_update(seed: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Of random options, where batches do not reach a parameter, and whatever changes between two of them."""
    monkeypatch.chdir(tmp_path)
    random, optimizer = np.random.RandomState(seed), [*OPTIONS][seed % 4]
    given = {"learning_rate": [0.02], "wd": [0.0, 0.05], "clip_gradient": [None, 0.1], **OPTIONS[optimizer]}
    options = {name: values[random.randint(len(values))] for name, values in given.items()}
    contexts, falls, skips = ((ONE, TWO)[random.randint(2)], *(random.rand(2) < 0.5))
    changes = [set_scale, set_momentum, load_states, renew_arrays, *([] if falls else [set_options])]
    at = random.rand(6, len(changes)) < (0.2 if seed >= 8 else 0)
    ours, theirs = (a_trainer(optimizer, options, contexts, falls) for _ in range(2))
    update = FusedUpdate(ours)
    for step in range(6):
        for trainer in (ours, theirs):
            backward(trainer, step, skip=step if skips and step % 2 else None)
            for change, chosen in zip(changes, at[step]):
                if chosen:
                    change(trainer, step)
        update()
        theirs.update(1, ignore_stale_grad=True)
        assert not any(data._fresh_grad for p in ours._params for data in p.list_data())
    for a, b in zip(ours._params, theirs._params):
        for mine, other in zip(a.list_data(), b.list_data()):
            np.testing.assert_allclose(mine.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-5)
    assert ours.optimizer.num_update == theirs.optimizer.num_update
    assert ours.optimizer._all_index_update_counts == theirs.optimizer._all_index_update_counts
    assert ours.learning_rate == theirs.learning_rate


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
