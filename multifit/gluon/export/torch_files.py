"""Hand a traced net as plain data to :mod:`multifit.torch.export`, which writes it without mxnet."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..compat import mx
from .traced_net import TracedNet

INSTALL = "exporting to PyTorch needs torch, which is not installed: pip install torch"
FUNCTIONS = {"torch": "write_module", "pt2": "write_program"}


def require_torch() -> Any:
    """Return the module that writes files for torch; raises ImportError if torch is not installed."""
    if find_spec("torch") is None:
        raise ImportError(INSTALL)
    return import_module("multifit.torch.export.write")


def write_torch(format: str, net: TracedNet, record: dict[str, Any], folder: Path) -> list[Path]:
    """Write a net in one of the formats in `FUNCTIONS`; `record` describes it for ``export.json``."""
    writer = require_torch()
    plain = writer.PlainNet(
        symbol=mx.sym.Group(list(net.symbols.values())).tojson(),
        example={name: (net.example[name], type_.dtype) for name, type_ in net.inputs.items()},
        open_axes={
            name: [axis for axis, size in enumerate(type_.shape or ()) if not isinstance(size, int)]
            for name, type_ in net.inputs.items()
        },
        outputs=list(net.outputs),
        arrays={name: value.asnumpy() for name, value in net.parameters.items()},
        names=net.names,
        trained=net.trained,
        record=record,
    )
    paths: list[Path] = getattr(writer, FUNCTIONS[format])(plain, folder)
    return paths
