"""Find which losses reach which trainer's parameters, and which losses pull against each other."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from ...errors import quoted
from ...spec.names import Ref
from ...spec.terms import Term
from ...stages import TRAIN
from ..compat import mx
from ..engine import Engine
from ..execution.loss_calls import by_reference, call_loss, detached
from ..execution.result import StepResult
from ..optim.preserve_state import kept_statistics, preserve_state

OPPOSITE = -0.5  # two gradients count as opposite if their cosine is below this


def losses_by_trainer(engine: Engine, result: StepResult) -> dict[str, tuple[str, ...]]:
    """Return for each trainer the losses whose gradients reach its parameters.

    Returns an empty dict unless there are several trainers and several losses. `result` must have just been
    computed, and must not be trained on. Waits for the engine.
    """
    trainers = engine.trainers.get()
    if len(trainers) < 2 or len(engine.spec.terms) < 2:
        return {}
    updated = {trainer: trainers.updated(trainer).values() for trainer in trainers}
    reached: dict[str, tuple[str, ...]] = dict.fromkeys(updated, ())
    devices = _parts(engine, result)
    # all parameters, because BatchNorm updates its running statistics in the backward pass
    with preserve_state(engine.model.parameters.values(), ()):
        for term in (term for term in engine.spec.terms if all(term.key in parts for parts in devices)):
            for parameters in updated.values():
                for parameter in parameters:
                    parameter.zero_grad()
            try:
                mx.autograd.backward([parts[term.key] for parts in devices], retain_graph=True)
            except mx.base.MXNetError:
                continue  # a constant
            for trainer, parameters in updated.items():
                if trainer in (term.trainers or updated) and any(
                    gradient.asnumpy().any() for p in parameters for gradient in p.list_grad()
                ):
                    reached[trainer] += (term.key,)
    return reached


def _parts(engine: Engine, result: StepResult) -> Sequence[Mapping[str, Any]]:
    """Return what the losses returned on each device, so that it can be differentiated.

    If the first batch ran as a graph, the graph may block these gradients; net and losses then run again.
    """
    stage = engine.stages[TRAIN]
    if not stage.reruns or stage.graphs.differentiable:
        return result.parts
    again = []
    with stage.recording(), kept_statistics(engine.model.parameters.values()):
        for context, slots, parts in zip(result.batch.contexts, result.batch.slots, result.parts):
            with context:
                arrays = by_reference(stage.network(slots), slots)
                terms = [term for term in engine.spec.terms if term.key in parts]
                again.append({term.key: call_loss(term, arrays)[term.minimized] for term in terms})
    return again


def opposing_losses(engine: Engine, result: StepResult) -> Iterator[str]:
    """Yield a warning for each pair of losses that pull an output in opposite directions.

    There is none unless there are several trainers. Outputs with equal values count as the same output: an
    adversarial net may return its score for a generated sample twice, once of the detached sample.
    """
    trainers = engine.trainers.get()
    terms = [term for term in engine.spec.terms if term.spec.weight != 0]
    if len(trainers) < 2 or len(terms) < 2:
        return
    arrays = result.arrays()[0]
    terms = [term for term in terms if term.key in result.parts[0]]
    gradients = {term.key: _output_gradients(term, arrays) for term in terms}
    trained_by = {term.key: set(term.trainers or trainers) for term in terms}
    for one, other in combinations(gradients, 2):
        if not trained_by[one] & trained_by[other]:
            continue
        for first, second in product(gradients[one], gradients[other]):
            if first == second or np.array_equal(arrays[first].asnumpy(), arrays[second].asnumpy()):
                cosine = _cosine(gradients[one][first], gradients[other][second])
                if cosine < OPPOSITE:
                    yield (
                        f'the losses "{one}" and "{other}" pull the output "{first.name}" in opposite '
                        f"directions (cosine {cosine:.2f}), and each of the trainers {quoted(trainers)} "
                        "updates its parameters by the weighted sum of all losses that reach them; bind "
                        "losses that are adversaries to their trainers, as in "
                        f'LossSpec(..., trainers="{next(iter(trainers))}")'
                    )


def _output_gradients(term: Term, arrays: Mapping[Ref, Any]) -> dict[Ref, np.ndarray]:
    """Return the gradients of a loss with respect to its outputs; empty if it has none."""
    copies = detached(term, arrays)
    outputs = [ref for ref in term.outputs if np.dtype(arrays[ref].dtype).kind == "f"]
    variables: dict[Ref, Any] = {ref: copies[ref] for ref in outputs}
    for variable in variables.values():
        variable.attach_grad()
    with mx.autograd.record(train_mode=False):
        value = call_loss(term, copies)[term.minimized]
    try:
        mx.autograd.backward([value], train_mode=False)
    except mx.base.MXNetError:  # a constant
        return {}
    return {ref: variable.grad.asnumpy() for ref, variable in variables.items()}


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    """Return the cosine of two gradients; 0 if one of them is 0 or not finite."""
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(np.sum(one * other)) / norms if norms > 0 and np.isfinite(norms) else 0.0
