"""Several ranks train on torch as one process does, on either engine. The ranks are threads."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import DataError, MultiEstimator, SkipNonFinite, SpecError, TrainerSpec
from multifit.balance import UPGrad
from multifit.distributed import ALONE, World
from multifit.torch.traced.gradients import JointGradients
from tests.common.data import in_batches, two_head_arrays
from tests.common.joint_training import (
    ON_TORCH,
    RANKS_OWN,
    ByShape,
    assert_equal_training,
    assert_ranks_resume,
    joint_training,
)
from tests.common.nets import two_heads
from tests.common.ranks import EngineWorld, run_ranks
from tests.common.specs import two_head_spec

import torch  # isort: skip
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
        calls = {
            "fit": lambda: estimator.fit(data, data, epochs=2),
            "evaluate": lambda: estimator.evaluate(data),
            "predict": lambda: estimator.predict(data),
        }
        calls.pop(first)()
        for call in calls.values():
            call()
        values = estimator.values()
        return {**values, **estimator.evaluate(data), "predicted": estimator.predict(data)["output"]}

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


def test_a_library_that_sums_arrays_of_mxnet_is_refused() -> None:
    def run(world: World) -> Any:
        message = "engine sums MXNet's arrays only; give world=multifit.connect"
        with pytest.raises(SpecError, match=message):
            normalized(world)

    assert run_ranks(2, run, kind=EngineWorld) == [None, None]


@pytest.mark.parametrize("case", RANKS_OWN)
def test_states_that_are_each_ranks_own(case: str, tmp_path: Path) -> None:
    assert_ranks_resume(tmp_path, "torch", case)


# ---- float16 -----------------------------------------------------------------------------------------------

SGD = {"learning_rate": 0.05, "momentum": 0.9}
TOGETHER: dict[str, dict[str, Any]] = {
    "each batch": {},
    "added up by all": {"accumulate": 3},
    "held back": {"handlers": lambda: [SkipNonFinite()]},
    "features": {"balance": UPGrad()},
    "parameters": {"balance": UPGrad(on="parameters")},
}


@pytest.mark.parametrize("case", TOGETHER)
def test_float16_skips_and_scales_on_all_ranks_or_none(case: str) -> None:
    options = dict(TOGETHER[case])
    make_handlers = options.pop("handlers", list)
    arrays = two_head_arrays(41)
    arrays["image"][6], arrays["image"][17] = 1e30, 1e30  # infinite in float16; of different ranks
    arrays["size"][30] = 1e30  # infinite as a loss
    data = in_batches([array[:33] for array in arrays.values()]) + in_batches(
        [array[33:34] for array in arrays.values()]
    )

    def train(world: World) -> Any:
        seen = []

        class Watch:
            def batch_end(self, estimator: Any) -> None:
                updates = estimator.trainers["trainer"].optimizer.num_update
                state = estimator._runner.state()  # of a checkpoint, which the first rank writes for all
                seen.append((updates, state["scale"], state["overflowed"]))

        net = two_heads("hybridized")
        how = {"trainers": TrainerSpec(".*", "sgd", SGD), "precision": "float16", "world": world, **options}
        estimator = MultiEstimator(net, two_head_spec(), engine="torch", **how)
        estimator._runner.load({**estimator._runner.state(), "scale": 64.0, "growth_interval": 3})
        estimator.fit(data, epochs=2, event_handlers=[*make_handlers(), Watch()])
        return seen, estimator.values()

    expected, values = train(ALONE)
    assert len({scale for _, scale, _ in expected}) > 2, expected
    ranks: list[Any] = run_ranks(2, train)
    for seen, moved in ranks:
        assert seen == expected
        np.testing.assert_equal(moved, ranks[0][1])
        for name, value in values.items():
            np.testing.assert_allclose(moved[name], value, rtol=0.02, atol=0.002, err_msg=name)


def test_a_gradient_that_two_parameters_have_is_summed_once_for_each() -> None:
    def run(world: World) -> dict[str, list[float]]:
        one = torch.ones(3)
        gradients: Any = SimpleNamespace(tensors={"a": one, "b": one})
        parameters: Any = SimpleNamespace(tensors={})
        JointGradients(world, parameters).add_up(gradients, {"a", "b"})
        return {name: tensor.tolist() for name, tensor in gradients.tensors.items()}

    assert run_ranks(2, run) == [{"a": [2.0] * 3, "b": [2.0] * 3}] * 2
