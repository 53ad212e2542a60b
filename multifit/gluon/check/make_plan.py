"""Make the plan: the facts found by a dry run, as data that can be printed."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...distributed.log_once import LogOnce
from ...engines import DryRun, plan
from ...spec.plan import Layer, Plan
from ...utils.stages import EVALUATE, TRAIN
from ..compat import mx
from ..data.batch import Batch
from ..optim.preserve_state import kept_statistics, preserve_state
from ..session import Session
from ..step.blocks import blocks_of, run_by_python
from ..step.network import Network
from ..step.stage import StepResult
from .doubtful_values import channels_last, doubtful_values
from .dry_run import without_gradient

# They are behind an operator, or no loss takes their outputs. MXNet's gradient is then 0.
WHY = "so at most weight decay changes them: an operator such as BlockGrad stops it"


def make_plan(session: Session, run: DryRun, log_once: LogOnce, layers: bool = False) -> Plan:
    """Describe devices, stages and trainers after a dry run; warn of mistakes that do not stop training.

    Such mistakes are values for which a net, a loss or a metric was hardly meant, and parameters without a
    gradient. Backward passes show which losses reach which trainer.
    """
    trained_on, net = run.results[TRAIN], session.model.net
    warnings = [m for each in (*trained_on, *run.results[EVALUATE]) for m in doubtful_values(each)]
    warnings += [m for each in trained_on for m in channels_last(each, net)]
    warnings += plan.unreached_warnings(session, lambda: without_gradient(session), WHY)
    losses: dict[str, tuple[str, ...]] = {}
    for each in trained_on:
        for name, reaching in _losses_by_trainer(session, each).items():
            losses[name] = tuple(dict.fromkeys([*losses.get(name, ()), *reaching]))
    statistics = tuple(session.trainers.frozen.statistics())
    further: dict[str, Any] = {
        "frozen_statistics": statistics,
        "layers": tuple(_layers(session, run.train.batch)) if layers else (),
    }
    return plan.make_plan(session, run, log_once, warnings, _arrays, _size, losses, **further)


def _layers(session: Session, batch: Batch) -> Iterator[Layer]:
    """Call the net once more, without the graphs of its blocks, and yield what each of them returns."""
    blocks = blocks_of(session.model.net)

    def call() -> None:
        kept = kept_statistics(session.model.parameters.values())
        with batch.contexts[0], mx.autograd.train_mode(), kept, run_by_python(blocks.values()):
            Network(session.model.net, session.spec, TRAIN)(batch.slots[0])

    return plan.layers_of(blocks, lambda b: {*b._reg_params.values(), *b.params.values()}, _size, call)


def _arrays(result: StepResult) -> tuple[Any, Any, Any]:
    return result.outputs[0], result.batch.slots[0], result.parts[0]


def _size(parameter: Any) -> int:
    # a parameter that a SymbolBlock loaded does not know its own shape
    return int(np.prod(parameter.shape or parameter.list_data()[0].shape))


def _losses_by_trainer(session: Session, result: StepResult) -> dict[str, tuple[str, ...]]:
    """Return for each trainer the losses whose gradients reach its parameters.

    Returns an empty dict unless there are several trainers and several losses. `result` must have just been
    computed, and must not be trained on. Waits for the device.
    """
    trainers = session.trainers.get()
    if len(trainers) < 2 or len(session.spec.terms) < 2:
        return {}
    updated = {trainer: trainers.updated(trainer).values() for trainer in trainers}
    reached: dict[str, tuple[str, ...]] = dict.fromkeys(updated, ())
    (parts,) = result.parts
    # all parameters, because BatchNorm updates its running statistics in the backward pass
    with preserve_state(session.model.parameters.values(), ()):
        for term in (term for term in session.spec.terms if term.key in parts):
            for parameters in updated.values():
                for parameter in parameters:
                    parameter.zero_grad()
            try:
                mx.autograd.backward([parts[term.key]], retain_graph=True)
            except mx.base.MXNetError:
                continue  # a constant
            for trainer, parameters in updated.items():
                if trainer in (term.trainers or updated) and any(
                    gradient.asnumpy().any() for p in parameters for gradient in p.list_grad()
                ):
                    reached[trainer] += (term.key,)
    return reached
