"""Refuse what the engine on torch does not do, and name the way out."""

from collections.abc import Iterator

import numpy as np

from ...distributed import World
from ...errors import Problem, quoted
from ...gluon.engine import Engine
from ...gluon.execution.network import Network
from ...gluon.execution.stage import Stage
from ...gluon.optim.optimizers import KNOWN
from ..from_gluon.optim.rules import RULES
from ..from_gluon.translate import untranslated

WAY_OUT = 'or use engine="mxnet"'


def refuse(what: str, way_out: str = "", kind: str = "spec") -> Problem:
    """Return the problem of something that this engine does not do."""
    return Problem(kind, f'engine="torch": {what}; {way_out}{", " if way_out else ""}{WAY_OUT}')


def of_world(world: World) -> list[Problem]:
    """Return why tensors cannot be added up over the ranks."""
    if world.alone or not world.asynchronous:
        return []
    return [refuse(f"{world.name} sums MXNet's arrays only", 'give world=multifit.connect("torch")')]


def of_trainers(engine: Engine) -> list[Problem]:
    """Return the problems with trainers and parameters, which must be built and initialised."""
    return [*_of_parameters(engine), *_of_optimizers(engine)]


def of_graph(stage: Stage) -> list[Problem]:
    """Return why a stage's net and losses are not a single graph; its first batch must have been checked."""
    problems = of_network(stage.network)
    for term in stage.graphs.outside_terms:
        way_out = "make it a HybridBlock and hybridize it"
        problems.append(refuse(f"{term.where} cannot be part of the graph", way_out))
    for term in stage.spec.terms:
        if term.key in stage.graphs.own_gradients:
            problems.append(refuse(f"{term.where} ignores the gradient that it receives", "use another loss"))
    return problems


def of_network(network: Network) -> list[Problem]:
    """Return why a net can neither be traced nor recorded; it must have been called."""
    obstacle = network.obstacle
    return [] if obstacle is None else [refuse(*obstacle)]


def of_operators(symbol: str) -> list[Problem]:
    """Return the problems with operators of a symbol in JSON that have no translation."""
    way_out = "use other operators or attributes"
    return [refuse(problem.message, way_out, problem.kind) for problem in untranslated(symbol)]


def _of_parameters(engine: Engine) -> Iterator[Problem]:
    sparse, low = [], []
    for name, parameter in engine.model.parameters.items():
        if parameter._grad_stype != "default":
            sparse.append(name)
        if np.dtype(parameter.dtype).name not in ("float32", "float64"):
            low.append(name)
    if sparse:
        yield refuse(f"{quoted(sparse)} have sparse gradients", "use dense layers", "trainer")
    if low:
        yield refuse(f"{quoted(low)} are neither float32 nor float64", 'call net.cast("float32")', "trainer")


def _of_optimizers(engine: Engine) -> Iterator[Problem]:
    trainers = engine.trainers.get()
    for name, handle in trainers.items():
        kind, module = type(handle.optimizer).__name__, type(handle.optimizer).__module__
        where = f'trainers["{name}"]'
        if kind.lower() not in RULES or not module.startswith(KNOWN):
            valid = f"supported are {quoted(sorted(RULES))}"
            yield refuse(f"{where}: {kind} has no translation ({valid})", "use one of these", "trainer")
