"""Find indices for which an Embedding has no row: MXNet takes its first or last row without an error."""

from __future__ import annotations

import json
from typing import Any, Iterator, Mapping

import numpy as np

from ..compat import mx
from ..execution.network import Network
from ..execution.recordable import blocks_of
from ..execution.result import StepResult
from ..graph_builder import Node

# Operators whose results are elements of their first argument
_REARRANGING = {
    "BlockGrad", "Cast", "Flatten", "Reshape", "SliceChannel", "SwapAxis", "_copy", "_split_v2", "amp_cast",
    "expand_dims", "repeat", "reverse", "slice", "slice_axis", "squeeze", "take", "tile", "transpose",
}  # fmt: skip


def unknown_indices(result: StepResult, network: Network, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each input of a traced net with an index beyond the rows of an Embedding.

    `parameters` are the net's parameters by structural name. Nets without an Embedding are skipped. Waits for
    the inputs.
    """
    blocks = blocks_of(network.net).values()
    if not network.traced or not any(isinstance(each, mx.gluon.nn.Embedding) for each in blocks):
        return
    slots: Any = result.batch.slots[0]
    graph = network.trace(slots)
    nodes = json.loads(graph.symbol)["nodes"]
    names = {parameter.name: name for name, parameter in parameters.items()}
    for node in nodes:
        if node["op"] != "Embedding":
            continue
        source, weight = _source(node, nodes), nodes[node["inputs"][1][0]]["name"]
        slot, rows = graph.inputs.get(source), int(node["attrs"]["input_dim"])
        values = np.empty(0) if slot is None else slots[slot].asnumpy()
        unknown = values[(values < 0) | (values >= rows)]
        if unknown.size:
            yield (
                f'the input "{slot}" holds {unknown[0]:g}, but "{names.get(weight, weight)}" has the rows 0 '
                f"to {rows - 1}, and the nearest is taken without an error; give the Embedding a row for "
                "each index"
            )


def _source(node: Node, nodes: list[Node]) -> str:
    """Return the name of the node that the elements of a node's first argument come from.

    This is a variable if only operators that rearrange elements are between them.
    """
    before = nodes[node["inputs"][0][0]]
    return _source(before, nodes) if before["op"] in _REARRANGING else str(before["name"])
