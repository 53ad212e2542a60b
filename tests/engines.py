"""Engines as the estimator makes them, for tests of what is below it."""

from typing import Any

from multifit import TaskSpec
from multifit.gluon.model import Model
from multifit.gluon.session import Session
from multifit.gluon.trainers import Trainers
from multifit.state import RunState


def new_engine(net: Any, spec: TaskSpec, trainers: Any = None, contexts: Any = None) -> Session:
    """Return an engine that logs nothing."""
    model = Model(net, spec, contexts, None, "float32", _ignore)
    return Session(model, Trainers(trainers, (), model, _ignore), spec, RunState(), _ignore)


def _ignore(message: str) -> None:
    """Do not log."""
