"""A loop of one's own, and overridden steps."""

from typing import Any

import pytest

from multifit import (
    GradientNoise,
    LabelSmoothing,
    LossSpec,
    MixUp,
    MultiEstimator,
    TrainerError,
    TrainerSpec,
    WeightAveraging,
)
from tests.common.compare import assert_same_parameters, assert_unchanged, copy_parameters, snapshot, twins
from tests.common.nets import two_heads
from tests.common.specs import CE, L2, two_head_spec


class Counting(MultiEstimator):
    trained = evaluated = 0

    def fit_batch(self, batch: Any) -> Any:
        self.trained += 1
        return super().fit_batch(tuple(reversed(batch)))

    def evaluate_batch(self, batch: Any) -> Any:
        self.evaluated += 1
        return super().evaluate_batch(batch)


def test_fit_batch_and_evaluate_batch_may_be_overridden(batches: Any) -> None:
    estimator = Counting(two_heads(), two_head_spec())
    estimator.fit([tuple(reversed(batch)) for batch in batches], batches, epochs=2)
    assert (estimator.trained, estimator.evaluated) == (6, 6)


def test_a_loop_of_ones_own(batches: Any) -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec())
    estimator.check(batches)  # it restarts what runs the batches
    for batch in batches * 5:
        result = estimator.fit_batch(batch)
    assert result.batch.samples == 4
    assert estimator.figures()["train_loss"] > estimator.evaluate(batches)["loss"]


def test_a_loop_of_ones_own_counts_batches(batches: Any) -> None:
    """A trainer that updates every other batch, and a weight that changes, do as in a fit."""
    spec = two_head_spec(
        losses={"digit": LossSpec(CE, weight=lambda state: 1 / (1 + state.step)), "size": L2}
    )
    by_fit, by_hand = twins(two_heads, *[batch[:1] for batch in batches[0][:1]])
    estimators = [
        MultiEstimator(net, spec, TrainerSpec(".*", "sgd", {"learning_rate": 0.1}, every=2))
        for net in (by_fit, by_hand)
    ]
    estimators[0].fit(batches, epochs=2)
    for batch in batches * 2:
        estimators[1].fit_batch(batch)
    assert_same_parameters(by_hand, by_fit)
    states = [estimator.state for estimator in estimators]
    assert states[0].step == states[1].step == 6 and states[0].samples == states[1].samples
    estimators[1].fit(batches, epochs=1)
    assert states[1].step == 9


def test_a_loop_of_ones_own_accumulates_nothing(batches: Any) -> None:
    net = two_heads()
    estimator = MultiEstimator(net, two_head_spec(), TrainerSpec(".*", every=2, accumulate=True))
    estimator.evaluate(batches)
    before = snapshot(net)
    with pytest.raises(TrainerError, match=r'trainers\["trainer"\]: accumulate=True adds up gradients with'):
        estimator.fit_batch(batches[0])
    assert_unchanged(net, before)
    estimator.fit(batches, epochs=1)


class Holding:
    def hold_update(self, estimator: Any) -> bool:
        return True


@pytest.mark.parametrize(
    "handler",
    [
        GradientNoise(1.0), LabelSmoothing(0.5), MixUp(), WeightAveraging("ema", 0.5), Holding(),
    ],
    ids=lambda handler: type(handler).__name__,
)  # fmt: skip
def test_what_handlers_change_ends_with_their_fit(handler: Any, batches: Any) -> None:
    after_fit, by_itself = twins(two_heads, *[batch[:1] for batch in batches[0][:1]])
    fitted, new = (
        MultiEstimator(net, two_head_spec(), TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
        for net in (after_fit, by_itself)
    )
    fitted.fit(batches, epochs=1, event_handlers=[handler])
    copy_parameters(by_itself, after_fit)
    assert fitted.evaluate(batches) == new.evaluate(batches)
    for batch in batches:
        fitted.fit_batch(batch), new.fit_batch(batch)
    assert_same_parameters(after_fit, by_itself)
    assert fitted.evaluate(batches) == new.evaluate(batches)


def test_a_loop_of_ones_own_after_a_fit_on_several_loaders(batches: Any) -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec())
    names = "image", "digit", "size"
    estimator.fit({"both": [dict(zip(names, batch)) for batch in batches]}, epochs=1)
    assert estimator.fit_batch(batches[0]).batch.samples == len(batches[0][0])
