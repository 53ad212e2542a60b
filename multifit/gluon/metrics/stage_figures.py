"""All figures of one stage: its losses and metrics, their names, directions and state."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...balance.means import Means
from ...checks import counted_labels_problem, partly_missing_problem
from ...engines import stage_figures
from ...engines.kept_arrays import KeptArrays
from ...errors import Problem, raise_problems
from ...sampling import LoaderCounts
from ...spec import TaskSpec
from ...spec.names import Ref
from ...spec.parsing import label_of
from ...spec.terms import MetricTerm, Term
from ...stages import TRAIN
from ..user_code import user_code
from .base import DeviceMetric
from .labels import LabelRule, label_rules
from .stage_metric import Place, StageMetric
from .sums import MetricSums, Totals


class StageFigures(stage_figures.StageFigures):
    """The figures of a stage: `sums` of its losses and wrong labels, and its `metrics`.

    `finite_only` says whether inputs and labels that are not finite are an error. `means` are further
    figures, to which other objects add. `stage` is the name of the stage. `rules` are those by which slots
    were counted, by key. `complete` says whether all batches of the pass were measured, and `ended` whether
    it will not go on after a resume either.
    """

    def __init__(
        self,
        spec: TaskSpec,
        metrics: Sequence[StageMetric],
        finite_only: bool = True,
        means: Sequence[Means | LoaderCounts] = (),
        stage: str = TRAIN,
    ) -> None:
        super().__init__(spec, metrics, means, stage)
        self.sums = MetricSums(spec.terms)
        self._finite_only = finite_only
        self.rules: dict[str, LabelRule] = {}

    def read(self, quick: bool = False) -> dict[str, float]:
        """Return all figures by name, without prefix; empty before the first batch. Waits for the engine.

        They are those of this process alone, unless :meth:`replace` was called since the last reset. If
        `quick`, those are left out that are computed from all arrays of the pass so far, until it has ended.
        Raises DataError if slots broke a rule, such as that a number is finite, or an index one of a class.
        """
        if self._replaced is not None:
            return dict(self._replaced)
        if not self.sums.samples:
            return {}
        figures = self.figures_of(self.totals(), quick=quick and not self.complete)
        self.release()
        return figures

    def totals(self) -> Totals:
        """Return everything that was added up on the devices; this waits for them."""
        with user_code(lambda: "an operator in one of the batches so far"):
            return self.sums.totals()  # errors of the devices are raised by reading

    def figures_of(
        self,
        totals: Totals,
        kept: Mapping[str, KeptArrays] | None = None,
        quick: bool = False,
    ) -> dict[str, float]:
        """Return all figures by name; raises as :meth:`read` does.

        `kept` are the arrays of all ranks, by metric; by default, those of this process.
        """
        figures = self.sums.loss_figures(totals)
        raise_problems(self._label_problems(totals))
        for metric in self.metrics:
            arrays = metric.kept if kept is None else kept.get(metric.term.key, metric.kept)
            if not (quick and len(arrays)):
                metric.compute(totals.sums, arrays, self.complete)
                figures.update(metric.figures())
        for means in self.means:
            figures.update(means.read())
        return figures

    def reset_own(self) -> None:
        """Discard what this process alone has measured, but not `means`, which are equal on all ranks."""
        self.sums.clear()
        super().reset_own()

    def _sums_state(self) -> dict[str, Any]:
        return self.sums.state()

    def _load_sums(self, state: Mapping[str, Any]) -> None:
        self.sums.load(state)

    def _merge_sums(self, state: Mapping[str, Any]) -> None:
        self.sums.merge(state)

    def unnamed(self) -> bool:
        """Whether some metrics are computed outside of the graphs."""
        return bool(self.on_host)

    @property
    def batches(self) -> int:
        """The number of batches measured since the last reset."""
        return self.sums.batches

    @property
    def on_host(self) -> list[StageMetric]:
        """The metrics that are computed outside of the graphs."""
        return [metric for metric in self.metrics if metric.place is Place.HOST]

    @property
    def on_device(self) -> list[StageMetric]:
        """The metrics that are summed in the graphs."""
        return [metric for metric in self.metrics if metric.place is Place.DEVICE]

    def place(
        self, groups: Sequence[Sequence[Term]], arrays: Mapping[Ref, Any], size: int
    ) -> list[list[tuple[MetricTerm, DeviceMetric]]]:
        """Decide where each metric is computed; `arrays` are one device's outputs and slots.

        `groups` are the losses that are computed together; a metric of losses must be computed in the same
        group. Returns, for each group, the metrics to compute in it. A metric that cannot be computed on such
        arrays is outside of all later graphs.
        """
        placed: list[list[tuple[MetricTerm, DeviceMetric]]] = [[] for _ in groups]
        for metric in self.metrics:
            if not metric.term.has_slots(arrays):
                continue
            group = None if metric.place is Place.HOST else _group(metric, groups)
            device = None if group is None else metric.bind(arrays, size)
            metric.place = Place.HOST if device is None else Place.DEVICE
            if group is not None and device is not None:
                placed[group].append((metric.term, device))
        return placed

    def label_rules(self, arrays: Mapping[Ref, Any], more: Sequence[LabelRule] = ()) -> list[LabelRule]:
        """Return the rules for inputs and labels, from one device's outputs and slots; `more` are further."""
        rules = label_rules(self._spec, arrays)
        rules = [*(rule for rule in rules if self._finite_only or rule.classes is not None), *more]
        self.rules.update({rule.key: rule for rule in rules})
        return rules

    def _label_problems(self, totals: Totals) -> list[Problem]:
        kind = "training" if self.stage == TRAIN else "evaluation"
        counts = {key: int(np.sum(totals.sums.get(key, 0))) for key in self.rules}
        return [
            partly_missing_problem(rule.where, label_of(rule.label).name, kind, counts[key])
            if rule.in_part
            else counted_labels_problem(rule.where, rule.label.name, rule.classes, kind, counts[key])
            for key, rule in self.rules.items()
            if counts[key]
        ]


def _group(metric: StageMetric, groups: Sequence[Sequence[Term]]) -> int | None:
    """Return the index of the losses with which a metric can be computed; None if there are none."""
    if metric.term.spec.transform is not None or not metric.takes_preds:
        return None
    needed = set(metric.term.losses)
    for index, terms in enumerate(groups):
        if needed <= {figure for term in terms for figure in term.figures}:
            return index
    return None
