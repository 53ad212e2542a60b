"""A fit of a single task: that of the spec declared by hand, with the other heads frozen."""

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from multifit import CheckpointHandler, Every, MultiEstimator, TaskSpec, TrainerSpec
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import Heads, PlainHeads, hybridized, sequential
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import CE, L2, two_head_spec

BATCHES = in_batches(two_head_arrays(40).values())
DECAY = {"learning_rate": 0.02, "wd": 0.1}
ONE = TrainerSpec(".*", "adam", DECAY)
EACH = {name: TrainerSpec(f"{name}.*", "adam", DECAY) for name in ("body", "digit", "size")}
OTHER = {"digit": "size", "size": "digit"}
LOSSES = {"digit": CE, "size": L2}


def by_hand(task: str) -> TaskSpec:
    metrics = two_head_spec().metrics if task == "digit" else {}
    return two_head_spec(losses={task: LOSSES[task]}, metrics=metrics, unused=[OTHER[task]])


def new(spec: TaskSpec, trainers: Any = ONE, kind: Any = Heads, **options: Any) -> MultiEstimator:
    """Return an estimator of a net whose head of the size has running statistics."""
    seed_everything(3)
    net = kind(digit=3)
    net.size = sequential(nn.Dense(4), nn.BatchNorm(), nn.Dense(1))
    net.names.append("size")
    hybridized(net, kind is Heads)
    return MultiEstimator(net, spec, trainers, **{"initializer": mx.init.Xavier(), **options})


@pytest.mark.parametrize(("task", "devices"), [("digit", 1), ("size", 2)])
def test_it_is_the_task_declared_by_hand(task: str, devices: int) -> None:
    context = [mx.cpu(number) for number in range(devices)]
    only = new(two_head_spec().only(task), context=context)
    hand = new(by_hand(task), context=context, frozen=[f"{OTHER[task]}.*"])
    histories = [
        dict(each.fit(BATCHES, BATCHES, epochs=3, event_handlers=[], seed=3)) for each in (only, hand)
    ]
    np.testing.assert_equal(*histories)
    found, expected = only.values(), hand.values()
    for name in [name for name in found if name.startswith(f"{OTHER[task]}.") and "running" in name]:
        del found[name], expected[name]  # of a head that is left out: it ran once before it was frozen
    np.testing.assert_equal(found, expected)
    assert only.plan is not None and hand.plan is not None
    assert (only.plan.frozen, only.plan.frozen_statistics) == (hand.plan.frozen, hand.plan.frozen_statistics)
    np.testing.assert_equal(*[each.evaluate(BATCHES) for each in (only, hand)])


@pytest.mark.parametrize(("kind", "trainers"), [(Heads, ONE), (PlainHeads, EACH)], ids=["one", "each"])
def test_the_heads_that_are_left_out_stay_as_they_are(kind: Any, trainers: Any) -> None:
    """Weight decay would change them, if a trainer updated them; so would training running statistics."""
    estimator = new(two_head_spec().only("digit"), trainers, kind)
    estimator.check(BATCHES)
    before = estimator.values()
    for _ in range(2):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    after = estimator.values()
    same = {name for name in before if np.array_equal(before[name], after[name])}
    left_out = {name for name in before if name.startswith("size")}
    assert same == left_out
    restored = new(two_head_spec(), trainers, kind)
    restored.fit(BATCHES, epochs=1, event_handlers=[])  # all tasks learn without `only`
    assert not restored.plan or not restored.plan.frozen


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        estimator = new(two_head_spec().only("size"), EACH)
        saving = CheckpointHandler(folder, Every(1, "batch"), seed=7)
        estimator.fit(BATCHES, epochs=1, event_handlers=[saving, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 3)
