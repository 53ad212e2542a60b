"""Losses that are bound to trainers, on torch: equal to MXNet, in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TrainerSpec
from multifit.gluon.compat import mx
from tests.api.test_bound_losses import PARTS, make_net, make_spec
from tests.common.nets import hybridized
from tests.torch.fits import assert_engines_agree, run
from tests.torch.runs import assert_resumes

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
    """The running statistics of a layer that is passed twice are not: MXNet counts the passes backwards."""

    def trained(engine: str) -> tuple[dict[str, Any], dict[str, Any]]:
        net = adversaries(nn.BatchNorm(in_channels=8))
        history, _, _, values = run(engine, net, make_spec(), trainers(), BATCHES)
        kept = {name: value for name, value in values.items() if "running" not in name}
        return {name: value for name, value in history.items() if name.startswith("train_")}, kept

    assert_engines_agree(trained)


def test_each_loss_moves_its_own_trainers_parameters_only() -> None:
    """The gradient of the generator's loss passes through the discriminator, and stays out of it."""
    alone = make_spec(**{name: replace(make_spec().losses[name], weight=0.0) for name in ("real", "made")})
    sgd = {part: TrainerSpec(f"{part}.*", "sgd", {"learning_rate": 0.1}) for part in PARTS}
    estimator = MultiEstimator(adversaries(), alone, sgd, engine="torch")
    estimator.check(BATCHES)
    before = {name: parameter.data().asnumpy() for name, parameter in estimator.parameters.items()}
    estimator.fit(BATCHES, epochs=1, event_handlers=[])
    for name, parameter in estimator.parameters.items():
        moved = not np.array_equal(parameter.data().asnumpy(), before[name])
        assert moved == name.startswith("generator"), name


def test_a_resumed_run_is_equal_bit_for_bit(tmp_path: Path) -> None:
    """With dropout, whose masks are drawn for each of the two that pass through it."""

    def make(engine: str) -> MultiEstimator:
        net = adversaries(nn.BatchNorm(in_channels=8), nn.Dropout(0.3))
        return MultiEstimator(net, make_spec(), trainers(), engine=engine)

    assert_resumes(make, tmp_path, data=BATCHES)


def test_a_loss_that_never_gets_there_is_refused() -> None:
    spec = make_spec(fool=replace(make_spec().losses["fool"], outputs="real"))
    estimator = MultiEstimator(adversaries(), spec, trainers(), engine="torch")
    for call in (estimator.check, lambda data: estimator.fit(data, epochs=1, event_handlers=[])):
        with pytest.raises(SpecError, match=r'losses\["fool"\]: its gradient reaches no parameter of the'):
            call(BATCHES)
