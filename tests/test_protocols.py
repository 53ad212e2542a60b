"""MXNet's objects have the members that the protocols promise."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from multifit import LossSpec, TaskSpec, protocols
from multifit.gluon.compat import mx
from multifit.gluon.data.batch import Batch
from multifit.gluon.execution.result import StepResult
from multifit.gluon.optim.handle import TrainerHandle


def parameter() -> Any:
    value = mx.gluon.Parameter("weight", shape=(1,))
    value.initialize()
    return value


def result() -> StepResult:
    spec = TaskSpec(
        outputs=["y"], labels=["y"], losses={"l2": LossSpec(mx.gluon.loss.L2Loss(), "y", "y")}, inputs=["x"]
    )
    return StepResult(spec, Batch(None, 0))


OBJECTS = {
    "Array": lambda: mx.nd.ones((1,)),
    "BatchResult": result,
    "Context": mx.cpu,
    "Initializer": mx.init.Xavier,
    "Loader": lambda: mx.gluon.data.DataLoader([1], 1),
    "Loss": mx.gluon.loss.L2Loss,
    "Metric": mx.metric.Accuracy,
    "Net": lambda: mx.gluon.nn.Dense(1),
    "Optimizer": mx.optimizer.Adam,
    "Parameter": parameter,
    "Schedule": lambda: mx.lr_scheduler.FactorScheduler(1),
    "Tensor": lambda: mx.sym.var("x"),
    "Trainer": lambda: TrainerHandle("trainer", mx.gluon.Trainer([parameter()], "adam")),
}


def members(protocol: Any) -> set[str]:
    declared = {name for base in protocol.__mro__ for name in getattr(base, "__annotations__", {})}
    empty = {*dir(Protocol), "__annotations__", "__dict__", "__weakref__"}
    return {name for name in {*dir(protocol), *declared} - empty if not name.startswith("_abc_")}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_have_the_members_of_their_protocol(name: str) -> None:
    value = OBJECTS[name]()
    missing = [member for member in members(getattr(protocols, name)) if not hasattr(value, member)]
    assert missing == []


def test_every_protocol_is_tested() -> None:
    own = {name: value for name, value in vars(protocols).items() if isinstance(value, type(Protocol))}
    assert {name for name, value in own.items() if value.__module__ == protocols.__name__} == set(OBJECTS)
