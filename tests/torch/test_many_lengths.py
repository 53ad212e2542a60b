"""Sequences of many lengths: a program is traced and translated once, whatever the number of lengths."""

from typing import Any

import pytest

from multifit import MultiEstimator, TrainerSpec
from multifit.gluon.execution import step_graph_cache
from multifit.gluon.execution.step_graph import StepGraph
from tests.common.sequences import LENGTHS, sequence_batches, sequence_net, sequence_spec
from tests.torch.fits import assert_engines_agree, stages_of
from tests.torch.runs import values

TRAINER = TrainerSpec(".*", "adam", {"learning_rate": 0.02})


def estimator_of(kind: str, engine: str, missing: Any = None) -> MultiEstimator:
    net = sequence_net(kind, "float64")
    return MultiEstimator(net, sequence_spec(kind, missing), TRAINER, context=None, engine=engine)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[StepGraph]:
    """The graphs that are traced for torch."""
    graphs, trace = [], StepGraph.trace

    def counted(graph: StepGraph, *arguments: Any, **options: Any) -> Any:
        graphs.append(graph)
        return trace(graph, *arguments, **options)

    monkeypatch.setattr(StepGraph, "trace", counted)
    return graphs


@pytest.mark.parametrize(
    ("kind", "missing", "programs", "limit"),
    [
        ("mean", None, 2, 2),  # a sequence of length 1 could be a label with a value per sample
        ("mean", -1, 2, 32),
        ("token", None, 2, 32),
        ("place", None, len(set(LENGTHS)), 2),  # the number of classes is a part of the program
    ],
)
def test_lengths_share_programs(
    kind: str, missing: Any, programs: int, limit: int, traced: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_graph_cache, "MAX_GRAPHS", limit)
    data = sequence_batches(kind, missing=missing is not None)

    def fit(engine: str) -> Any:
        estimator = estimator_of(kind, engine, missing)
        history = estimator.fit(data, data, epochs=3, event_handlers=[])
        if engine == "torch":
            assert [len(stage._programs) for stage in stages_of(estimator)] == [programs, programs]
        return dict(history), values(estimator)

    assert_engines_agree(fit, 1e-8)  # the metrics compute in float32
    assert len(traced) == 2 * programs
