"""With several trainers the plan says which losses reach which."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import snapshot
from tests.common.grids import ONE, TWO
from tests.common.specs import BCE, CE, L2

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip


class Adversarial(gluon.Block):
    """A generator, and a discriminator of what it makes and of what is real."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = nn.Dense(4, in_units=3), nn.Dense(1, in_units=4)

    def forward(self, noise: Any, real: Any) -> Any:
        made = self.generator(noise)
        return self.discriminator(real), self.discriminator(made), self.discriminator(made.detach())


class Translation(gluon.HybridBlock):
    """An encoder, a decoder and a second head on the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.length = nn.Dense(6, in_units=3), nn.Dense(5), nn.Dense(1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        hidden = F.tanh(self.encoder(x))
        return self.decoder(hidden), self.length(hidden)


def real(score: Any) -> Any:
    return BCE(score, mx.nd.ones_like(score))


def made(score: Any) -> Any:
    return BCE(score, mx.nd.zeros_like(score))


def smooth(logits: Any) -> Any:
    return -mx.nd.log_softmax(logits).mean(axis=1)


def gan() -> tuple[Any, TaskSpec, Any]:
    losses = {
        "real": LossSpec(real, "real"),
        "against": LossSpec(made, "stopped"),
        "generator": LossSpec(real, "fake", weight=0.5),
    }
    spec = TaskSpec(outputs=["real", "fake", "stopped"], labels=(), losses=losses, inputs=["noise", "x"])
    return Adversarial(), spec, {name: TrainerSpec(f"{name}.*") for name in ("generator", "discriminator")}


def translation() -> tuple[Any, TaskSpec, Any]:
    losses = {
        "words": LossSpec(CE, "words", "words"),
        "smooth": LossSpec(smooth, "words"),
        "length": LossSpec(L2, "length", "length"),
        "constant": LossSpec(lambda length: mx.nd.zeros((len(length),)), "length"),
    }
    spec = TaskSpec(outputs=["words", "length"], labels=["words", "length"], losses=losses, inputs=["x"])
    return Translation(), spec, {"a": TrainerSpec("(encoder|decoder).*"), "b": TrainerSpec("length.*")}


def data(outputs: int) -> Any:
    random = np.random.RandomState(0)
    if outputs == 3:
        return [tuple(random.randn(8, width).astype("float32") for width in (3, 4))] * 2
    words = np.arange(8, dtype="float32") % 5
    return [(random.randn(8, 3).astype("float32"), words, random.rand(8, 1).astype("float32"))] * 2


BOTH = ("real", "against", "generator")
CASES: dict[str, Any] = {
    "a GAN, detached": (gan, {"generator": ("generator",), "discriminator": BOTH}),
    "several tasks": (translation, {"a": ("words", "smooth", "length"), "b": ("length",)}),
}


@pytest.mark.parametrize("name", CASES)
def test_which_losses_reach_which_trainer(name: str) -> None:
    make, expected = CASES[name]
    devices = TWO if make is gan else ONE
    net, spec, trainers = make()
    net.initialize(ctx=devices)
    batches = data(len(spec.output_names))
    estimator = MultiEstimator(net, spec, trainers, devices)
    plan = estimator.check(batches)
    before = snapshot(net)
    estimator.fit(batches, epochs=2, event_handlers=[])
    assert {trainer.name: trainer.losses for trainer in plan.trainers} == expected
    assert any((before[name] != array).any() for name, array in snapshot(net).items())


def test_gradients_are_as_they_were() -> None:
    """A fit with two trainers updates what a single trainer updates, and a check touches no gradient."""
    results = []
    for together in (False, True):
        mx.random.seed(3)
        net, spec, trainers = translation()
        net.initialize()
        sgd = {"learning_rate": 0.1}
        split = {name: TrainerSpec(each.params, "sgd", sgd) for name, each in trainers.items()}
        estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", sgd) if together else split)
        estimator.fit(data(2), epochs=2, event_handlers=[])
        gradients = [p.grad().asnumpy() for p in net.collect_params().values()]
        estimator.check(data(2))
        np.testing.assert_equal([p.grad().asnumpy() for p in net.collect_params().values()], gradients)
        results.append(list(snapshot(net).values()))
    np.testing.assert_equal(*results)


@pytest.mark.parametrize("options", [{"every": 3}, {"every": 2, "accumulate": True}], ids=str)
def test_which_losses_reach_which_trainer_where_loaders_take_turns(options: Any) -> None:
    net, spec, _ = translation()
    net.initialize(ctx=TWO)
    net.hybridize()
    ((x, words, length), *_) = data(2)
    loaders = {"words": [{"x": x, "words": words}] * 2, "length": [{"x": x, "length": length}] * 2}
    trainers = {name: TrainerSpec(f"{name}.*", **options) for name in ("encoder", "decoder", "length")}
    estimator = MultiEstimator(net, spec, trainers, TWO)
    plan = estimator.check(loaders)
    words = ("words", "smooth")
    expected = {"encoder": (*words, "length"), "decoder": words, "length": ("length",)}
    assert {trainer.name: trainer.losses for trainer in plan.trainers} == expected
    assert {trainer.every for trainer in plan.trainers} == {options["every"]}
    estimator.fit(loaders, epochs=1, event_handlers=[])
