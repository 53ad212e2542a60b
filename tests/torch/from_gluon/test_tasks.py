"""Nets and losses of the task files: as modules, they compute what they do with MXNet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit.cli import build_parser
from multifit.cli.task import Choices, Task
from multifit.gluon.step.blocks import blocks_of
from tests.torch.from_gluon.bridges import assert_same, bridged, of_gluon, of_torch

TASKS = Path(__file__).parents[3] / "tasks"
PICTURES = ("train_count=4", "val_count=2", "batch_size=2", "size=64")
CASES = [
    ("cells",),
    ("classification", "model=lenet", "batch_size=4"),
    ("dcgan",),
    ("detection", *PICTURES, "base=tiny", "dataset=shapes"),
    ("diabetes",),
    ("digits",),
    ("language",),
    ("logistic_regression",),
    ("scenes", *PICTURES),
    ("segmentation", *PICTURES, "dataset=scenes"),
    ("sentiment", "model=birnn"),
    ("sentiment", "model=textcnn"),
    ("translation", "train_count=80", "val_count=8"),
    ("translation", "train_count=80", "val_count=8", "model=transformer"),
]


def declared(task: str, *settings: str) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Return the net of a task, without dropout, its spec, and the slots of a batch."""
    chosen = ["--set", *settings] if settings else []
    run = Task(Choices(build_parser().parse_args(["train", str(TASKS / f"{task}.py"), "--quiet", *chosen])))
    engine = run.estimator._session
    batch = engine.splitter("train").split(next(iter(run.data[0])))
    for block in blocks_of(run.estimator.net).values():
        for name in {"_rate", "_dropout"} & set(vars(block)):
            setattr(block, name, 0)
    slots = {n: each.asnumpy() for n, each in batch.slots[0].items() if each is not None}
    return run.estimator.net, engine.spec, slots


def in_dtype(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    return {n: each.astype(dtype) if each.dtype.kind == "f" else each for n, each in arrays.items()}


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_step_of_a_task(case):
    net, spec, slots = declared(*case)
    slots = in_dtype(slots, "float64")
    net.cast("float64")
    setup, bridge = bridged(net, spec)
    setup.net.eval()
    with torch.no_grad():
        setup.net(*[torch.from_numpy(slots[name]) for name in spec.inputs])  # gives parameters their values
    setup.net.train()
    bridge.write_back()
    theirs = of_gluon(net, spec, slots)
    ours = of_torch(setup, slots)
    assert_same(ours, theirs, 1e-8)
    before = {n: p.data().asnumpy() for n, p in net._collect_params_with_prefix().items()}  # after its step
    bridge.write_back()
    after = {n: p.data().asnumpy() for n, p in net._collect_params_with_prefix().items()}
    if "dcgan" not in case:  # in which a layer runs twice: MXNet updates its statistics in the other order
        assert_same(after, before, 1e-8)  # running statistics, too
