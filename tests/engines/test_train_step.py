"""A training step has named phases, each of them timed, whatever engine runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import MetricSpec, MultiEstimator, TrainerSpec
from multifit.balance import DWA, FAMO, UPGrad
from multifit.handlers.dispatcher import EventDispatcher, TrainingHooks
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec

import mxnet as mx  # isort: skip

TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
TRAINERS = {
    "body": TrainerSpec("body.*", "sgd", clip_norm=1.0),
    "heads": TrainerSpec("(digit|size).*", "sgd"),
}
FORWARD, MEASURE = ["fetch", "forward"], ["measure"]
REDUCE = ["reduce body", "reduce heads"]
UPDATE = ["clip body", "update body", "update heads"]


def nothing(*_: Any, **arguments: Any) -> None:
    """Change nothing."""


def hold(*_: Any, **arguments: Any) -> bool:
    """Hold the update back."""
    return True


@pytest.mark.parametrize("engine", ["mxnet", pytest.param("torch", marks=TORCH)])
@pytest.mark.parametrize(
    ("balance", "handler", "phases"),
    [
        (None, {}, [*FORWARD, "backward", *REDUCE, *UPDATE, *MEASURE]),
        (None, {"change_gradients": nothing, "change_objective": nothing},
         [*FORWARD, "backward", *REDUCE, "change", *UPDATE, *MEASURE]),
        (None, {"hold_update": hold}, [*FORWARD, "backward", *MEASURE]),
        (DWA(), {}, [*FORWARD, "balance", "backward", *REDUCE, *UPDATE, *MEASURE]),
        (FAMO(), {}, [*FORWARD, "balance", "backward", *REDUCE, *UPDATE, "balance", *MEASURE]),
        (FAMO(), {"hold_update": hold}, [*FORWARD, "balance", "backward", *MEASURE]),
        (UPGrad(), {}, [*FORWARD, "backward", "balance", *REDUCE, *UPDATE, *MEASURE]),
    ],
    ids=["plain", "changed", "held", "weighed", "looks back", "weighed and held", "compared"],
)  # fmt: skip
def test_phases_are_timed_in_order(engine: str, balance: Any, handler: Any, phases: list[str]) -> None:
    error = MetricSpec(lambda labels, outputs: float(np.abs(labels - outputs).mean()), "size", "size")
    spec, context = two_head_spec(metrics={"error": error}), "cpu" if engine == "torch" else mx.cpu()
    estimator = MultiEstimator(
        two_heads("hybridized"), spec, TRAINERS, context, balance=balance, engine=engine
    )
    runs: Any = estimator._engine
    handlers = SimpleNamespace(batch_end=nothing, **handler)
    runs.restart(TrainingHooks(EventDispatcher(SimpleNamespace(), handlers)))
    (batch,) = in_batches(two_head_arrays(8).values())
    log: list[str] = []

    @contextmanager
    def timer(*phase: str) -> Iterator[None]:
        log.append(" ".join(phase))
        yield

    with runs.running():
        runs.dry_run(batch, None)
        before = runs.values()
        runs.train_step(timer)(batch)
    if engine == "torch" and isinstance(balance, UPGrad):
        phases = [each for each in phases if each != "balance"]  # one function goes back and weighs
    assert [each for each in log if each != "measure error"] == phases
    changed = {name for name, value in runs.values().items() if (value != before[name]).any()}
    assert changed == (set(before) if "update body" in phases else set())
