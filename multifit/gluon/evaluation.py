"""Evaluating and predicting, batch by batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..engines import prediction
from ..engines.dry_run import measured_apart
from ..engines.prediction import Piece
from ..errors import raise_problems
from ..seeding import preserve_rng
from ..stages import EVALUATE
from .check.first_batch import check_first_batch
from .data.arrays import to_numpy
from .losses import softmax_axis
from .session import Session
from .step.result import StepResult
from .user_code import user_code


def evaluate_batch(session: Session, raw: Any) -> StepResult:
    """Measure losses and metrics on a batch; the first batch is checked.

    Raises SpecError or DataError if the batch or the net does not fit the spec.
    """
    stage = session.stages[EVALUATE]
    batch = session.splitter(EVALUATE).split(raw)
    is_first = not stage.checked
    if is_first:
        session.trainers.prepare()
        session.begin_stage(EVALUATE, batch)
        with preserve_rng(), measured_apart([stage]):
            raise_problems(check_first_batch(stage, batch, session.state)[1])
    result = stage.run(batch, session.state)
    stage.measure(result)
    raise_problems(stage.figures.name_problems() if is_first else [])
    return result


def predict_batch(session: Session, raw: Any) -> list[Piece]:
    """Return, per device, the outputs as NumPy arrays and the number of samples; labels may be missing.

    Raises SpecError or DataError if the batch or the net does not fit the spec.
    """
    stage = session.stages[EVALUATE]
    batch = session.splitter(EVALUATE, labels=False).split(raw)
    if stage.network.paths is None:
        session.trainers.prepare()
        session.begin_stage(EVALUATE, batch)
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


def predict(
    session: Session,
    data: Any,
    gather: bool = True,
    activation: Any = None,
    write: Callable[[str, np.ndarray, int], object] | None = None,
) -> dict[str, Any]:
    """Return every output by name; see :func:`multifit.engines.prediction.predict`."""
    return prediction.predict(
        session, data, gather, activation, write, run=predict_batch, class_axis=softmax_axis
    )
