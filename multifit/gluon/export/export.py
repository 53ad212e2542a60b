"""Writes a net for use elsewhere."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...engines.prediction import Signature
from ...spec import TaskSpec
from ...utils.errors import SpecError
from ...utils.files import atomic_path, atomic_write, sha256
from ...utils.text import quoted
from ..compat import mx
from .onnx_model import onnx_model, require_onnx
from .traced_net import TracedNet, trace

SYMBOL, PARAMETERS, RECORD, ONNX = "net-symbol.json", "net-0000.params", "export.json", "net.onnx"

Writer = Callable[[TracedNet, Path], list[Path]]


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
        description = net.description()
        for output in description["outputs"]:
            output["symbol"] = f"{output['name']}_output"
        record = {
            "format": "gluon",
            "symbol": SYMBOL,
            "parameters": PARAMETERS,
            **description,
            "sha256": {PARAMETERS: sha256(parameter_file), SYMBOL: sha256(symbol_file)},
        }
        record_file.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    return sorted(paths)


def _write_onnx(net: TracedNet, folder: Path) -> list[Path]:
    atomic_write(folder / ONNX, onnx_model(net).SerializeToString(deterministic=True))
    return [folder / ONNX]


WRITERS: Mapping[str, Writer] = {"gluon": _write_gluon, "onnx": _write_onnx}


def export(
    net: Any,
    spec: TaskSpec,
    sources: Iterable[Sequence[Signature]],
    folder: str | os.PathLike[str],
    format: str,
    writers: Mapping[str, Writer] = WRITERS,
) -> list[Path]:
    """Write a net in evaluation mode; see :meth:`multifit.MultiEstimator.export`.

    The net itself does not change. The batch axis is the first one. It may have any size, and so may an axis
    whose size differed between the batches so far, such as that of words in sentences. In Gluon's format,
    `export.json` is written last; it describes each input and output, and has the hashes of the other two
    files.

    `sources` are signatures of batches, of which the first that the net takes are used. Raises ImportError
    before they are read if a library is missing, and ValueError if there are none.
    """
    if format == "onnx":
        require_onnx()
    if spec.state:
        raise SpecError(
            f"export: {quoted(spec.state)} come from the previous batch (state=), which the formats cannot "
            "express; export a net that starts from zeros itself"
        )
    errors: list[Exception] = []
    for signatures in sources:
        try:
            return writers[format](trace(net, spec, signatures), Path(folder))
        except SpecError as error:  # the net may have refused all batches so far that were not trained on
            errors.append(error)
    message = (
        f"export: the shapes of the inputs {quoted(spec.inputs)} are not known; fit, check or evaluate "
        "first, or give data: export(folder, data)"
    )
    raise errors[0] if errors else ValueError(message)
