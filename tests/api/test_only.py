"""A fit of a single task: that of the spec declared by hand, with the other heads frozen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, Every, MultiEstimator, TaskSpec, TrainerSpec
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import CE, L2, two_head_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

BATCHES = in_batches(two_head_arrays(40).values())
DECAY = {"learning_rate": 0.02, "wd": 0.1}
ONE = TrainerSpec(".*", "adam", DECAY)
EACH = {name: TrainerSpec(f"{name}.*", "adam", DECAY) for name in ("body", "digit", "size")}


class Net(gluon.HybridBlock):
    """A body and two heads; that of the size has running statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.digit = nn.Dense(8, activation="relu"), nn.Dense(3)
        self.size = nn.HybridSequential()
        self.size.add(nn.Dense(4), nn.BatchNorm(), nn.Dense(1))

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.body(image)
        return self.digit(features), self.size(features)


class Plain(Net):
    """The same, of which MXNet traces nothing."""

    hybrid_forward: Any = None

    def forward(self, image: Any) -> Any:
        features = self.body(image)
        return self.digit(features), self.size(features)


OTHER = {"digit": "size", "size": "digit"}
LOSSES = {"digit": CE, "size": L2}


def by_hand(task: str) -> TaskSpec:
    metrics = two_head_spec().metrics if task == "digit" else {}
    return two_head_spec(losses={task: LOSSES[task]}, metrics=metrics, unused=[OTHER[task]])


def new(spec: TaskSpec, trainers: Any = ONE, net: Callable[[], Any] = Net, **options: Any) -> MultiEstimator:
    seed_everything(3)
    made = net()
    made.hybridize(net is Net)
    return MultiEstimator(made, spec, trainers, **{"initializer": mx.init.Xavier(), **options})


def values(estimator: MultiEstimator) -> dict[str, np.ndarray]:
    return {name: parameter.data().asnumpy() for name, parameter in estimator.parameters.items()}


@pytest.mark.parametrize("task", ["digit", "size"])
@pytest.mark.parametrize("devices", [1, 2])
def test_it_is_the_task_declared_by_hand(task: str, devices: int) -> None:
    context = [mx.cpu(number) for number in range(devices)]
    only = new(two_head_spec().only(task), context=context)
    hand = new(by_hand(task), context=context, frozen=[f"{OTHER[task]}.*"])
    histories = [
        dict(each.fit(BATCHES, BATCHES, epochs=3, event_handlers=[], seed=3)) for each in (only, hand)
    ]
    np.testing.assert_equal(*histories)
    found, expected = values(only), values(hand)
    for name in [name for name in found if name.startswith(f"{OTHER[task]}.") and "running" in name]:
        del found[name], expected[name]  # of a head that is left out: it ran once before it was frozen
    np.testing.assert_equal(found, expected)
    assert only.plan is not None and hand.plan is not None
    assert (only.plan.frozen, only.plan.frozen_statistics) == (hand.plan.frozen, hand.plan.frozen_statistics)
    np.testing.assert_equal(*[each.evaluate(BATCHES) for each in (only, hand)])


@pytest.mark.parametrize("trainers", [ONE, EACH], ids=["one", "each"])
@pytest.mark.parametrize("net", [Net, Plain])
def test_the_heads_that_are_left_out_stay_as_they_are(net: Callable[[], Any], trainers: Any) -> None:
    """Weight decay would change them, if a trainer updated them."""
    estimator = new(two_head_spec().only("digit"), trainers, net)
    estimator.check(BATCHES)
    before = values(estimator)
    for _ in range(2):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    after = values(estimator)
    same = [name for name in before if np.array_equal(before[name], after[name])]
    assert [n for n in same if "running" not in n] == [
        n for n in before if n[:4] == "size" and "running" not in n
    ]
    assert net is Plain or len(same) == 8  # running statistics, too
    restored = new(two_head_spec(), trainers, net)
    restored.fit(BATCHES, epochs=1, event_handlers=[])  # all tasks learn without `only`
    assert not restored.plan or not restored.plan.frozen


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        estimator = new(two_head_spec().only("size"), EACH)
        saving = CheckpointHandler(folder, Every(1, "batch"), seed=7)
        estimator.fit(BATCHES, BATCHES, epochs=3, event_handlers=[saving, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 3, 7)
