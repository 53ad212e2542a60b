"""Evaluating and predicting, batch by batch."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ...engines.shares import Shards
from ...errors import raise_problems
from ...stages import EVALUATE
from ..data.arrays import joined, to_numpy
from ..engine import Engine
from ..execution.result import StepResult
from ..user_code import user_code
from ..validation.first_batch import run_batch
from .activations import activations_of

Piece = tuple[dict[str, Any], int]
"""One device's outputs, as NumPy arrays by name, and its number of samples."""

PredictBatch = Callable[[Engine, Any], "list[Piece]"]


def evaluate_batch(engine: Engine, raw: Any) -> StepResult:
    """Measure losses and metrics on a batch; the first batch is checked.

    Raises SpecError or DataError if the batch or the net does not fit the spec.
    """
    stage = engine.stages[EVALUATE]
    batch = engine.splitter(EVALUATE).split(raw)
    is_first = not stage.checked
    if is_first:
        engine.trainers.prepare()
        engine.begin_stage(EVALUATE, batch)
    result = run_batch(stage, batch, engine.state)
    stage.measure(result)
    raise_problems(stage.figures.name_problems() if is_first else [])
    return result


def predict_batch(engine: Engine, raw: Any) -> list[Piece]:
    """Return, per device, the outputs as NumPy arrays and the number of samples; labels may be missing.

    Raises SpecError or DataError if the batch or the net does not fit the spec.
    """
    stage = engine.stages[EVALUATE]
    batch = engine.splitter(EVALUATE, labels=False).split(raw)
    if stage.network.paths is None:
        engine.trainers.prepare()
        engine.begin_stage(EVALUATE, batch)
    pieces = []
    with stage.recording():
        for context, slots, size in zip(batch.contexts, batch.slots, batch.sizes):
            with context:
                if stage.network.paths is None:
                    outputs, problems = stage.network.bind(slots)
                    raise_problems(problems)
                else:
                    outputs = stage.network(slots)
                    raise_problems(stage.network.array_problems(outputs))
            pieces.append((outputs, size))
    if stage.carried is not None:
        stage.carried.keep(batch, [outputs for outputs, _ in pieces])
    with user_code(lambda: "the net's forward pass (evaluate)"):  # the engine's errors are raised here
        return [
            ({name: to_numpy(array) for name, array in outputs.items()}, size) for outputs, size in pieces
        ]


def batches_of(engine: Engine, data: Any) -> Iterator[Any]:
    """Return the batches of `data`: a tuple, a mapping or an array is one, a list or a loader is many."""
    is_batch = (
        isinstance(data, (tuple, Mapping, Shards)) or hasattr(data, "shape") or not hasattr(data, "__iter__")
    )
    return engine.readers[EVALUATE].peek_first([data] if is_batch else data, "data")[1]


def predict(
    engine: Engine,
    data: Any,
    gather: bool = True,
    activation: Any = None,
    write: Callable[[str, np.ndarray, int], object] | None = None,
    run: PredictBatch = predict_batch,
) -> dict[str, Any]:
    """Return every output by name, concatenated over batches; a list of arrays where that is impossible.

    With several ranks, the outputs are those of all ranks, unless ``gather=False``. `activation` is applied
    to them. With `write`, nothing is returned: it is called with the name, the array and the number of
    samples of each batch's outputs. `run` computes a batch's outputs, as :func:`predict_batch` does.
    """
    activations = activations_of(engine.spec, activation)
    carried = engine.stages[EVALUATE].carried
    if carried is not None:
        carried.reset()
    batches = []
    for raw in batches_of(engine, data):
        pieces = run(engine, raw)
        for outputs, size in pieces:
            for name, activate in activations.items():
                with user_code(partial(str, f'activation of output "{name}"')):
                    outputs[name] = np.asarray(activate(outputs[name]))
            if write is not None:
                for name, array in outputs.items():
                    write(name, array, size)
        if write is None:
            batches.append(pieces)
    if gather and not engine.world.alone:  # for each batch, one piece per device, in the order of the ranks
        gathered = zip(*engine.world.gather(batches))
        batches = [[piece for own in ranks for piece in own] for ranks in gathered]
    pieces = [piece for batch in batches for piece in batch]
    names = pieces[0][0] if pieces else {}
    sizes, axis = [size for _, size in pieces], engine.batch_axis
    return {name: joined([outputs[name] for outputs, _ in pieces], sizes, axis) for name in names}
