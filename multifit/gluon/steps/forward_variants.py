"""A forward pass with and without its losses and figures, for the profiler."""

from __future__ import annotations

from typing import Any, Callable

from ...errors import raise_problems
from ...stages import TRAIN
from ..data.batch import Batch
from ..engine import Engine
from ..execution.stage import Stage
from ..validation.first_batch import check_first_batch

Variant = Callable[[Batch], object]


def forward_variants(engine: Engine, batch: Batch) -> dict[str, Variant]:
    """Return functions that run a batch: "net" alone, net and "losses", and "all", which adds the figures.

    There is no "losses" if no figure is computed on the device: it would be the same as "all". The training
    stage must have run already; `batch` is checked like a first batch. Returns an empty dict if handlers
    change the outputs: they would be called more often than there are batches.
    """
    stage = engine.stages[TRAIN]
    if engine.hooks.active("change_outputs"):
        return {}
    variants: dict[str, Variant] = {
        "net": lambda batch: _run_net(stage, batch),
        "all": lambda batch: stage.run(batch, engine.state),
    }
    if stage.figures.on_device:
        without_figures = engine.new_stage(TRAIN, [])
        raise_problems(check_first_batch(without_figures, batch)[1])
        variants["losses"] = lambda batch: without_figures.run(batch, engine.state)
    return variants


def _run_net(stage: Stage, batch: Batch) -> list[Any]:
    outputs = []
    with stage.recording():
        for context, slots in zip(batch.contexts, batch.slots):
            with context:
                outputs.append(stage.network(slots))
    return outputs
