"""A train step has named phases, each of them timed."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import MetricSpec, TrainerSpec
from multifit.engines import TrainStep
from multifit.events import EventDispatcher, TrainingHooks
from multifit.gluon.check.dry_run import dry_run
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec
from tests.engines import new_engine

TRAINERS = {
    "body": TrainerSpec("body.*", "sgd", clip_norm=1.0),
    "heads": TrainerSpec("(digit|size).*", "sgd"),
}
FORWARD = ["fetch", "forward", "backward"]
REDUCE, UPDATE = ["reduce body", "reduce heads"], ["update body", "update heads"]
MEASURE = ["measure", "measure error"]


def nothing(*_: Any, **arguments: Any) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("handler", "phases"),
    [
        (None, [*FORWARD, *REDUCE, "clip body", *UPDATE]),
        ({"change_gradients": nothing},
         [*FORWARD, *REDUCE, "change", "clip body", *UPDATE]),
        ({"hold_update": lambda estimator: True}, FORWARD),
    ],
    ids=["without handlers", "changed gradients", "a held update"],
)  # fmt: skip
def test_phases_are_timed_in_order(handler: Any, phases: list[str]) -> None:
    error = MetricSpec(lambda labels, outputs: float(np.abs(labels - outputs).mean()), "size", "size")
    net = two_heads("hybridized")
    engine = new_engine(net, two_head_spec(metrics={"error": error}), TRAINERS)
    if handler:
        engine.restart(TrainingHooks(EventDispatcher(SimpleNamespace(), SimpleNamespace(**handler))))
    (batch,) = in_batches(two_head_arrays(8).values())
    dry_run(engine, batch)
    before = snapshot(net)
    log: list[str] = []

    @contextmanager
    def timer(*phase: str) -> Iterator[None]:
        log.append(" ".join(phase))
        yield
        log.append("end")

    TrainStep(engine, timer)(batch)
    assert log == [each for phase in [*phases, *MEASURE] for each in (phase, "end")]
    if "update body" in phases:
        assert all((value != before[name]).any() for name, value in snapshot(net).items())
    else:
        assert_unchanged(net, before)
