"""The graphs of task files: net, losses and metrics, while training and evaluating."""

import pytest

from tests.torch.from_gluon.graphs import assert_graph_agrees, traced_graphs

CASES = [
    ("digits",),
    ("logistic_regression",),
    ("classification", "model=lenet"),
    ("segmentation", "model=tiny"),
    ("sentiment",),
]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_graphs_of_tasks(case):
    graphs = traced_graphs(*case)
    assert {graph.training for graph in graphs} == {True, False}
    for graph in graphs:
        assert_graph_agrees(graph)
