"""Losses that are bound to trainers, on torch: equal to MXNet, in float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, TrainerSpec
from multifit.gluon.compat import mx
from tests.api.test_bound_losses import PARTS, make_net, make_spec
from tests.common.nets import hybridized
from tests.torch.fits import assert_engines_agree, run

nn = mx.gluon.nn
RANDOM = np.random.RandomState(0)
BATCHES = [tuple(RANDOM.randn(n, width) for width in (3, 4)) for n in (6, 6, 5, 1)]


def adversaries(*layers: Any) -> Any:
    net = make_net(*layers)
    net.cast("float64")
    return net


def trainers(**options: Any) -> dict[str, TrainerSpec]:
    return {part: TrainerSpec(f"{part}.*", "adam", {"wd": 0.01}, **options) for part in PARTS}


def unbound(**changes: Any) -> Any:
    """A spec with a loss that reaches all trainers."""
    penalty = hybridized(nn.HybridLambda(lambda F, score: 0.1 * score**2))
    return make_spec(penalty=LossSpec(penalty, "made"), **changes)


CASES: dict[str, tuple[Any, ...]] = {
    "an adversarial net": (make_spec, trainers),
    "a loss of all trainers": (unbound, trainers),
    "a weight of 0": (
        lambda: make_spec(fool=replace(make_spec().losses["fool"], weight=0.0)),
        lambda: trainers(clip_norm=0.05),
    ),
    "rhythms": (make_spec, lambda: trainers(every=2, clip_norm=0.1)),
}


@pytest.mark.parametrize("name", CASES)
def test_bound_losses_are_those_of_mxnet(name: str) -> None:
    spec, make_trainers = CASES[name]
    assert_engines_agree(lambda engine: run(engine, adversaries(), spec(), make_trainers(), BATCHES))


def test_batches_are_normalised_as_by_mxnet() -> None:
    def trained(engine: str) -> tuple[dict[str, Any], dict[str, Any]]:
        net = adversaries(nn.BatchNorm(in_channels=8))
        history, _, _, values = run(engine, net, make_spec(), trainers(), BATCHES)
        kept = {name: value for name, value in values.items() if "running" not in name}
        return {name: value for name, value in history.items() if name.startswith("train_")}, kept

    assert_engines_agree(trained)
