"""Write a traced net in one of several formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Callable

from ...files import atomic_path, atomic_write, sha256
from ..compat import mx
from ..installed import installed_versions
from .onnx_model import onnx_model
from .torch_files import FUNCTIONS, write_torch
from .traced_net import PortType, TracedNet

SYMBOL, PARAMETERS, RECORD, ONNX = "net-symbol.json", "net-0000.params", "export.json", "net.onnx"


def _write_gluon(net: TracedNet, folder: Path) -> list[Path]:
    symbol = net.grouped()
    auxiliary = set(symbol.list_auxiliary_states())
    values = {f"{'aux' if name in auxiliary else 'arg'}:{name}": v for name, v in net.parameters.items()}
    paths = [folder / name for name in (RECORD, PARAMETERS, SYMBOL)]
    with ExitStack() as files:
        # The files are renamed in reverse order, once all three are written; the record is the last.
        record_file, parameter_file, symbol_file = (files.enter_context(atomic_path(path)) for path in paths)
        symbol_file.write_text(symbol.tojson(), "utf-8")
        mx.nd.save(str(parameter_file), values)
        hashes = {PARAMETERS: sha256(parameter_file), SYMBOL: sha256(symbol_file)}
        record_file.write_text(json.dumps(_record(net, hashes), indent=2) + "\n", "utf-8")
    return sorted(paths)


def _write_onnx(net: TracedNet, folder: Path) -> list[Path]:
    atomic_write(folder / ONNX, onnx_model(net).SerializeToString(deterministic=True))
    return [folder / ONNX]


def _write_torch(format: str, net: TracedNet, folder: Path) -> list[Path]:
    return write_torch(format, net, _description(net), folder)


WRITERS: Mapping[str, Callable[[TracedNet, Path], list[Path]]] = {
    "gluon": _write_gluon,
    "onnx": _write_onnx,
    **{format: partial(_write_torch, format) for format in FUNCTIONS},
}


def _record(net: TracedNet, hashes: Mapping[str, str]) -> dict[str, Any]:
    described = _description(net)
    for output in described["outputs"]:
        output["symbol"] = f"{output['name']}_output"
    files = {"format": "gluon", "symbol": SYMBOL, "parameters": PARAMETERS}
    return {**files, **described, "sha256": dict(hashes)}


def _description(net: TracedNet) -> dict[str, Any]:
    return {
        "inputs": [_port(name, type_) for name, type_ in net.inputs.items()],
        "outputs": [_port(name, type_) for name, type_ in net.outputs.items()],
        "unread_inputs": list(net.unread),
        "versions": installed_versions(),
    }


def _port(name: str, type_: PortType) -> dict[str, Any]:
    return {"name": name, "shape": type_.shape and list(type_.shape), "dtype": type_.dtype}
