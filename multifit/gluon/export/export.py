"""Writes a net for use elsewhere."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...engines.prediction import batches_of
from ...errors import SpecError, quoted
from ...files import atomic_path, atomic_write, sha256
from ...protocols import Slots
from ...spec import TaskSpec
from ...stages import EVALUATE, TRAIN
from ...version import installed_versions
from ..compat import mx
from ..data.splitter import SlotSignature
from ..evaluation import predict_batch
from ..session import Session
from .onnx_model import onnx_model, require_onnx
from .traced_net import PortType, TracedNet, trace

FUNCTIONS = {"torch": "write_module", "pt2": "write_program"}


def require_torch() -> Any:
    """Return the module that writes files for torch; raises ImportError if torch is not installed."""
    if find_spec("torch") is None:
        raise ImportError("exporting to PyTorch needs torch, which is not installed: pip install torch")
    return import_module("multifit.torch.from_gluon.export")


def _write_torch(format: str, net: TracedNet, folder: Path) -> list[Path]:
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
        record=_description(net),
    )
    paths: list[Path] = getattr(writer, FUNCTIONS[format])(plain, folder)
    return paths


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
        described = _description(net)
        for output in described["outputs"]:
            output["symbol"] = f"{output['name']}_output"
        record = {
            "format": "gluon",
            "symbol": SYMBOL,
            "parameters": PARAMETERS,
            **described,
            "sha256": {PARAMETERS: sha256(parameter_file), SYMBOL: sha256(symbol_file)},
        }
        record_file.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    return sorted(paths)


def _write_onnx(net: TracedNet, folder: Path) -> list[Path]:
    atomic_write(folder / ONNX, onnx_model(net).SerializeToString(deterministic=True))
    return [folder / ONNX]


WRITERS: Mapping[str, Callable[[TracedNet, Path], list[Path]]] = {
    "gluon": _write_gluon,
    "onnx": _write_onnx,
    **{format: partial(_write_torch, format) for format in FUNCTIONS},
}


def _description(net: TracedNet) -> dict[str, Any]:
    return {
        "inputs": [_port(name, type_) for name, type_ in net.inputs.items()],
        "outputs": [_port(name, type_) for name, type_ in net.outputs.items()],
        "unread_inputs": list(net.unread),
        "versions": installed_versions(["mxnet"]),
    }


def _port(name: str, type_: PortType) -> dict[str, Any]:
    return {"name": name, "shape": type_.shape and list(type_.shape), "dtype": type_.dtype}


# by format: a function that raises ImportError before anything is traced, if a library is missing
REQUIRED = {"onnx": require_onnx, **dict.fromkeys(FUNCTIONS, require_torch)}
MAX_BATCHES = 31  # at most as many batches of a loader are read for their shapes


def export(
    session: Session, folder: str | os.PathLike[str], data: Any = None, format: str = "gluon"
) -> list[Path]:
    """Write the net in evaluation mode; see :meth:`multifit.MultiEstimator.export`.

    The net itself does not change. The batch axis is the first one. It may have any size, and so may an axis
    whose size differed between the batches so far, such as that of words in sentences. In Gluon's format,
    `export.json` is written last; it describes each input and output, and has the hashes of the other two
    files.
    """
    if format in REQUIRED:
        REQUIRED[format]()
    spec = session.spec.evaluation
    return write(session.model.net, spec, _signatures(session, spec, data), folder, format)


def write(
    net: Any, spec: TaskSpec, sources: Iterable[Sequence[Any]], folder: str | os.PathLike[str], format: str
) -> list[Path]:
    """Write a net as a spec calls it; `sources` are the signatures of batches, of which the first fit.

    Raises ValueError if there are none.
    """
    if format in REQUIRED:
        REQUIRED[format]()
    if spec.state:
        raise SpecError(
            f"export: {quoted(spec.state)} come from the previous batch (state=), which the formats cannot "
            "express; export a net that starts from zeros itself"
        )
    errors: list[Exception] = []
    for signatures in sources:
        try:
            return WRITERS[format](trace(net, spec, signatures), Path(folder))
        except SpecError as error:  # the net may have refused all batches so far that were not trained on
            errors.append(error)
    message = (
        f"export: the shapes of the inputs {quoted(spec.inputs)} are not known; fit, check or evaluate "
        "first, or give data: export(folder, data)"
    )
    raise errors[0] if errors else ValueError(message)


def _signatures(session: Session, spec: TaskSpec, data: Any) -> Iterator[list[SlotSignature]]:
    """Yield signatures of batches, those with the same inputs as the last one, as far as there are any."""
    if data is None:  # after a fit without validation data, there are only those of training
        sources = [session.signatures[name] for name in (EVALUATE, TRAIN)]
    else:
        sources = [_read_signatures(session, data)]
    for source in sources:
        signatures = [signature for signature in source if set(spec.inputs) <= set(signature)]
        if signatures:
            last = _given(spec, signatures[-1])
            yield [_cast(session, each) for each in signatures if _given(spec, each) == last]


def _read_signatures(session: Session, data: Any) -> list[SlotSignature]:
    batches = batches_of(session, data)
    first = next(batches)
    predict_batch(session, first)  # infers the shapes of parameters that are not known yet
    splitter = session.splitter(EVALUATE, labels=False)
    return [
        _signature(splitter.split(batch).slots[0]) for batch in (first, *islice(batches, MAX_BATCHES - 1))
    ]


def _signature(slots: Slots) -> SlotSignature:
    return {n: None if a is None else (tuple(a.shape), np.dtype(a.dtype).name) for n, a in slots.items()}


def _cast(session: Session, signature: SlotSignature) -> SlotSignature:
    """Return a signature with the dtypes in which the net gets its inputs: the file holds the net alone."""
    casts = {name: dtype for stage in session.stages.values() for name, dtype in stage.network.casts.items()}
    return {n: slot and (slot[0], casts.get(n, slot[1])) for n, slot in signature.items()}


def _given(spec: TaskSpec, signature: SlotSignature) -> list[str]:
    """Return the inputs that are not None."""
    return [name for name in spec.inputs if signature[name] is not None]
