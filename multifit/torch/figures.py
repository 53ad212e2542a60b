"""All figures of one stage, measured batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..distributed import ALONE, World
from ..engines import stage_figures
from ..engines.sums import NORM, WEIGHTED
from ..sampling.loaders import LoaderCounts as LoaderCounts
from ..spec import TaskSpec
from ..utils.stages import TRAIN
from .labels import LabelRule, label_rules
from .stage_metric import StageMetric as StageMetric
from .stage_metric import declared_metrics as declared_metrics
from .sums import PassSums
from .user_code import user_code

MOST_FORMS = 64  # of batches, whose rules are remembered


class StageFigures(stage_figures.StageFigures):
    """The figures of a stage, on a `device`; `options` are those of :class:`engines.StageFigures`."""

    user_code = staticmethod(user_code)
    sums: PassSums

    def __init__(
        self, spec: TaskSpec, metrics: Sequence[StageMetric], device: Any = "cpu", **options: Any
    ) -> None:
        self._device = torch.device(device)
        super().__init__(spec, metrics, PassSums(self._device), **options)
        self._weighted = {term.key: term.minimized for term in spec.terms if callable(term.spec.weight)}
        self._layouts = {term.key: [(term.where, len(term.parts))] for term in spec.terms}
        for key in self._weighted:
            self._layouts[key].append((WEIGHTED + key, 1))
        self._forms: dict[Any, list[LabelRule]] = {}

    def add(self, result: Any, world: World = ALONE) -> None:
        """Add a batch, without waiting for the device, unless an object that measures it does.

        In evaluation, objects that are updated batch by batch get the tensors of all ranks of `world`.
        """
        batch, sums = result.batch, self.sums
        sums.batches += 1
        joins = not world.alone and self.stage != TRAIN  # objects measure the tensors of all ranks
        for metric in self.metrics if joins else ():
            if not metric.merges:
                metric.add_of_all(result, sums.batches, world, self._device)
        if not batch.samples:
            return
        sums.samples += batch.samples
        layout: list[tuple[str, int]] = []
        tensors: list[Tensor] = []
        if result.sums:
            layout += [part for key in result.sums for part in self._layouts[key]]
            losses = [each for key in result.sums for each in self._loss_sums(key, result)]
            tensors.append(torch.stack(losses))
        for key, norm in result.scale.shares.items():
            if isinstance(norm, Tensor):
                layout.append((NORM + key, 1))
                tensors.append(norm.to(self._device, non_blocking=True))
            else:
                sums.add_number(NORM + key, norm)
        for metric in self.metrics:
            if joins and not metric.merges:
                continue
            for name, values in self.metric_sums(metric, result, sums.batches):
                tensors += values
                layout += [(name, each.numel()) for each in values]
        if rules := self._rules_for(result):
            layout += [(rule.key, 1) for rule in rules]
            tensors += [rule.count(batch.slots[rule.label.name]) for rule in rules]
        if tensors:
            sums.add(tuple(layout), tensors)

    def metric_sums(
        self, metric: StageMetric, result: Any, number: int
    ) -> Iterator[tuple[str, list[Tensor]]]:
        """Measure batch `number` by a metric; yield the name and the tensors of each of its sums.

        Counts that are known without a device are added up here.
        """
        for name, (values, count) in zip(metric.sum_names, metric.add(result, number)):
            if isinstance(count, Tensor):
                values = [*values, count]
            else:
                self.sums.add_number(name, count)
            yield name, values

    def _loss_sums(self, key: str, result: Any) -> list[Tensor]:
        """Return the sums of a loss's parts, and its weighted sum if the weight may change."""
        sums, norm = result.sums[key], result.scale.norms[key]
        if isinstance(norm, Tensor):
            sums = [torch.where(norm.to(each.device, non_blocking=True) > 0, each, 0) for each in sums]
        elif not norm:
            sums = [torch.zeros_like(each) for each in sums]
        if key in self._weighted:
            sums = [*sums, sums[self._weighted[key]] * result.scale.weights[key]]
        return sums

    def _rules_for(self, result: Any) -> list[LabelRule]:
        """Return the rules for a batch, made once for batches of these shapes."""
        slots, outputs = result.batch.slots, result.outputs
        tensors = [*slots.values(), *outputs.values()]
        key = tuple([None if each is None else (each.shape, each.dtype) for each in tensors])
        if key not in self._forms:
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = self.label_rules(outputs, slots, result.parts)
        return self._forms[key]

    def label_rules(
        self, outputs: Mapping[str, Tensor], slots: Mapping[str, Any], parts: Mapping[str, Sequence[Tensor]]
    ) -> list[LabelRule]:
        """Return the rules for inputs and labels of a batch; `parts` are what the losses returned."""
        return self.checked(label_rules(self._spec, outputs, slots, parts))

    def unnamed(self) -> bool:
        """Whether metrics must be read before it is known how many figures they have."""
        return not all(metric.is_summed for metric in self.metrics)
