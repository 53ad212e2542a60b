"""All figures of one stage: its losses and metrics, their names, directions and state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..distributed import ALONE, World
from ..engines import stage_figures
from ..engines.metric_figures import weighted_means
from ..errors import raise_problems
from ..sampling.counts import LoaderCounts as LoaderCounts
from ..spec import TaskSpec
from ..stages import TRAIN
from .labels import LabelRule, label_rules
from .stage_metric import StageMetric as StageMetric
from .stage_metric import declared_metrics as declared_metrics
from .sums import Means as Means
from .sums import PassSums
from .user_code import user_code

MOST_FORMS = 64  # of batches, whose rules are remembered


class StageFigures(stage_figures.StageFigures):
    """The figures of a stage: its losses and `metrics`, and counts of its wrong labels.

    A loss's figure is the sum of its values over that of its normalizers; the objective is the weighted sum
    of these. `finite_only` says whether inputs and labels that are not finite are an error. `means` are
    further figures, to which other objects add. `stage` is the name of the stage, on a `device`.
    """

    def __init__(
        self,
        spec: TaskSpec,
        metrics: Sequence[StageMetric],
        finite_only: bool = True,
        means: Sequence[Any] = (),
        stage: str = TRAIN,
        device: Any = "cpu",
    ) -> None:
        super().__init__(spec, metrics, means, stage)
        self._finite_only = finite_only
        self._device = torch.device(device)
        self._weighted = {term.key: term.minimized for term in spec.terms if callable(term.spec.weight)}
        self._norms = {term.key: f"norm {term.key}" for term in spec.terms}
        # the parts of each loss and, if its weight may change, the weighted one
        counts = {term.key: len(term.parts) + callable(term.spec.weight) for term in spec.terms}
        self._names = {key: [f"loss {key} {part}" for part in range(n)] for key, n in counts.items()}
        self._rules: dict[str, LabelRule] = {}
        self._forms: dict[Any, list[LabelRule]] = {}
        self._joins = False  # whether objects were updated with the tensors of all ranks
        self._clear()

    def _clear(self) -> None:
        self.batches = self.samples = 0
        self._sums = PassSums()
        self._numbers: dict[str, float] = {}  # sums that are known without the device

    # ---- measuring

    def add(self, result: Any, world: World = ALONE) -> None:
        """Add a batch, without waiting for the device, unless an object that measures it does.

        In evaluation, objects that are updated batch by batch get the tensors of all ranks of `world`.
        """
        batch, scale, numbers = result.batch, result.scale, self._numbers
        self.batches += 1
        self._joins = not world.alone and self.stage != TRAIN
        for metric in self.metrics if self._joins else ():
            if not metric.merges:
                metric.add_of_all(result, self.batches, world, self._device)
        if not batch.samples:
            return
        self.samples += batch.samples
        layout: list[tuple[str, ...]] = []
        tensors: list[Tensor] = []
        if result.sums:
            layout.append(tuple([name for key in result.sums for name in self._names[key]]))
            losses = [each for key in result.sums for each in self._loss_sums(key, result)]
            tensors.append(torch.stack(losses))
        for key, norm in scale.norms.items():
            # the normalizers of all ranks, of which this rank takes its share; the shares add up to them
            name = self._norms[key]
            if isinstance(norm, Tensor):
                layout.append((name,))
                norm = norm.to(self._device, non_blocking=True)
                tensors.append(norm if batch.samples == batch.total else norm * (batch.samples / batch.total))
            else:
                numbers[name] = numbers.get(name, 0.0) + norm * batch.samples / batch.total
        for metric in self.metrics:
            if self._joins and not metric.merges:
                continue
            for name, (sums, count) in zip(metric.sum_names, metric.add(result, self.batches)):
                if isinstance(count, Tensor):
                    sums = [*sums, count]
                else:
                    numbers[name[0]] = numbers.get(name[0], 0.0) + count
                tensors += sums
                layout += [name] * len(sums)
        if rules := self._rules_for(result):
            layout += [(rule.key,) for rule in rules]
            tensors += [rule.count(batch.slots[rule.slot]) for rule in rules]
        if tensors:
            self._sums.add(tuple(layout), tensors)

    def _loss_sums(self, key: str, result: Any) -> list[Tensor]:
        """Return the sums of a loss's parts, and its weighted sum if the weight may change."""
        sums, norm = result.sums[key], result.scale.norms[key]
        if isinstance(norm, Tensor):
            sums = [torch.where(norm.to(each.device, non_blocking=True) > 0, each, 0) for each in sums]
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
        rules = label_rules(self._spec, outputs, slots, parts)
        rules = [rule for rule in rules if self._finite_only or rule.classes is not None or rule.in_part]
        self._rules.update({rule.key: rule for rule in rules})
        return rules

    # ---- reading

    def read(self, quick: bool = False) -> dict[str, float]:
        """Return all figures by name, without prefix; empty before the first batch. Waits for the device.

        They are those of this process alone, unless :meth:`join` was called since the last reset. If `quick`,
        those are left out that are computed from all arrays of the pass so far, until it has ended. Raises
        DataError if slots broke a rule, such as that a number is finite, or an index one of a class.
        """
        if self._replaced is not None:
            return dict(self._replaced)
        if not self.samples:
            return {}
        with user_code(lambda: "an operation in one of the batches so far"):
            totals = self._totals()  # errors of a GPU are raised by reading
        figures = self._loss_figures(totals)
        kind = "training" if self.stage == TRAIN else "evaluation"
        wrong = [(rule, int(totals[key][0])) for key, rule in self._rules.items() if key in totals]
        raise_problems([rule.problem(kind, count) for rule, count in wrong if count])
        for metric in self.metrics:
            if not (quick and len(metric.kept) and not self.complete):
                metric.compute(totals, self.complete)
                figures.update(metric.figures())
        for means in self.means:
            figures.update(means.read())
        self.release()
        return figures

    def _totals(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return all sums by name; metrics whose number of labels is known without the device get it last."""
        totals = self._sums.read()
        for name, number in self._numbers.items():
            if name in self._norms.values():
                totals[name] = totals.get(name, 0.0) + np.array([number])
            else:
                totals[name] = np.append(totals[name], number)
        return totals

    def _loss_figures(self, totals: Mapping[str, Any]) -> dict[str, float]:
        none = [0.0]  # if no batch had a term's slots
        sums = {key: [float(totals.get(n, none)[0]) for n in names] for key, names in self._names.items()}
        norms = {key: float(totals.get(name, none)[0]) for key, name in self._norms.items()}
        weighted = {key: sums[key].pop() for key in self._weighted}
        return stage_figures.loss_figures(self._spec.terms, sums, norms, weighted)

    def unnamed(self) -> bool:
        """Whether metrics must be read before it is known how many figures they have."""
        return not all(metric.is_summed for metric in self.metrics)

    def reset_own(self) -> None:
        """Discard what this process alone has measured, but not `means`, which are equal on all ranks."""
        super().reset_own()
        self._clear()

    # ---- checkpoints and ranks

    def _sums_state(self) -> dict[str, Any]:
        sums = self._sums.state()  # on the host; this waits
        return {
            "batches": self.batches, "samples": self.samples, "sums": sums, "numbers": dict(self._numbers),
        }  # fmt: skip

    def _load_sums(self, state: Mapping[str, Any]) -> None:
        self.batches = state["batches"]
        self._merge_sums(state)

    def _merge_sums(self, state: Mapping[str, Any]) -> None:
        self.samples += state["samples"]
        self._sums.merge(state["sums"], self._device)
        for name, number in state["numbers"].items():
            self._numbers[name] = self._numbers.get(name, 0.0) + number

    def join(self, world: World, ended: bool = True) -> None:
        """Replace the figures by those of all ranks together, equal on all ranks; waits for the device.

        Sums are added up in the order of the ranks, and kept arrays are joined batch by batch. In training,
        the figures of objects that are updated batch by batch are means over the ranks, weighted by their
        samples, because each was updated with the samples of its rank only. A pass that has not `ended`, but
        was stopped, may go on after a resume.
        """
        self.complete, self.ended = True, ended
        if world.alone:
            return
        own = [each for each in self.metrics if not each.merges]
        samples = 1 if self._joins else self.samples  # objects that saw all ranks' samples agree
        alone = {
            each.term.key: {name: (value, samples) for name, value in each.figures().items()}
            for each in own
            if each.measured
        }
        ranks = world.gather((self.state(), alone, self._rules))
        if any(state["sums"]["samples"] for state, *_ in ranks):
            forks, device = [metric.fork() for metric in self.metrics], self._device
            joined = StageFigures(self._spec, forks, means=self.means, stage=self.stage, device=device)
            joined.complete = True
            for *_, rules in ranks:
                joined._rules.update(rules)
            first, *others = [state for state, *_ in ranks]
            joined.load({**first, "means": []})
            for state in others:
                joined.merge(state)
            figures = joined.read()
            for metric in own:
                key = metric.term.key
                figures = {n: each for n, each in figures.items() if not f"{n}.".startswith(f"{key}.")}
                figures.update(weighted_means([each[key] for _, each, _ in ranks if key in each]))
            self.replace(figures)
        self.release()
