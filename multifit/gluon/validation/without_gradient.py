"""Warn of parameters that a trainer updates, but that no loss's gradient reaches."""

from __future__ import annotations

from typing import Iterator

from ...stages import TRAIN
from ..compat import mx
from ..engine import Engine
from ..execution.graph_cut import learning_variables
from ..execution.traced_graph import as_json
from ..optim.coverage import freezing
from ..optim.parameters import listing


def without_gradient(engine: Engine) -> Iterator[str]:
    """Yield a warning if a trainer updates parameters that no loss's gradient reaches.

    They are behind an operator such as BlockGrad, or only outputs without a loss depend on them. MXNet's
    gradient is then 0, so that weight decay alone changes them. Nets that cannot be traced are skipped, and
    so are fits with handlers that change outputs or objectives, as these may train any parameter.
    """
    if engine.hooks.active("change_objective", "change_outputs"):
        return
    outputs = engine.stages[TRAIN].network.traced_outputs
    terms = [term for term in engine.spec.terms if term.spec.weight != 0]
    taken = {ref.name for term in terms for ref in term.outputs}
    if not taken & outputs.keys():
        return
    graph = mx.sym.Group(list(outputs.values()))
    learning = learning_variables(as_json(graph), [name in taken for name in outputs])
    losses = [term.spec.fn for term in terms if isinstance(term.spec.fn, mx.gluon.Block)]
    learning |= {name for loss in losses for name in loss.collect_params()}  # it may use a layer of the net
    used, parameters = set(graph.list_arguments()), engine.model.parameters
    still = [name for name in engine.trainers.updated() if parameters[name].name in used - learning]
    if still:
        others = [name for name in parameters if name not in still]
        yield (
            f"no loss's gradient reaches {listing(still)}, so at most weight decay changes them: an "
            "operator such as BlockGrad stops it, or only outputs without a loss depend on them; pass "
            f"{freezing(still, others)}, or give them a loss"
        )
