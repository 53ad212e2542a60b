"""FusedUpdate equals the trainer's own update, in fewer calls."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit.gluon.optim.handle import TrainerHandle
from multifit.gluon.optim.updates import GROUP_SIZE, FusedUpdate
from tests.common.grids import ONE, TWO

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip

SIZES = [(3, 4), (4,), (110, 100), (1,), (70, 70), (5, 2)]  # among them one that is large for each optimizer


def make_parameters(contexts: list[Any], sizes: list[tuple[int, ...]] = SIZES, **options: Any) -> list[Any]:
    parameters = []
    for i, shape in enumerate(sizes):
        parameter = gluon.Parameter(f"p{i}_weight", shape=shape, **options)
        values = mx.init.Constant(nd.array(np.random.RandomState(i).normal(size=shape)))
        parameter.initialize(values, contexts)
        parameters.append(parameter)
    return parameters


def backward(parameters: list[Any], step: int, skip: int | None = None) -> None:
    random = np.random.RandomState(100 + step)
    with autograd.record():
        totals = []
        for i, parameter in enumerate(parameters):
            factors = random.normal(size=parameter.shape)
            if i != skip:
                for data in parameter.list_data():
                    totals.append((data * data * nd.array(factors, ctx=data.context)).sum())
    autograd.backward(totals)


class Twins:
    """Two equal sets of parameters with equal trainers: ours is updated by FusedUpdate, theirs by itself."""

    def __init__(self, optimizer: str, options: dict[str, Any], contexts: Any = ONE) -> None:
        made = [self._make(optimizer, **options, contexts=contexts) for _ in range(2)]
        (self.ours, self.trainer), (self.theirs, self.other) = made
        self.update = FusedUpdate(self.trainer)

    def _make(self, optimizer: str, contexts: Any, falling: bool = False, **options: Any) -> Any:
        parameters = make_parameters(contexts)
        parameters[1].lr_mult, parameters[2].wd_mult = 0.5, 2.0
        if falling:
            rate = options["learning_rate"]
            options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=rate)
        return parameters, gluon.Trainer(parameters, optimizer, options, update_on_kvstore=False)

    def step(self, step: int, skip: int | None = None, scale: float = 1.0) -> None:
        for parameters, trainer in ((self.ours, self.trainer), (self.theirs, self.other)):
            backward(parameters, step, skip)
            trainer.allreduce_grads()
            trainer._scale = scale
        self.update()
        self.other.update(1, ignore_stale_grad=True)

    def check(self) -> None:
        for ours, theirs in zip(self.ours, self.theirs):
            for a, b in zip(ours.list_data(), theirs.list_data()):
                np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-5, atol=1e-5)


SGD, ADAM = {"learning_rate": 0.05, "momentum": 0.9}, {"learning_rate": 0.01}


@pytest.mark.parametrize(
    ("optimizer", "options", "contexts"),
    [
        ("sgd", {"learning_rate": 0.05}, ONE),
        ("sgd", {**SGD, "wd": 0.01, "clip_gradient": 0.5}, TWO),
        ("sgd", {"learning_rate": 0.05, "momentum": -0.5}, TWO),
        ("sgd", {"falling": True, "learning_rate": 0.05, "momentum": np.float32(0.5)}, ONE),
        ("adam", {**ADAM, "beta1": 0.5, "epsilon": 1e-4, "clip_gradient": 0.1}, ONE),
        ("adam", {**ADAM, "wd": 0.05}, ONE),
        ("adam", {"falling": True, "learning_rate": 0.05}, TWO),
        ("adamw", {**ADAM, "wd": 0.05}, TWO),
        ("adamw", {"falling": True, "learning_rate": 0.05, "wd": 0.0, "clip_gradient": 0.1}, ONE),
        ("rmsprop", {"learning_rate": 0.01}, ONE),
    ],
    ids=str,
)
def test_equals_the_trainers_own_update(optimizer: str, options: dict[str, Any], contexts: Any) -> None:
    twins = Twins(optimizer, options, contexts)
    for step in range(7):
        twins.step(step, skip=step % 5)  # now and then a parameter is not reached
        assert not any(data._fresh_grad for parameter in twins.ours for data in parameter.list_data())
    twins.check()
    one, other = twins.trainer, twins.other
    assert one.optimizer.num_update == other.optimizer.num_update
    assert one.optimizer._all_index_update_counts == other.optimizer._all_index_update_counts
    assert one.learning_rate == other.learning_rate


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_states_are_the_trainers_own(optimizer: str, tmp_path: Any) -> None:
    twins, path = Twins(optimizer, SGD if optimizer == "sgd" else ADAM), str(tmp_path / "states")
    for step in range(3):
        twins.step(step)
    twins.trainer.save_states(path)
    for trainer in (twins.other, twins.trainer):  # and back: what was loaded is used from then on
        trainer.load_states(path)
    twins.step(3)
    twins.check()


@pytest.mark.parametrize("first", [0.9, 0.0])
def test_momentum_that_changes_between_steps(first: float) -> None:
    twins = Twins("sgd", {**SGD, "momentum": first})
    for step in range(4):
        twins.step(step)
        for trainer in (twins.trainer, twins.other):
            TrainerHandle("sgd", trainer).momentum = 0.9 * (step % 2 == (first == 0.9))
    twins.check()


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_gradient_scale_of_0(optimizer: str) -> None:
    """MXNet's operator for AdamW skips the update then; the optimizers decay their means and move on."""
    twins = Twins(optimizer, ADAM)
    for step in range(3):
        twins.step(step, scale=float(step != 1))
    twins.check()


