"""Makes the engine of an estimator: its model, trainers, and method of balancing."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ...engines import Setup
from ...log_once import LogOnce
from ...protocols import Context
from ...spec import TaskSpec
from ...state import RunState
from ..balance.arrays import Arrays, MXNetArrays
from ..balance.make import make_balancer
from ..model.defaults import default_spec
from ..model.model import Model
from ..model.model_trainers import ModelTrainers
from ..precision.precisions import Precision, precision_of
from .engine import Engine


def make_engine(
    setup: Setup,
    state: RunState,
    log_once: LogOnce,
    context: Any = None,
    arrays: Arrays | None = None,
    choose_precision: Callable[[object, Sequence[Context]], Precision] = precision_of,
) -> Engine:
    """Return an estimator's engine; raises what the constructor of :class:`multifit.MultiEstimator` raises.

    An engine on another library passes the `context` of the net's own parameters, the `arrays` with which
    methods of balancing compute, and the function that chooses a precision. By default all are MXNet's.
    """
    spec = setup.spec if isinstance(setup.spec, TaskSpec) else default_spec(setup.spec, log_once)
    context = setup.context if context is None else context
    model = Model(setup.net, spec, context, setup.initializer, setup.precision, log_once, choose_precision)
    trainers = ModelTrainers(setup.trainers, setup.frozen, model, log_once, setup.accumulate)
    first = model.contexts[0]
    arrays = MXNetArrays(first) if arrays is None else arrays
    balancer = make_balancer(setup.balance, spec, first, setup.world, model.parameters, arrays)
    return Engine(model, trainers, spec, state, log_once, balancer=balancer, world=setup.world)
