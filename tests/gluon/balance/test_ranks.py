"""Several ranks weigh as one process does; the ranks are threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import GLS, IMTLL, GradNorm, UPGrad
from multifit.distributed import ALONE, World
from tests.common.hand_loop import SGD, SILENT
from tests.common.joint_data import loader
from tests.common.joint_training import ByShape, TwoHeads
from tests.common.ranks import run_ranks

from mxnet import gluon  # isort: skip

METHODS = [IMTLL(learning_rate=0.1), GLS(), UPGrad(), GradNorm(learning_rate=0.2)]


def trained(world: World, method: Any) -> dict[str, np.ndarray]:
    net = TwoHeads()
    net.initialize(ByShape(world.rank))
    net.hybridize()
    names = ["digit", "parity"]
    ce, bce = gluon.loss.SoftmaxCELoss(), gluon.loss.SigmoidBCELoss()  # threads must not trace the same ones
    losses = {"digit": ce, "parity": LossSpec(bce, weight=0.5)}
    spec = TaskSpec(
        inputs=["x"], outputs=names, labels=[*names, "weight"], losses=losses, unused=["weight"]
    )  # fmt: skip
    estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", SGD), balance=method, world=world)
    history = estimator.fit(loader(16), epochs=2, event_handlers=SILENT)
    figures = {name: np.array(history[name]) for name in history if name != "lr"}
    return {**figures, **{name: p.data().asnumpy() for name, p in estimator.parameters.items()}}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_two_ranks_weigh_as_one(method: Any) -> None:
    alone = trained(ALONE, method)
    one, other = run_ranks(2, lambda world: trained(world, method))
    assert isinstance(one, dict) and isinstance(other, dict), (one, other)
    assert one.keys() == alone.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)
        np.testing.assert_allclose(value, alone[name], rtol=2e-4, atol=2e-5, err_msg=name)
