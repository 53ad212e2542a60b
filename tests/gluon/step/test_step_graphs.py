"""Batches of many signatures share graphs, and compute the same whichever of them plan memory."""

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerSpec
from multifit.gluon.compat import mx
from multifit.gluon.step import cached_graph, step_graph
from tests.common.sequences import LENGTHS, sequence_batches, sequence_net, sequence_spec


def fit(kind: str, missing: bool) -> tuple[Any, list[int]]:
    """Train and evaluate; return history and parameters, and how many signatures share each graph."""
    spec = sequence_spec(kind, -1 if missing else None)
    trainer = TrainerSpec(".*", "adam", {"learning_rate": 0.02})
    estimator = MultiEstimator(sequence_net(kind), spec, trainer, context=mx.cpu())
    data = sequence_batches(kind, missing=missing)
    history = estimator.fit(data, data, epochs=2, event_handlers=[])
    values = {name: parameter.data().asnumpy() for name, parameter in estimator.parameters.items()}
    graphs = [id(graph) for graph in estimator._session.stages["train"].graphs._by_signature.values()]
    return (dict(history), values), sorted(map(graphs.count, set(graphs)))


KINDS = [("mean", False), ("mean", True), ("token", False), ("place", False)]
OF_ALL = len(set(LENGTHS))


@pytest.mark.parametrize(("kind", "missing"), KINDS)
def test_signatures_share_graphs(kind: str, missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, served = fit(kind, missing)
    # one token is counted in another way; over places, a softmax has as many classes as there are
    assert served == ([1] * OF_ALL if kind == "place" else [1, OF_ALL - 1])
    monkeypatch.setattr(cached_graph, "MAX_PLANS", 1)
    monkeypatch.setattr(cached_graph, "MAX_SEEN", 2)
    monkeypatch.setattr(step_graph, "MAX_SIGNATURES", 3)
    again, served = fit(kind, missing)
    np.testing.assert_equal(again, expected)
    assert sum(served) == 3
