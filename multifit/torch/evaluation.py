"""Evaluates and predicts, batch by batch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from ..engines.batch import as_numpy
from ..engines.prediction import Piece
from ..errors import raise_problems
from ..stages import EVALUATE
from .check import check_first_batch

if TYPE_CHECKING:
    from .session import Session
    from .step import StepResult

SOFTMAX = (nn.CrossEntropyLoss, nn.NLLLoss)  # losses whose classes are along axis 1
FUNCTIONS = (F.cross_entropy, F.nll_loss)


def softmax_axis(fn: Any) -> int | None:
    """Return the class axis of a loss that takes a softmax; None for other losses."""
    return 1 if isinstance(fn, SOFTMAX) or fn in FUNCTIONS else None


def evaluate_batch(session: Session, raw: Any) -> StepResult:
    """Measure losses and metrics on a batch; the first batch is checked.

    Raises SpecError or DataError if the batch or the net does not fit the spec.
    """
    stage = session.stages[EVALUATE]
    batch = session.splitter(EVALUATE).split(raw)
    is_first, outputs = not stage.checked, None
    if is_first:
        session.shared.begin_stage(batch, run=partial(_materialise, session, stage))
        _materialise(session, stage, batch)
        outputs, problems = check_first_batch(stage, batch, ())
        raise_problems(problems)
    result = stage.run(batch, session.state, outputs=outputs)
    stage.measure(result)
    result.detach()  # an output may be a parameter
    raise_problems(stage.figures.name_problems() if is_first else [])
    return result


def predict_batch(session: Session, raw: Any) -> list[Piece]:
    """Return a list of the outputs as NumPy arrays and the number of samples, empty if there are none.

    Labels may be missing. Raises SpecError or DataError if the batch or the net does not fit the spec.
    """
    stage = session.stages[EVALUATE]
    batch = session.splitter(EVALUATE, labels=False).split(raw)
    if not session.shared.are_shared:
        session.shared.begin_stage(batch, run=partial(_materialise, session, stage))
    if not batch.samples:
        return []
    with torch.no_grad():
        _materialise(session, stage, batch)
        outputs = stage.forward(batch.slots)
        if stage.carried is not None:
            stage.carried.keep(batch, [outputs])
        return [({name: as_numpy(outputs[name]) for name in stage.spec.output_names}, batch.samples)]


def _materialise(session: Session, stage: Any, batch: Any) -> None:
    """Give lazy parameters the shapes that fit a batch."""
    session.model.materialise(lambda: stage.call(batch.slots))
