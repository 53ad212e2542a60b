"""FusedUpdate equals the trainer's own update, in fewer calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import TrainerSpec
from multifit.gluon.optim.fused_updates import GROUP_SIZE, FusedUpdate
from multifit.gluon.optim.trainer_binding import bind_trainers
from multifit.gluon.optim.trainers import Trainers

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

SIZES = [(3, 4), (4,), (110, 100), (1,), (70, 70), (5, 2)]  # among them one that is large for each optimizer


def parameters(contexts: list[Any], sizes: list[tuple[int, ...]] = SIZES, **options: Any) -> list[Any]:
    found = []
    for i, shape in enumerate(sizes):
        parameter = gluon.Parameter(f"p{i}_weight", shape=shape, **options)
        parameter.initialize(
            mx.init.Constant(nd.array(np.random.RandomState(i).normal(size=shape))), contexts
        )
        found.append(parameter)
    return found


def backward(held: list[Any], step: int, skip: int | None = None) -> None:
    random = np.random.RandomState(100 + step)
    with autograd.record():
        totals = []
        for i, parameter in enumerate(held):
            factors = random.normal(size=parameter.shape)
            if i != skip:
                for data in parameter.list_data():
                    totals.append((data * data * nd.array(factors, ctx=data.context)).sum())
    autograd.backward(totals)


def pair(
    optimizer: str, options: dict[str, Any], contexts: list[Any] | None = None
) -> list[tuple[list[Any], Any]]:
    """Return two equal pairs of parameters and trainer."""
    found = []
    for _ in range(2):
        held, own = parameters(contexts or [mx.cpu()]), dict(options)
        held[1].lr_mult, held[2].wd_mult = 0.5, 2.0
        if own.pop("falling", False):
            own["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=own["learning_rate"])
        found.append((held, gluon.Trainer(held, optimizer, own, update_on_kvstore=False)))
    return found


OPTIONS = [
    ("sgd", {"learning_rate": 0.05}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.01, "clip_gradient": 0.5}),
    ("sgd", {"learning_rate": 0.05, "momentum": -0.5}),
    ("sgd", {"falling": True, "learning_rate": 0.05, "momentum": np.float32(0.5)}),
    ("adam", {"learning_rate": 0.01}),
    ("adam", {"learning_rate": 0.01, "beta1": 0.5, "epsilon": 1e-4, "clip_gradient": 0.1}),
    ("adam", {"learning_rate": 0.01, "wd": 0.05}),
    ("adam", {"falling": True, "learning_rate": 0.05}),
    ("nag", {"learning_rate": 0.05, "momentum": 0.9}),
    ("rmsprop", {"learning_rate": 0.01}),
]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("optimizer", "options"), OPTIONS, ids=str)
def test_equals_the_trainers_own_update(optimizer: str, options: dict[str, Any], devices: int) -> None:
    contexts = [mx.cpu(i) for i in range(devices)]
    (ours, one), (theirs, other) = pair(optimizer, options, contexts)
    update = FusedUpdate(one)
    for step in range(12):
        for held, trainer in ((ours, one), (theirs, other)):
            backward(held, step, skip=step % 5)  # now and then a parameter is not reached
            trainer.allreduce_grads()
        update()
        other.update(1, ignore_stale_grad=True)
        assert not any(data._fresh_grad for parameter in ours for data in parameter.list_data())
    for mine, own in zip(ours, theirs):
        for a, b in zip(mine.list_data(), own.list_data()):
            np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-5, atol=1e-5)
    assert one.optimizer.num_update == other.optimizer.num_update
    assert one.optimizer._all_index_update_counts == other.optimizer._all_index_update_counts
    assert one.learning_rate == other.learning_rate


def move_both(step: int, ours: Any, theirs: Any, update: Any, other: Any) -> None:
    """Give both the same gradients; move ours together, theirs by their trainer."""
    backward(ours, step)
    backward(theirs, step)
    update()
    other.update(1)


def assert_equal(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.data().asnumpy(), b.data().asnumpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_states_are_the_trainers_own(optimizer: str, tmp_path: Any) -> None:
    options = {"learning_rate": 0.05, **({"momentum": 0.9} if optimizer == "sgd" else {})}
    (ours, one), (theirs, other) = pair(optimizer, options)
    update = FusedUpdate(one)
    for step in range(3):
        move_both(step, ours, theirs, update, other)
    one.save_states(str(tmp_path / "states"))
    other.load_states(str(tmp_path / "states"))  # and back: what was loaded is used from then on
    one.load_states(str(tmp_path / "states"))
    move_both(3, ours, theirs, update, other)
    assert_equal(ours, theirs)


def test_momentum_that_changes_between_steps() -> None:
    (ours, one), (theirs, other) = pair("sgd", {"learning_rate": 0.05, "momentum": 0.9})
    update = FusedUpdate(one)
    for step in range(4):
        move_both(step, ours, theirs, update, other)
        one.optimizer.momentum = other.optimizer.momentum = 0.9 * (step % 2)
    assert_equal(ours, theirs)


def test_a_gradient_scale_of_0() -> None:
    """MXNet's AdamW skips the update then; Adam decays its means and moves on."""
    (ours, one), (theirs, other) = pair("adam", {"learning_rate": 0.01})
    update = FusedUpdate(one)
    for step in range(3):
        backward(ours, step)
        backward(theirs, step)
        one._scale = other._scale = float(step != 1)
        update()
        other.update(1)
    assert_equal(ours, theirs)


