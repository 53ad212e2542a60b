"""Loaders that take turns, on torch: equal to MXNet, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TrainerSpec
from multifit.sampling import Proportional, Ratios, RoundRobin, Together
from tests.common.data import in_batches, two_head_arrays
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_engines_agree
from tests.torch.test_balance import net_of

import mxnet as mx  # isort: skip

ARRAYS = two_head_arrays(40)
LOADERS = {
    "digit": in_batches([ARRAYS["image"][:24], ARRAYS["digit"][:24]]),
    "size": in_batches([ARRAYS["image"][24:], ARRAYS["size"][24:]]),
}
MOVING = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}


def sgd() -> TrainerSpec:
    return TrainerSpec(".*", "sgd", MOVING)


def several() -> dict[str, TrainerSpec]:
    return {
        "body": TrainerSpec("body.*", "adam", {"wd": 0.01}, clip_norm=0.1),
        "heads": TrainerSpec("digit.*|size.*", "sgd", MOVING, every=2),
    }


def far(labels: np.ndarray, outputs: np.ndarray) -> float:
    return float(np.abs(labels - outputs).max())


def missing() -> Any:
    return two_head_spec(labels=[LabelSpec("digit", missing=2), LabelSpec("size", missing="nan")])


def measured() -> Any:
    return two_head_spec(
        losses={"digit": LossSpec(CE, normalize_by=lambda slots: slots["digit"] + 1), "size": L2},
        metrics={"far": MetricSpec(far, "size", "size", mode="min")},
    )


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any]] = {
    "round robin": (two_head_spec, sgd, RoundRobin()),
    "proportional": (two_head_spec, sgd, Proportional(temperature=2)),
    "ratios, several trainers": (two_head_spec, several, Ratios(digit=2, size=1)),
    "missing labels": (missing, sgd, RoundRobin()),
    "normalizers, and a metric on the host": (measured, sgd, RoundRobin()),
    "together": (missing, sgd, Together()),
}


@pytest.mark.parametrize("name", CASES)
def test_turns_are_those_of_mxnet(name: str) -> None:
    make_spec, trainers, sampling = CASES[name]

    def trained(engine: str) -> tuple[Any, ...]:
        estimator = MultiEstimator(net_of("normed"), make_spec(), trainers(), engine=engine)
        history = estimator.fit(LOADERS, LOADERS, epochs=3, event_handlers=[], sampling=sampling)
        figures = [
            estimator.evaluate(data, event_handlers=[]) for data in (LOADERS, in_batches(ARRAYS.values()))
        ]
        return dict(history), *figures, estimator.predict(ARRAYS["image"]), estimator.values()

    assert_engines_agree(trained)


def test_sets_for_validation_have_figures_of_their_own() -> None:
    batches = in_batches(ARRAYS.values())
    sets = {"few": batches[:1], "many": batches}

    def trained(engine: str) -> tuple[Any, ...]:
        estimator = MultiEstimator(net_of("normed"), measured(), sgd(), engine=engine)
        history = estimator.fit(batches, sets, epochs=2, event_handlers=[])
        figures = [estimator.evaluate(data, event_handlers=[]) for data in (batches[:1], batches)]
        assert [history["val_few_loss"][-1], history["val_many_far"][-1]] == pytest.approx(
            [figures[0]["loss"], figures[1]["far"]]
        )
        return dict(history), *figures, estimator.values()

    assert_engines_agree(trained)


def test_what_no_batch_had_yet_is_not_measured() -> None:
    def seen(engine: str) -> list[dict[str, float]]:
        figures: list[dict[str, float]] = []

        class Read:
            def batch_end(self, estimator: Any) -> None:
                figures.append(estimator.figures("train"))

            def evaluate_batch_end(self, estimator: Any) -> None:
                figures.append(estimator.figures("evaluate"))

        spec = two_head_spec(metrics={"mae": MetricSpec(mx.metric.MAE(), "size", "size")})
        estimator = MultiEstimator(net_of("normed"), spec, sgd(), engine=engine)
        history = estimator.fit(LOADERS, LOADERS, batches=1, event_handlers=[Read()], sampling=RoundRobin())
        assert np.isnan(history["train_mae"][0]) and np.isfinite(history["val_mae"][0])
        return [*figures, dict(history)]

    assert_engines_agree(seen)


def test_a_held_update_leaves_no_gradient_for_a_batch_that_does_not_reach_it() -> None:
    class Holds:
        def hold_update(self, estimator: Any, loss: Any) -> bool:
            return loss["digit"][0] is not None

    net = net_of("hybridized")
    net.initialize()
    net(mx.nd.zeros((2, 6), dtype="float64"))
    estimator = MultiEstimator(net, two_head_spec(), sgd(), engine="torch")
    before = {name: each.copy() for name, each in estimator.values().items()}
    estimator.fit(LOADERS, epochs=1, sampling=RoundRobin(), event_handlers=Holds())
    kept = [name for name, each in estimator.values().items() if (each == before[name]).all()]
    assert kept == ["digit.weight", "digit.bias"]
