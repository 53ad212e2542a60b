"""Results of batches, as a stage makes them, from given outputs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from multifit import TaskSpec
from multifit.engines.scale import Scale
from multifit.spec.parsing import presence
from multifit.spec.terms import by_reference
from multifit.torch.figures import StageFigures, declared_metrics
from multifit.torch.loss_calls import call_loss, present_share


@dataclass
class Batch:
    samples: int
    slots: dict[str, Tensor | None]
    total: int | None = None
    axis: int = 0


@dataclass
class Result:
    spec: TaskSpec
    batch: Batch
    outputs: dict[str, Tensor]
    parts: dict[str, list[Tensor]] = field(default_factory=dict)
    sums: dict[str, list[Tensor]] = field(default_factory=dict)
    scale: Any = None


def result(
    spec: TaskSpec,
    slots: Mapping[str, Any],
    outputs: Mapping[str, Any],
    total: int | None = None,
    epoch: int = 0,
) -> Result:
    """Compute the losses of a batch; `total` is the number of samples of all ranks."""
    slots = dict(slots)
    for name, label in spec.label_specs.items():
        if label.missing == "nan" and slots.get(name) is not None:
            value = slots[name]
            slots[name], slots[presence(name)] = value.nan_to_num(), (~value.isnan()).float()
    samples = len(next(iter(outputs.values())))
    made = Result(spec, Batch(samples, slots, total or samples), dict(outputs))
    made.scale, arrays = Scale({}, {}, {}), by_reference(outputs, slots)
    for term in spec.terms:
        weight: Any = term.spec.weight
        if term.weights is not None:
            slots.setdefault(term.weights.name, torch.ones(samples))
            arrays = by_reference(outputs, slots)
        made.scale.weights[term.key] = weight(epoch) if callable(weight) else weight
        if not term.has_slots(arrays):
            made.scale.norms[term.key] = 0.0
            continue
        made.scale.norms[term.key] = (
            present_share(term, slots).sum(dtype=torch.float64) if term.present else float(total or samples)
        )
        parts = made.parts[term.key] = call_loss(term, arrays, samples=samples)
        made.sums[term.key] = [part * samples if part.dim() == 0 else part.sum() for part in parts]
    share(made, made.scale.norms)
    return made


def share(made: Result, norms: dict[str, Any]) -> None:
    """Give a result the normalizers of all ranks, and its share of them."""
    part = made.batch.samples / (made.batch.total or 1)
    made.scale.norms, made.scale.shares = norms, {key: norm * part for key, norm in norms.items()}


def cut(arrays: Mapping[str, Any], sizes: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the samples of arrays in pieces."""
    start = 0
    for size in sizes:
        yield {name: each[start : start + size] for name, each in arrays.items()}
        start += size


def new_figures(spec: TaskSpec, stage: str = "train", **options: Any) -> StageFigures:
    return StageFigures(spec, declared_metrics(spec)[stage], stage=stage, **options)


def measured(
    spec: TaskSpec, slots: Mapping[str, Any], outputs: Mapping[str, Any], sizes: list[int], **options: Any
) -> StageFigures:
    """Return the figures of a pass that is cut into batches of these sizes."""
    figures = new_figures(spec, **options)
    for some, predicted in zip(cut(slots, sizes), cut(outputs, sizes)):
        figures.add(result(spec, some, predicted))
    figures.complete = True
    return figures