class Own(mx.optimizer.SGD):
    """A user's optimizer."""

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        for each in weight:
            each[:] = 7


class Quiet(gluon.Trainer):
    """A user's trainer."""

    def _update(self, ignore_stale_grad: bool = False) -> None:
        self.asked = True


def test_user_defined_optimizers_and_trainers_update_by_themselves() -> None:
    held = parameters([mx.cpu()])
    update = FusedUpdate(gluon.Trainer(held, Own(), update_on_kvstore=False))
    assert update.calls is None
    backward(held, 0)
    update()
    assert all((p.data() == 7).asnumpy().all() for p in held)
    trainer = Quiet(held, "sgd", update_on_kvstore=False)
    FusedUpdate(trainer)()
    assert trainer.asked


def test_a_replaced_method_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    held = parameters([mx.cpu()])
    trainer = gluon.Trainer(held, "sgd", update_on_kvstore=False)
    monkeypatch.setattr(gluon.Trainer, "update", lambda *args, **options: calls.append(args))
    FusedUpdate(trainer)()
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["sparse", "float64", "amp"])
def test_special_parameters_are_left_to_the_trainer(kind: str) -> None:
    options = {"sparse": {"grad_stype": "row_sparse"}, "float64": {"dtype": "float64"}}.get(kind, {})
    held = parameters([mx.cpu()], [(4, 3)], **options)
    trainer = gluon.Trainer(held, "sgd", {"learning_rate": 1.0}, update_on_kvstore=False)
    if kind == "amp":
        trainer._amp_loss_scaler = type("Scaler", (), {"has_overflow": lambda self, params: True})()
    update = FusedUpdate(trainer)
    assert update.calls is None
    before = held[0].data().asnumpy()
    with autograd.record():
        total = (
            (held[0].data() * 3).sum()
            if kind != "sparse"
            else nd.Embedding(
                nd.array([1]), held[0].data(), input_dim=4, output_dim=3, sparse_grad=True
            ).sum()
        )
    total.backward()
    update()
    moved = (held[0].data().asnumpy() != before).any(axis=1)
    assert (
        list(moved)
        == {"sparse": [False, True, False, False], "float64": [True] * 4, "amp": [False] * 4}[kind]
    )


def test_the_number_of_calls() -> None:
    many = parameters([mx.cpu()], [(2,)] * (GROUP_SIZE + 1) + [(110, 100)])
    assert FusedUpdate(gluon.Trainer(many, "sgd", update_on_kvstore=False)).calls == 3
    assert FusedUpdate(gluon.Trainer(many[:5], "adam", update_on_kvstore=False)).calls == 1
    trainers, problems = bind_trainers(
        {"a": TrainerSpec("p0_weight"), "b": gluon.Trainer(many[1:2], "sgd", kvstore=mx.kv.create("local"))},
        {"p0_weight": many[0], "p1_weight": many[1]}, (), [mx.cpu()],
    )  # fmt: skip
    assert problems == [] and isinstance(trainers, Trainers)
    assert (trainers.calls("a"), trainers.calls("b")) == (1, None)
