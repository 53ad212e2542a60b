"""All figures of one stage, and which of its metrics are summed in graphs."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...engines import stage_figures
from ...spec import TaskSpec
from ...spec.terms import MetricTerm, Ref, Term
from ..user_code import user_code
from .base import DeviceMetric
from .labels import LabelRule, label_rules
from .stage_metric import StageMetric
from .sums import PassSums


class StageFigures(stage_figures.StageFigures):
    """The figures of a stage of a Gluon net."""

    user_code = staticmethod(user_code)
    sums: PassSums

    def __init__(self, spec: TaskSpec, metrics: Sequence[StageMetric], **options: Any) -> None:
        super().__init__(spec, metrics, PassSums(spec.terms), **options)

    def unnamed(self) -> bool:
        """Whether some metrics are computed outside of the graphs."""
        return bool(self.on_host)

    @property
    def on_host(self) -> list[StageMetric]:
        """The metrics that are computed outside of the graphs."""
        return [metric for metric in self.metrics if metric.on_device is False]

    def in_graph(
        self, terms: Sequence[Term], arrays: Mapping[Ref, Any]
    ) -> list[tuple[MetricTerm, DeviceMetric]]:
        """Return the metrics that the graph of some losses computes; the first such batch decides.

        `arrays` are one device's outputs and slots.
        """
        losses = {figure for term in terms for figure in term.figures}
        metrics = []
        for metric in self.metrics:
            if metric.term.has_slots(arrays) and (device := metric.bind(arrays, losses)) is not None:
                metrics.append((metric.term, device))
        return metrics

    def label_rules(self, arrays: Mapping[Ref, Any], more: Sequence[LabelRule] = ()) -> list[LabelRule]:
        """Return the rules for inputs and labels, from one device's outputs and slots; `more` are further."""
        return self.checked([*label_rules(self._spec, arrays), *more])
