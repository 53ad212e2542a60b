"""Writing a net for use elsewhere: as Gluon's symbol and parameters, or as an ONNX model."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Mapping

import numpy as np

from ...errors import names, shown, suggest
from ...files import atomic_path, atomic_write
from ...spec import TaskSpec
from ..compat import mx
from ..data.loaders import peek_first
from ..installed import installed_versions
from .graph import Array, Form, Graph
from .onnx_model import onnx_model, require_onnx
from .tracing import trace

__all__ = ["FORMATS", "export"]

SYMBOL, PARAMETERS, RECORD, ONNX = "net-symbol.json", "net-0000.params", "export.json", "net.onnx"
MOST = 30  # batches that are looked at besides the first


def export(
    engine: Any, folder: str | os.PathLike[str], data: Any = None, format: str = "gluon"
) -> list[Path]:
    """Write the net as it evaluates and predicts, with the spec's names for its inputs and outputs.

    The net itself stays as it is. The batch axis is the first one, and of any size; so is an axis whose size
    differed between the batches that were seen, such as sentences.

    Parameters
    ----------
    engine : Engine
        Of an estimator that was fitted, checked or evaluated before, so that the inputs' shapes are known.
    folder : str or path
        Where the files go; it is made where there is none. ``"gluon"`` writes ``net-symbol.json`` and
        ``net-0000.params``, which ``gluon.SymbolBlock.imports`` reads, and ``export.json``, which says what
        each input and output is and is written last, with the sums of the other two. ``"onnx"`` writes
        ``net.onnx``.
    data : array, tuple, dict, list or loader, optional
        As `predict` takes it: needed where nothing was run before. Its first batches are looked at.
    format : {"gluon", "onnx"}
        See `folder`.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    SpecError
        The net cannot be made a graph; see :func:`multifit.gluon.export.tracing.trace`.
    ValueError
        An unknown format, inputs whose shapes are not known, or an operator that ONNX has not.
    ImportError
        ONNX is not installed.
    OSError
        The files cannot be written; what stood there before still stands.
    """
    if format not in FORMATS:
        raise ValueError(
            f"export: format is {shown(format)}{suggest(format, FORMATS)}; formats are {names(FORMATS)}"
        )
    if format == "onnx":
        require_onnx()
    spec = engine.spec.evaluation
    graph = trace(engine.net, spec, _forms(engine, spec, data))
    return FORMATS[format](graph, Path(folder))


def _write_gluon(graph: Graph, folder: Path) -> list[Path]:
    symbol = graph.symbol()
    auxiliary = set(symbol.list_auxiliary_states())
    values = {f"{'aux' if name in auxiliary else 'arg'}:{name}": v for name, v in graph.parameters.items()}
    paths = [folder / name for name in (RECORD, PARAMETERS, SYMBOL)]
    with ExitStack() as files:
        # Left in reverse: all three are written before the first takes its name, and the record is the last.
        record, parameters, drawn = (files.enter_context(atomic_path(path)) for path in paths)
        drawn.write_text(symbol.tojson(), "utf-8")
        mx.nd.save(str(parameters), values)
        sums = {path.name: _sum(file) for path, file in zip(paths[1:], (parameters, drawn))}
        record.write_text(json.dumps(_record(graph, sums), indent=2) + "\n", "utf-8")
    return sorted(paths)


def _write_onnx(graph: Graph, folder: Path) -> list[Path]:
    atomic_write(folder / ONNX, onnx_model(graph).SerializeToString(deterministic=True))
    return [folder / ONNX]


FORMATS: Mapping[str, Callable[[Graph, Path], list[Path]]] = {"gluon": _write_gluon, "onnx": _write_onnx}


def _forms(engine: Any, spec: TaskSpec, data: Any) -> list[Form]:
    """Return what the inputs looked like in the batches that were seen; all are arrays or None alike."""
    # after a fit without validation data, what training saw is all there is
    sources = [engine.seen["evaluate"], engine.seen["train"]] if data is None else [_looked_at(engine, data)]
    for source in sources:
        forms = [form for form in source if set(spec.inputs) <= set(form)]
        if forms:
            return [form for form in forms if _alike(spec, form, forms[-1])]
    raise ValueError(
        f"export: the shapes of the inputs {names(spec.inputs)} are not known; fit, check or evaluate first, "
        "or give data: export(folder, data)"
    )


def _looked_at(engine: Any, data: Any) -> list[Form]:
    one = isinstance(data, (tuple, Mapping)) or hasattr(data, "shape") or not hasattr(data, "__iter__")
    batches = iter([data]) if one else peek_first(data, "data")[1]
    first = next(batches)
    engine.predict(first)  # parameters whose shapes are not known get them here
    feed = engine.feed("evaluate", labels=False)
    return [_form(feed.split(batch).slots[0]) for batch in (first, *islice(batches, MOST))]


def _form(slots: Mapping[str, Any]) -> Form:
    return {n: None if a is None else (tuple(a.shape), np.dtype(a.dtype).name) for n, a in slots.items()}


def _alike(spec: TaskSpec, one: Form, other: Form) -> bool:
    return all(_axes(one[name]) == _axes(other[name]) for name in spec.inputs)


def _axes(found: Any) -> int | None:
    return None if found is None else len(found[0])


def _record(graph: Graph, sums: Mapping[str, str]) -> dict[str, Any]:
    return {
        "format": "gluon",
        "symbol": SYMBOL,
        "parameters": PARAMETERS,
        "inputs": [_described(name, array) for name, array in graph.inputs.items()],
        "outputs": [
            {**_described(name, array), "symbol": f"{name}_output"} for name, array in graph.outputs.items()
        ],
        "unread_inputs": list(graph.unread),
        "sha256": dict(sums),
        "versions": installed_versions(),
    }


def _described(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "shape": array.shape and list(array.shape), "dtype": array.dtype}


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
