"""Write a net, in evaluation mode, for use elsewhere."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any, Iterator

import numpy as np

from ...errors import SpecError, quoted
from ...protocols import Slots
from ...spec import TaskSpec
from ...stages import EVALUATE, TRAIN
from ..data.splitter import SlotSignature
from ..engine import Engine
from ..steps.evaluation import batches_of, predict_batch
from .formats import WRITERS
from .onnx_model import require_onnx
from .torch_files import FUNCTIONS, require_torch
from .traced_net import TracedNet
from .tracing import trace

# by format: a function that raises ImportError before anything is traced, if a library is missing
REQUIRED = {"onnx": require_onnx, **dict.fromkeys(FUNCTIONS, require_torch)}
MAX_BATCHES = 31  # at most as many batches of a loader are read for their shapes


def export(
    engine: Engine, folder: str | os.PathLike[str], data: Any = None, format: str = "gluon"
) -> list[Path]:
    """Write the net in evaluation mode; see :meth:`multifit.MultiEstimator.export`.

    The net itself does not change. The batch axis is the first one. It may have any size, and so may an axis
    whose size differed between the batches so far, such as that of words in sentences. In Gluon's format,
    `export.json` is written last; it describes each input and output, and has the hashes of the other two
    files.
    """
    if format in REQUIRED:
        REQUIRED[format]()
    spec = engine.spec.evaluation
    if spec.state:
        raise SpecError(
            f"export: {quoted(spec.state)} come from the previous batch (state=), which the formats cannot "
            "express; export a net that starts from zeros itself"
        )
    return WRITERS[format](_traced(engine, spec, data), Path(folder))


def _traced(engine: Engine, spec: TaskSpec, data: Any) -> TracedNet:
    """Trace the net for the batches of evaluation, or else for those of training."""
    errors: list[Exception] = []
    for signatures in _signatures(engine, spec, data):
        try:
            return trace(engine.model.net, spec, signatures)
        except SpecError as error:  # the net may have refused all batches so far that were not trained on
            errors.append(error)
    message = (
        f"export: the shapes of the inputs {quoted(spec.inputs)} are not known; fit, check or evaluate "
        "first, or give data: export(folder, data)"
    )
    raise errors[0] if errors else ValueError(message)


def _signatures(engine: Engine, spec: TaskSpec, data: Any) -> Iterator[list[SlotSignature]]:
    """Yield signatures of batches, those with the same inputs as the last one, as far as there are any."""
    if data is None:  # after a fit without validation data, there are only those of training
        sources = [engine.signatures[name] for name in (EVALUATE, TRAIN)]
    else:
        sources = [_read_signatures(engine, data)]
    for source in sources:
        signatures = [signature for signature in source if set(spec.inputs) <= set(signature)]
        if signatures:
            last = _given(spec, signatures[-1])
            yield [_cast(engine, each) for each in signatures if _given(spec, each) == last]


def _read_signatures(engine: Engine, data: Any) -> list[SlotSignature]:
    batches = batches_of(engine, data)
    first = next(batches)
    predict_batch(engine, first)  # infers the shapes of parameters that are not known yet
    splitter = engine.splitter(EVALUATE, labels=False)
    return [
        _signature(splitter.split(batch).slots[0]) for batch in (first, *islice(batches, MAX_BATCHES - 1))
    ]


def _signature(slots: Slots) -> SlotSignature:
    return {n: None if a is None else (tuple(a.shape), np.dtype(a.dtype).name) for n, a in slots.items()}


def _cast(engine: Engine, signature: SlotSignature) -> SlotSignature:
    """Return a signature with the dtypes in which the net gets its inputs: the file holds the net alone."""
    casts = {name: dtype for stage in engine.stages.values() for name, dtype in stage.network.casts.items()}
    return {n: slot and (slot[0], casts.get(n, slot[1])) for n, slot in signature.items()}


def _given(spec: TaskSpec, signature: SlotSignature) -> list[str]:
    """Return the inputs that are not None."""
    return [name for name in spec.inputs if signature[name] is not None]
