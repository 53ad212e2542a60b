"""Loss scaling, in float32: the same parameters as without, and no update where gradients are not finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    GradientAccumulation,
    MultiEstimator,
    TaskSpec,
    TrainerError,
    TrainerSpec,
)
from multifit.gluon.precision.loss_scaling import LossScaling, NoScaling, TrainerScale
from multifit.gluon.precision.precision import FULL

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

SPEC = TaskSpec(
    inputs=["point"],
    outputs=["near", "far"],
    labels=["near", "far"],
    losses={"near": gluon.loss.L2Loss(), "far": gluon.loss.L2Loss()},
)
TRAINERS = {
    "near": TrainerSpec("near.*", "adam", {"learning_rate": 0.01}, clip_norm=1.0),
    "far": TrainerSpec("far.*", "sgd", {"learning_rate": 0.01, "momentum": 0.9}),
}


class Heads(gluon.HybridBlock):
    """Two layers beside each other, so that one trainer's gradients do not hang on the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Dense(1, in_units=3), nn.Dense(1, in_units=3)

    def hybrid_forward(self, F: Any, point: Any) -> Any:
        return self.near(point), self.far(point)


def batches(count: int = 6, far: float = 1.0) -> list[tuple[np.ndarray, ...]]:
    """Return batches of 8; `far` is how large the labels of the second head are."""
    random = np.random.RandomState(0)
    points = [random.randn(8, 3).astype("float32") for _ in range(count)]
    return [(point, point[:, :1] * 2, point[:, 1:2] * far) for point in points]


def estimator(scaling: Callable[[], Any] = NoScaling, devices: int = 1, trainers: Any = TRAINERS) -> Any:
    mx.random.seed(0)
    net = Heads()
    net.initialize(mx.init.Normal(0.1), ctx=[mx.cpu(i) for i in range(devices)])
    net.hybridize()
    made = MultiEstimator(net, SPEC, trainers)
    made._engine.precision = replace(FULL, scaling=scaling)  # float32 needs none; the mathematics is the same
    return made


def values(made: Any) -> dict[str, np.ndarray]:
    return {name: p.list_data()[0].asnumpy() for name, p in made._engine.parameters.items()}


def same(one: Any, other: Any, *only: str) -> bool:
    pair = values(one), values(other)
    return all((pair[0][name] == pair[1][name]).all() for name in pair[0] if name.startswith(only or ("",)))


def test_a_scale_halves_and_doubles_as_declared():
    own = TrainerScale(2.0**16)
    own.learn(False, 2.0**16, 3, 2.0**17)
    assert own == TrainerScale(2.0**15, 0, 1)
    for _ in range(2):
        own.learn(True, 2.0**15, 3, 2.0**17)
    assert own == TrainerScale(2.0**15, 2, 1)
    own.learn(False, 2.0**15, 3, 2.0**17)  # the row is broken
    assert own == TrainerScale(2.0**14, 0, 2)
    for _ in range(3 * 5):
        own.learn(True, own.scale, 3, 2.0**17)
    assert own == TrainerScale(2.0**17, 0, 2), "no further than the largest"


def test_a_trainer_is_judged_by_the_scale_that_was_used():
    """It bore more, but not even this: half of what was used is what it may bear."""
    own = TrainerScale(2.0**20)
    own.learn(False, 2.0**4, 10, 2.0**24)
    assert own.scale == 2.0**3
    own.learn(False, 1.0, 10, 2.0**24)
    assert own.scale == 1.0, "less would make gradients larger than they are"


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("handlers", [list, lambda: [GradientAccumulation(2)]], ids=["plain", "accumulated"])
def test_scales_leave_no_trace_in_the_parameters(devices, handlers):
    """They are powers of two; clipping, momentum and accumulation see gradients of their real size."""
    plain, scaled = estimator(devices=devices), estimator(lambda: LossScaling(2.0**20), devices)
    histories = [made.fit(batches(), epochs=2, event_handlers=handlers()) for made in (plain, scaled)]
    assert histories[0]["train_loss"] == histories[1]["train_loss"]
    assert same(plain, scaled)
    found = scaled._engine.scaling.trainers
    assert [own.skipped for own in found.values()] == [0, 0] and found["near"].unskipped in (6, 12)


