"""Call a module of torch.fx without looking up its parameters."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Callable

import torch
from torch import fx

from ..translate import freed_with_source


def lifted(module: fx.GraphModule) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Return a function that computes the same as a module, and the tensors that it takes first.

    These are the tensors that the module holds. Its own code reads ``body.0.weight`` attribute by attribute,
    which takes as long as an operator.
    """
    graph = fx.Graph()
    read = [node for node in module.graph.nodes if node.op == "get_attr"]
    arguments = {node: graph.placeholder(node.name) for node in read}
    graph.output(graph.graph_copy(module.graph, arguments))
    function = freed_with_source(fx.GraphModule(torch.nn.Module(), graph, "Lifted")).forward
    return function, [attrgetter(node.target)(module) for node in read]
