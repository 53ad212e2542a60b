"""Batches of many signatures share graphs, and compute what they would compute on graphs of their own."""

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, TrainerSpec
from multifit.gluon.compat import mx
from multifit.gluon.step import step_graph_cache
from multifit.gluon.step.step_graph_cache import StepGraphCache
from tests.common.sequences import LENGTHS, sequence_batches, sequence_net, sequence_spec

EPOCHS = 3
KINDS = [("mean", False), ("mean", True), ("token", False), ("place", False)]


def fit(kind: str, missing: bool) -> tuple[Any, StepGraphCache]:
    """Train and evaluate; return history and parameters, and the graphs of the stage that trains."""
    spec = sequence_spec(kind, -1 if missing else None)
    trainer = TrainerSpec(".*", "adam", {"learning_rate": 0.02})
    estimator = MultiEstimator(sequence_net(kind), spec, trainer, context=mx.cpu())
    data = sequence_batches(kind, missing=missing)
    history = estimator.fit(data, data, epochs=EPOCHS, event_handlers=[])
    values = {name: parameter.data().asnumpy() for name, parameter in estimator.parameters.items()}
    return (dict(history), values), estimator._engine.session.stages["train"].graphs


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are built, of both stages."""
    graphs, build = [], StepGraphCache.build

    def counted(*arguments: Any) -> Any:
        graphs.append(build(*arguments))
        return graphs[-1]

    monkeypatch.setattr(StepGraphCache, "build", counted)
    return graphs


@pytest.mark.parametrize(("kind", "missing"), KINDS[1:3])
def test_signatures_beyond_the_first_share_graphs(
    kind: str, missing: bool, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, graphs = fit(kind, missing)
    signatures = len(set(LENGTHS))
    assert len(set(graphs._graphs.values())) == len(graphs) == signatures
    assert len(built) == 2 * signatures
    monkeypatch.setattr(step_graph_cache, "MAX_GRAPHS", 2)
    built.clear()
    found, graphs = fit(kind, missing)
    np.testing.assert_equal(found, expected)
    assert len(graphs) == signatures and len(built) == 2 * signatures  # in the first epoch only
    assert len(set(graphs._graphs.values())) == 3  # two of their own, and one for the length 1


def test_graphs_that_depend_on_a_size_are_not_shared(
    built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, graphs = fit("place", False)
    assert len(built) == 2 * len(set(LENGTHS))
    monkeypatch.setattr(step_graph_cache, "MAX_GRAPHS", 2)
    found, graphs = fit("place", False)
    np.testing.assert_equal(found, expected)
    assert len(graphs) == 2  # all others run without a graph


@pytest.mark.parametrize(("kind", "missing"), KINDS[1::2])
def test_the_oldest_signatures_are_forgotten(
    kind: str, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = fit(kind, missing)
    for name, limit in (("MAX_GRAPHS", 2), ("MAX_SIGNATURES", 3)):
        monkeypatch.setattr(step_graph_cache, name, limit)
    found, graphs = fit(kind, missing)
    np.testing.assert_equal(found, expected)
    assert len(graphs) <= 3