def test_only_the_trainer_whose_gradients_overflow_leaves_out_its_update():
    made, before = estimator(lambda: LossScaling(2.0**100)), estimator()
    before._engine.initialize()
    made.fit(batches(1, far=1e9), epochs=1)  # far's gradients: 2^100 of some 1e9 are beyond 3.4e38
    plain = estimator()
    plain.fit(batches(1, far=1e9), epochs=1)
    assert same(made, plain, "near") and not same(made, before, "near")
    assert same(made, before, "far") and not same(made, plain, "far")
    scales = made._engine.scaling.trainers
    assert scales == {"near": TrainerScale(2.0**100, 1), "far": TrainerScale(2.0**99, 0, 1)}
    assert made._engine.scaling.scale == 2.0**99, "the next batch takes what both bear"
    assert made.trainers["far"].optimizer.num_update == 0 and made.trainers["near"].optimizer.num_update == 1
    assert all(np.isfinite(value).all() for value in values(made).values())


def test_all_updates_are_counted_but_those_that_were_left_out():
    made = estimator(lambda: LossScaling(2.0**127, 2, 2.0**127))
    made.fit(batches(4), epochs=40)
    scales = made._engine.scaling.trainers
    assert scales["near"].skipped > 1, "it doubles until it is too much, over and over"
    assert all(np.isfinite(value).all() for value in values(made).values())
    moved = {name: made.trainers[name].optimizer.num_update for name in scales}
    assert moved == {name: 160 - own.skipped for name, own in scales.items()}


def test_gradients_that_no_scale_helps_are_told(caplog):
    made = estimator(lambda: LossScaling(2.0))
    broken = [(point, near, far * np.nan) for point, near, far in batches(3)]
    with caplog.at_level("INFO", logger="multifit"):
        made.fit(broken, epochs=1)
    told = [record.getMessage() for record in caplog.records if "loss scale" in record.getMessage()]
    assert told == ['the gradients of the trainer "far" are not finite at any loss scale']
    assert made._engine.scaling.trainers["far"] == TrainerScale(1.0, 0, 3)
    assert made._engine.scaling.trainers["near"].skipped == 0


def test_a_gradient_that_is_sparse_is_divided_too():
    class Words(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 1, sparse_grad=True)

        def hybrid_forward(self, F: Any, word: Any) -> Any:
            return self.words(word)

    def fitted(scaling: Callable[[], Any]) -> Any:
        mx.random.seed(0)
        made = MultiEstimator(
            Words(),
            gluon.loss.L2Loss(),
            TrainerSpec(".*", "sgd", {"learning_rate": 0.1}),
            initializer="normal",
        )
        made._engine.precision = replace(FULL, scaling=scaling)
        made.fit([(np.array([1, 2, 4]), np.ones((3, 1), "float32"))], epochs=3)
        return made

    scaled = fitted(LossScaling)
    assert same(scaled, fitted(NoScaling)) and scaled._engine.scaling.trainers["trainer"].unskipped == 3


def test_a_batch_that_reaches_no_parameter_changes_no_scale():
    scaling = LossScaling()
    made = estimator()
    made.check(batches(1))
    scaling.settle(made._engine.bound_trainers(), dict, pytest.fail)
    assert scaling.state_dict() == {} and scaling.scale == scaling.start


def test_a_trainer_that_updates_on_its_kvstore_is_refused():
    contexts = [mx.cpu(0), mx.cpu(1)]
    made = estimator(LossScaling, devices=2)
    trainer = gluon.Trainer(made.net.collect_params(), "sgd", update_on_kvstore=True)
    made = MultiEstimator(made.net, SPEC, trainer, contexts)
    made._engine.precision = replace(FULL, scaling=LossScaling)
    with pytest.raises(
        TrainerError, match='"trainer" update on the kvstore, where scaled .* give a TrainerSpec'
    ):
        made.fit(batches(1), epochs=1)


def test_a_run_that_is_resumed_has_its_scales(tmp_path):
    def run(epochs: int, **resume: Any) -> Any:
        made = estimator(lambda: LossScaling(2.0**127, 3, 2.0**127))
        handler = CheckpointHandler(tmp_path / str(len(resume)), Every(1, "epoch"))
        made.fit(batches(4), epochs=epochs, event_handlers=handler, **resume)
        return made

    whole = run(4)
    first = tmp_path / "0" / "checkpoints"
    assert any((folder / "scaling.json").exists() for folder in first.iterdir())
    state = whole._engine.scaling.state_dict()
    (tmp_path / "0").rename(tmp_path / "done")
    run(2)
    assert run(4, resume=tmp_path / "0")._engine.scaling.state_dict() == state != {}
    assert same(whole, run(4, resume=tmp_path / "0"))


def test_no_scaling_has_no_state(tmp_path):
    none = NoScaling()
    none.load_state_dict({})
    assert none.state_dict() == {}
    estimator().fit(batches(2), epochs=1, event_handlers=CheckpointHandler(tmp_path, Every(1, "epoch")))
    assert not list(tmp_path.rglob("scaling.json"))
