"""What the estimator keeps, tells and refuses around checkpoints, figures and rates."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, LossSpec, MetricSpec, MultiEstimator, TaskSpec
from multifit.rate_search import RateSearch

import mxnet as mx  # isort: skip
from mxnet import gluon

DATA = [(mx.nd.array(np.eye(4)), mx.nd.array([0, 1, 0, 1]))] * 3


class Odd(mx.metric.EvalMetric):
    """Its state is a generator, which no file can hold."""

    def __init__(self) -> None:
        super().__init__("odd")
        self.kept = (i for i in range(3))

    def update(self, labels: Any, preds: Any) -> None:
        self.num_inst += 1
        self.sum_metric += 1


class Remembers:
    """A handler with a state."""

    def batch_end(self, estimator: Any) -> None:
        """A moment."""

    def state_dict(self) -> dict[str, int]:
        return {"a": 1}

    def load_state_dict(self, state: Any) -> None:
        """Nothing to do."""


def make() -> MultiEstimator:
    net = gluon.nn.Dense(2, in_units=4)
    net.initialize()
    spec = TaskSpec(
        outputs=["y"],
        labels=["kind"],
        losses={"ce": LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), "y", "kind")},
        metrics={"odd": MetricSpec(Odd(), "y", "kind")},
    )
    return MultiEstimator(net, spec)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    return caplog


def test_what_cannot_be_kept_is_told_at_both_ends(tmp_path: Path, log: Any) -> None:
    make().fit(DATA, epochs=1, event_handlers=[CheckpointHandler(tmp_path, 1), Remembers()])
    assert "checkpoints cannot hold train_odd" in log.text
    log.clear()
    make().fit(DATA, epochs=2, event_handlers=CheckpointHandler(tmp_path, 1), resume=tmp_path)
    assert '"train_odd" starts from zero: the checkpoint could not hold it' in log.text
    assert "the checkpoint holds the state of Remembers, which this fit does not have" in log.text


def test_without_a_seed_nothing_is_seeded() -> None:
    for reseed in (make().reseed, make().reseed_epoch):
        with pytest.raises(ValueError, match="the run has no seed: set estimator.state.seed first"):
            reseed()


def test_a_stage_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match='there is no stage "val"; valid are "train", "evaluate"'):
        make().figures("val")


def test_the_search_for_a_rate_leaves_all_as_it_was() -> None:
    estimator = make()
    before = estimator.net.weight.data().asnumpy()
    search = estimator.find_learning_rate(DATA, batches=12)
    assert isinstance(search, RateSearch) and len(search.rates) == len(search.losses) > 1
    np.testing.assert_array_equal(before, estimator.net.weight.data().asnumpy())
    assert estimator.state.step == 0 and not estimator.history
