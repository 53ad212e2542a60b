"""Training, evaluating and predicting with torch: equal to MXNet, in float64."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.gluon.compat import mx
from multifit.losses import SegmentationCELoss
from multifit.utils.seeding import seed_everything
from tests.common.nets import hybridized, normed_heads, two_heads
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_engines_agree, batches, run

ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02, "wd": 0.01})


@dataclass
class Case:
    net: Callable[[], Any] = lambda: two_heads("hybrid")
    spec: Callable[[], TaskSpec] = lambda: spec_with()
    trainers: Callable[[], Any] = lambda: ADAM
    data: Any = field(default_factory=batches)
    options: dict[str, Any] = field(default_factory=dict)


def spec_with(**losses: Any) -> TaskSpec:
    return two_head_spec(
        labels=["digit", "size", "weight"], unused=["weight"], losses={"digit": CE, "size": L2, **losses}
    )


def scheduled() -> TrainerSpec:
    schedule = mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.1)
    return TrainerSpec(".*", "nag", {"momentum": 0.9}, lr_scheduler=schedule)


def several() -> dict[str, TrainerSpec]:
    body = TrainerSpec("body.*", "adam", {"learning_rate": 0.01}, clip_norm=0.2, every=2)
    return {"body": body, "heads": TrainerSpec("digit.*|size.*", "nag", {"learning_rate": 0.01})}


def own_optimizers() -> dict[str, TrainerSpec]:
    schedule = mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.02)
    return {
        "body": TrainerSpec("body.*", "adamw", lr_scheduler=schedule, clip_norm=0.2),
        "digit": TrainerSpec("digit.*", "radam", {"lr": 0.02, "weight_decay": 0.1}, every=2, accumulate=True),
        "size": TrainerSpec("size.*", "lion", {"lr": 0.002, "weight_decay": 0.1}),
    }


def with_spare() -> dict[str, TrainerSpec]:
    return {"called": TrainerSpec("(?!spare).*", "adam"), "spare": TrainerSpec("spare.*", "adam")}


def pixels() -> Any:
    return hybridized(mx.gluon.nn.Conv2D(3, 3, padding=1))


def of_pixels() -> TaskSpec:
    """A segmentation whose single pixels, or samples, may be missing, and with the weights of others."""
    loss, weighted = (SegmentationCELoss(ignore_label=2) for _ in range(2))
    losses = {
        "a": LossSpec(loss, "scores", "some"),
        "b": LossSpec(weighted, "scores", "some", sample_weight="weight"),
    }
    labels = [LabelSpec("some", missing=-9), "weight"]
    metrics = {"accuracy": MetricSpec(mx.metric.Accuracy(axis=1), "scores", "some")}
    return TaskSpec(inputs=["x"], outputs=["scores"], labels=labels, losses=losses, metrics=metrics)


def images() -> Any:
    random, made = np.random.RandomState(1), []
    for size in (6, 6, 5):
        label = random.randint(0, 3, (size, 4, 4)).astype("float64")
        label[random.rand(size, 4, 4) < 0.3] = -9
        label[0] = -9
        made.append((random.randn(size, 2, 4, 4), label, random.rand(size, 4, 4)))
    return made


def parts() -> LossSpec:
    return LossSpec(Parts(), "size", "size", returns=["mean", "square"])


CASES = {
    "adam": Case(),
    "running statistics": Case(net=lambda: normed_heads(dropout=0.0)),
    "clip_norm": Case(trainers=lambda: TrainerSpec(".*", "sgd", {"momentum": 0.9}, clip_norm=0.1)),
    "schedule": Case(trainers=scheduled),
    "several trainers": Case(trainers=several),
    "own optimizers": Case(trainers=own_optimizers),
    "gradients that add up": Case(options={"accumulate": 2}),
    "one task": Case(spec=lambda: spec_with().only("digit"), trainers=several),
    "missing pixels": Case(net=pixels, spec=of_pixels, data=images()),
    "a layer that is never called": Case(net=lambda: with_spare_layer(), trainers=with_spare),
    "running statistics that no gradient passes": Case(net=lambda: without_gradients(normed_heads(0.0))),
    "a weight that is a function": Case(
        spec=lambda: spec_with(digit=LossSpec(CE, weight=lambda state: 1 / (1 + state.step)))
    ),
    "a normalizer of 0": Case(
        spec=lambda: spec_with(digit=LossSpec(CE, normalize_by=lambda slots: 0.0 * slots["weight"]))
    ),
    "a loss of several parts, and of numbers": Case(spec=lambda: spec_with(size=parts())),
    "a loss with parameters": Case(spec=lambda: spec_with(size=LossSpec(Scaled(), "size", "size"))),
}


class Parts(mx.gluon.HybridBlock):
    """Returns a mean, which is a number, and squares."""

    def __init__(self) -> None:
        super().__init__()
        self.hybridize()

    def hybrid_forward(self, F: Any, size: Any, label: Any) -> Any:
        return F.mean(F.abs(size - label)), F.square(size - label)


class Scaled(mx.gluon.HybridBlock):
    """A loss that learns a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = self.params.get("log_scale", shape=(1,), init="zeros", dtype="float64")
        self.hybridize()

    def hybrid_forward(self, F: Any, size: Any, label: Any, log_scale: Any) -> Any:
        return F.broadcast_add(F.broadcast_mul(F.square(size - label), F.exp(-log_scale)), log_scale)


def without_gradients(net: Any) -> Any:
    net.body.collect_params().setattr("grad_req", "null")
    return net


def with_spare_layer() -> Any:
    net = two_heads("hybrid")
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((2, 6)))  # MXNet infers no shapes of a net with a layer that is never called
    net.spare = mx.gluon.nn.Dense(2, in_units=3)
    net.spare.initialize(mx.init.Xavier())
    return net


def made(case: Case) -> tuple[Any, ...]:
    seed_everything(3)
    net = case.net()
    net.cast("float64")
    net.hybridize()
    return net, case.spec(), case.trainers(), case.data


def assert_case_agrees(case: Case) -> None:
    assert_engines_agree(lambda engine: run(engine, *made(case), **case.options))


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_mxnet(name: str) -> None:
    assert_case_agrees(CASES[name])
