"""Make the plan of a PyTorch net after a dry run."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..distributed.log_once import LogOnce
from ..engines import plan
from ..spec.plan import Plan
from ..utils.stages import TRAIN
from .check import DryRun, preserved, without_gradient
from .session import Session
from .step import StepResult

WHY = "so nothing trains them: detach() or no_grad() stops it"


def make_plan(session: Session, run: DryRun, log_once: LogOnce, layers: bool = False) -> Plan:
    """Describe devices, stages and trainers after a dry run; warn of mistakes that do not stop training.

    Such mistakes are values for which a net or a loss was hardly meant, and parameters without a gradient.
    With `layers`, the net runs once more.
    """
    trainers, terms, slots = session.trainers, session.spec.terms, run.train.batch.slots
    losses: dict[str, tuple[str, ...]] = {}
    for name in trainers if len(trainers) > 1 and len(terms) > 1 else ():
        bound = [term.key for term in terms if name in (term.trainers or trainers)]
        updated = trainers.updated(name).keys()
        losses[name] = tuple(key for key in bound if run.reached.get(key, frozenset()) & updated)

    def call() -> None:
        with preserved(session), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            session.stages[TRAIN].bound(slots)

    modules = dict(session.model.net.named_modules()) if layers else {}
    found = plan.layers_of(modules, lambda module: [*module.parameters(recurse=False)], _size, call)
    unreached = plan.unreached_warnings(session, lambda: without_gradient(session, run), WHY)
    warnings, statistics = [*run.doubts, *unreached], tuple(trainers.frozen_statistics())
    further: dict[str, Any] = {"frozen_statistics": statistics, "layers": tuple(found) if layers else ()}
    return plan.make_plan(session, run, log_once, warnings, _arrays, _size, losses, run.shared, **further)


def _arrays(result: StepResult) -> tuple[Any, Any, Any]:
    return result.outputs, result.batch.slots, result.named_parts()


def _size(parameter: Any) -> int:
    return 0 if is_lazy(parameter) else parameter.numel()
