"""Several ranks train on torch as one process does, on either engine. The ranks are threads."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import DataError, MultiEstimator, SpecError, TrainerSpec
from multifit.distributed import ALONE, World
from tests.common import language
from tests.common.joint_training import (
    ON_TORCH,
    ByShape,
    assert_equal_training,
    assert_ranks_resume,
    joint_training,
)
from tests.common.ranks import EngineWorld, run_ranks
from tests.torch.fits import assert_close

from mxnet import gluon  # isort: skip


@pytest.mark.parametrize("case", ON_TORCH)
def test_two_ranks_train_as_one(case: str) -> None:
    train = partial(joint_training, **ON_TORCH[case])
    alone = train(ALONE)
    ranks: list[Any] = run_ranks(2, partial(train, engine="torch"))
    for joint in ranks:
        assert_equal_training(alone, joint)
    for name, value in ranks[0].items():
        np.testing.assert_array_equal(ranks[1][name], value, err_msg=name)


def normalized(world: World) -> tuple[MultiEstimator, Any]:
    """Return an estimator of a net whose statistics and parameters differ between ranks, and its data."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
    net.initialize(ByShape(world.rank))
    net.hybridize()
    image = np.random.RandomState(3).rand(8, 4).astype("float32")
    data = [(image, (image[:, 0] > 0.5).astype("float32"))] * 3
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    return MultiEstimator(net, loss, engine="torch", world=world), data


@pytest.mark.parametrize("first", ["fit", "evaluate", "predict"])
def test_ranks_share_parameters_and_running_statistics(first: str) -> None:
    def run(world: World) -> dict[str, Any]:
        estimator, data = normalized(world)
        for name in (first, *sorted({"evaluate", "fit", "predict"} - {first})):
            getattr(estimator, name)(data, **({"epochs": 2} if name == "fit" else {}))
        predicted = estimator.predict(data)["output"]
        return {**estimator.values(), **estimator.evaluate(data), "predicted": predicted}

    ranks: list[Any] = run_ranks(2, run)
    assert np.abs(ranks[0]["1.running_mean"]).max() > 0
    for name, value in ranks[0].items():
        np.testing.assert_array_equal(ranks[1][name], value, err_msg=name)


def test_a_rank_without_a_sample_of_the_first_batch() -> None:
    def run(world: World, checked: bool) -> Any:
        estimator, data = normalized(world)
        estimator.fit(data, epochs=1)
        (image, label), *_ = data
        if checked:
            estimator.evaluate(data)
            return estimator.predict([image[:1], image])["output"]
        return estimator.evaluate([(image[:1], label[:1])])

    ranks: list[Any] = run_ranks(2, partial(run, checked=True))
    assert ranks[0].shape == (9, 2)
    np.testing.assert_array_equal(*ranks)
    np.testing.assert_allclose(ranks[0][0], ranks[0][1], rtol=1e-5)
    for error in run_ranks(2, partial(run, checked=False)):
        with pytest.raises(DataError, match="the first batch has 1 sample for 2 processes"):
            raise error


def test_ranks_carry_the_state_of_their_own_samples() -> None:
    axis: Any = {"batch_axis": 1, "event_handlers": []}

    def train(world: World) -> Any:
        trainer, net = TrainerSpec(".*", "adam", {"learning_rate": 0.02}), language.make_net(dtype="float64")
        estimator = MultiEstimator(net, language.make_spec(), trainer, engine="torch", world=world)
        estimator.fit(language.BATCHES, epochs=2, **axis)
        return {**estimator.values(), **estimator.evaluate(language.BATCHES, **axis)}

    alone = train(ALONE)
    for joint in run_ranks(2, train):
        assert_close(alone, joint)


def test_a_library_that_sums_arrays_of_mxnet_is_refused() -> None:
    def run(world: World) -> Any:
        message = "engine sums MXNet's arrays only; give world=multifit.connect"
        with pytest.raises(SpecError, match=message):
            normalized(world)

    assert run_ranks(2, run, kind=EngineWorld) == [None, None]


# the others resume as modules do, in tests/torch/native/test_snapshot.py
@pytest.mark.parametrize("case", ["running statistics", "balance of features that adds up"])
def test_states_that_are_each_ranks_own(case: str, tmp_path: Path) -> None:
    assert_ranks_resume(tmp_path, "torch", case)
