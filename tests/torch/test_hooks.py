"""Handlers that change outputs and objectives, on torch: as with MXNet, whose arrays they get."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CutMix, LabelSmoothing, LossSpec, MixUp, MultiEstimator, SpecError
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import BATCHES, PAIRS, assert_resumes, estimator_of, values
from tests.torch.test_engine import Scaled


class Penalty:
    """Adds the squares of an output, of a loss and of a parameter to the objective."""

    def change_objective(self, estimator: Any, objectives: Any, pred: Any, loss: Any, label: Any) -> Any:
        (size,), (digit,), (true,) = pred["size"], loss["digit"], label["size"]
        weight = estimator.parameters["body.weight"].data()
        penalty = mx.nd.sum(size**2) + mx.nd.sum(digit**2) + mx.nd.sum(weight**2) + mx.nd.sum(true)
        return [*objectives, 0.01 * penalty]


class InPlaceOf:
    """Replaces the objective by a loss of its own of one head: the other gets gradients of 0."""

    def change_objective(self, estimator: Any, objectives: Any, pred: Any, label: Any) -> Any:
        return [L2(output, true).mean() for output, true in zip(pred["size"], label["size"])]


class Calls:
    """Calls the net and one of its layers once more."""

    def change_objective(self, estimator: Any, objectives: Any, pred: Any) -> Any:
        assert estimator.parameters
        again = estimator.net.size(mx.nd.ones((2, 8), dtype="float64"))
        return [*objectives, 0.1 * mx.nd.sum(again**2)]


class Double:
    """Doubles an output, and adds what depends on a parameter to another."""

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        bias = estimator.parameters["size.bias"].data()
        shifted = mx.nd.broadcast_add(outputs["digit"], mx.nd.mean(slots["image"], axis=1, keepdims=True))
        return {"size": outputs["size"] * 2 + 0.1 * mx.nd.sum(bias), "digit": shifted}


class Constant:
    """Replaces an output by numbers."""

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        return {"digit": mx.nd.ones_like(outputs["digit"]).detach()}


def with_parameters() -> Any:
    return two_head_spec(losses={"digit": CE, "size": LossSpec(Scaled(), "size", "size", weight=0.7)})


def with_normalizer() -> Any:
    by = LossSpec(CE, normalize_by=lambda slots: slots["digit"] + 1)
    return two_head_spec(losses={"digit": by, "size": L2})


CASES: dict[str, Any] = {
    "MixUp": (lambda: [MixUp(alpha=0.8)], two_head_spec),
    "MixUp of a loss with parameters": (lambda: [MixUp(random=3)], with_parameters),
    "CutMix": (lambda: [CutMix()], two_head_spec),
    "LabelSmoothing": (lambda: [LabelSmoothing(0.2)], two_head_spec),
    "LabelSmoothing of a loss with a normalizer": (lambda: [LabelSmoothing(0.2)], with_normalizer),
    "MixUp and LabelSmoothing": (lambda: [MixUp(), LabelSmoothing(), Penalty()], two_head_spec),
    "MixUp that adds up": (lambda: [MixUp()], two_head_spec, 2),
    "another objective": (lambda: [InPlaceOf()], two_head_spec),
    "the net once more": (lambda: [Calls()], two_head_spec),
    "outputs": (lambda: [Double()], two_head_spec),
    "outputs, and a loss with parameters": (lambda: [Double()], with_parameters),
    "outputs and objective": (lambda: [Double(), Penalty(), MixUp()], two_head_spec),
    "a constant output": (lambda: [Constant()], two_head_spec),
}


@pytest.mark.parametrize("name", CASES)
def test_figures_and_parameters_are_those_of_mxnet(name: str) -> None:
    handlers, spec, *accumulate = CASES[name]
    batches = BATCHES
    if name == "CutMix":
        batches = [(x.reshape((-1, 1, 2, 3)), *labels) for x, *labels in BATCHES]

    def fit(engine: str) -> Any:
        estimator = estimator_of("float64", engine, spec=spec(), accumulate=sum(accumulate) or 1)
        seed_everything(5)
        first = estimator.fit(batches, batches, epochs=2, event_handlers=handlers())
        again = estimator.fit(batches, batches, epochs=1, event_handlers=handlers())
        return dict(first), dict(again), values(estimator), estimator.predict(batches)

    assert_engines_agree(fit)


@pytest.mark.parametrize("engines", PAIRS, ids="-".join)
def test_a_run_resumes_between_two_updates(engines: tuple[str, str], tmp_path: Path) -> None:
    def make(engine: str) -> MultiEstimator:
        estimator = estimator_of("float64", engine, accumulate=3)
        seed_everything(5)
        return estimator

    assert_resumes(make, tmp_path, engines, stop=4, handlers=lambda: [MixUp(random=3)])


class Detached:
    def change_objective(self, estimator: Any, objectives: Any) -> Any:
        return [objective.detach() for objective in objectives]


class Transposed:
    """Returns other forms, but for the first batch, in which it is called by the check and by the step."""

    calls = 0

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        self.calls += 1
        return {"size": outputs["size"].T} if self.calls > 2 else {}


class Through:
    """Asks for a gradient through the net, which MXNet has not computed."""

    def change_objective(self, estimator: Any, objectives: Any, pred: Any) -> Any:
        weight = estimator.parameters["body.weight"].data()
        return mx.autograd.grad(pred["size"][0], [weight], retain_graph=True)


ERRORS: dict[str, Any] = {
    "detached": (Detached, SpecError, "losses: the objective has no gradient"),
    "another form": (
        Transposed,
        SpecError,
        'outputs: the net returns "size" as .1, 8. .* in the first batch',
    ),
    "through the net": (Through, mx.MXNetError, "raised in Through.change_objective"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_move_no_parameter(name: str) -> None:
    handler, error, message = ERRORS[name]
    estimator = estimator_of()
    seen: list[Any] = []

    class Watch:
        def batch_begin(self, estimator: Any) -> None:
            seen.append(values(estimator))

    with pytest.raises(error, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=[handler(), Watch()])
    for parameter, value in values(estimator).items():
        np.testing.assert_array_equal(value, seen[-1][parameter])
