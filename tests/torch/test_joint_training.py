"""Several ranks train on torch as one process does, on either engine. The ranks are threads."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, SpecError
from multifit.distributed import ALONE, World
from multifit.torch.engine.joint_gradients import JointGradients
from tests.common.joint_training import ON_TORCH, ByShape, assert_equal_training, joint_training
from tests.common.ranks import EngineCommunicator, ThreadCommunicator, run_ranks

import torch  # isort: skip
from mxnet import gluon  # isort: skip


class TensorCommunicator(ThreadCommunicator):
    """Takes tensors too, as torch.distributed does."""

    def all_reduce_tensors(self, tensors: Any) -> None:
        self.all_reduce([tensor.numpy() for tensor in tensors])


@pytest.mark.parametrize("case", ON_TORCH)
def test_two_ranks_train_as_one(case: str) -> None:
    train = partial(joint_training, **ON_TORCH[case])
    alone = train(ALONE)
    kind = TensorCommunicator if case == "clipping" else ThreadCommunicator
    ranks: list[Any] = run_ranks(2, partial(train, engine="torch"), kind=kind)
    for joint in ranks:
        assert_equal_training(alone, joint)
    for name, value in ranks[0].items():
        np.testing.assert_array_equal(ranks[1][name], value, err_msg=name)


def normalized(world: World, **options: Any) -> tuple[MultiEstimator, Any]:
    """Return an estimator of a net whose statistics and parameters differ between ranks, and its data."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(3), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
    net.initialize(ByShape(world.rank))
    net.hybridize()
    image = np.random.RandomState(3).rand(8, 4).astype("float32")
    data = [(image, (image[:, 0] > 0.5).astype("float32"))] * 3
    options = {"engine": "torch", "world": world, **options}
    return MultiEstimator(net, gluon.loss.SoftmaxCrossEntropyLoss(), **options), data


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
        values = {name: p.data().asnumpy() for name, p in estimator.parameters.items()}
        return {**values, **estimator.evaluate(data), "predicted": estimator.predict(data)["output"]}

    ranks: list[Any] = run_ranks(2, run)
    assert np.abs(ranks[0]["1.running_mean"]).max() > 0
    for name, value in ranks[0].items():
        np.testing.assert_array_equal(ranks[1][name], value, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (EngineCommunicator, {}, r'engine sums MXNet\'s arrays only; give world=multifit.connect\("torch"\)'),
        (ThreadCommunicator, {"precision": "float16"}, "float16 scales gradients in each process by itself"),
    ],
)
def test_what_several_processes_cannot_do(kind: Any, options: Any, message: str) -> None:
    def run(world: World) -> Any:
        with pytest.raises((SpecError, ValueError), match=message):
            normalized(world, **options)

    assert run_ranks(2, run, kind=kind) == [None, None]


def test_a_gradient_that_two_parameters_have_is_summed_once_for_each() -> None:
    def run(world: World) -> dict[str, list[float]]:
        one = torch.ones(3)
        gradients: Any = SimpleNamespace(tensors={"a": one, "b": one})
        parameters: Any = SimpleNamespace(tensors={})
        JointGradients(world, parameters).add_up(gradients, {"a", "b"})
        return {name: tensor.tolist() for name, tensor in gradients.tensors.items()}

    assert run_ranks(2, run) == [{"a": [2.0] * 3, "b": [2.0] * 3}] * 2
