"""Trees that hold NDArrays."""

import re
from typing import Any

from ...engines.trees import Add, Trees
from ..compat import mx
from ..data.arrays import new_array


class MXNetTrees(Trees):
    """Trees of plain values, NumPy's arrays, and NDArrays, which are restored on their device."""

    valid = f"{Trees.valid}, and NDArrays but CSR's"

    def write_array(self, value: Any, add: Add) -> dict[str, Any] | None:
        """Return the structure of an NDArray; None for another value."""
        if type(value) is mx.nd.NDArray:
            return {"ndarray": add(value.asnumpy()), "on": str(value.context)}
        if type(value) is mx.nd.sparse.RowSparseNDArray:
            rows = [add(part.asnumpy()) for part in (value.data, value.indices)]
            return {"rows": rows, "shape": list(value.shape), "on": str(value.context)}
        return None

    def read_array(self, structure: Any, arrays: list[Any]) -> Any:
        """Return the NDArray of a structure."""
        device = _context(structure["on"])
        if "ndarray" in structure:
            return new_array(arrays[structure["ndarray"]], device)
        values, indices = (arrays[i] for i in structure["rows"])
        options = {"ctx": device, "dtype": values.dtype}
        if not len(indices):
            return mx.nd.sparse.zeros("row_sparse", tuple(structure["shape"]), **options)
        return mx.nd.sparse.row_sparse_array((values, indices), tuple(structure["shape"]), **options)


TREES = MXNetTrees()


def _context(device: str) -> mx.Context:
    match = re.fullmatch(r"(\w+)\((\d+)\)", device)
    if match is None or match[1] not in mx.Context.devstr2type:
        raise ValueError(f'there is no device "{device}"')
    return mx.Context(match[1], int(match[2]))