class Own(mx.optimizer.SGD):
    """A user's optimizer."""

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        for each in weight:
            each[:] = 7


def test_user_defined_optimizers_and_trainers_update_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, asked = make_parameters(ONE), []
    update = FusedUpdate(gluon.Trainer(parameters, Own(), update_on_kvstore=False))
    assert update.calls is None
    backward(parameters, 0)
    update()
    assert all((p.data() == 7).asnumpy().all() for p in parameters)
    kind = type("Mine", (gluon.Trainer,), {"_update": lambda self, ignore_stale_grad: asked.append(self)})
    FusedUpdate(own := kind(parameters, "sgd", update_on_kvstore=False))()
    trainer = gluon.Trainer(parameters, "sgd", update_on_kvstore=False)
    monkeypatch.setattr(gluon.Trainer, "update", lambda self, *args, **options: asked.append(self))
    FusedUpdate(trainer)()
    assert asked == [own, trainer]


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
    (parameter,) = make_parameters(ONE, [(4, 3)], **options)
    trainer = gluon.Trainer([parameter], "sgd", {"learning_rate": 1.0}, update_on_kvstore=False)
    if overflow:
        trainer._amp_loss_scaler = SimpleNamespace(has_overflow=lambda params: True)
    update = FusedUpdate(trainer)
    assert update.calls is None
    before = parameter.data().asnumpy()
    with autograd.record():
        if "grad_stype" in options:  # of row 1
            total = nd.Embedding(nd.array([1]), parameter.data(), input_dim=4, output_dim=3, sparse_grad=True)
        else:
            total = parameter.data() * 3
    total.backward()
    update()
    assert (parameter.data().asnumpy() != before).any(axis=1).tolist() == moved


def test_the_number_of_calls() -> None:
    many = make_parameters(ONE, [(2,)] * (GROUP_SIZE + 1) + [(110, 100)])
    assert FusedUpdate(gluon.Trainer(many, "sgd", update_on_kvstore=False)).calls == 3
    for name in ("adam", "adamw"):
        assert FusedUpdate(gluon.Trainer(many[:5], name, update_on_kvstore=False)).calls == 1
