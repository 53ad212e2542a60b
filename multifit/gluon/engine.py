"""What runs an estimator's batches: a model, its trainers, and the stages of training and evaluating."""

from __future__ import annotations

from typing import Any, Callable

from ..events import TrainingHooks
from ..spec import TaskSpec
from ..spec.names import listed
from ..stages import STAGES
from ..state import RunState
from .compat import mx
from .data.batch_splitter import BatchSplitter, SlotSignature
from .execution.network import Network
from .execution.stage import Stage
from .metrics import copy_metric
from .metrics.stage_metric import StageMetric, as_metric
from .model import Model
from .model_trainers import ModelTrainers

__all__ = ["Engine"]


class Engine:
    """A model and its trainers, with what is made new for every fit: stages, graphs and batch splitters.

    Parameters
    ----------
    model : Model
        The net on its devices.
    trainers : ModelTrainers
        Who moves its parameters.
    spec : TaskSpec
        What is routed where.
    state : RunState
        Where the run stands, for weights that are functions of it.
    log_once : callable
        Logs what is done to the data.
    metrics : dict of str to list of StageMetric, optional
        Of each stage; default: those that the spec declares.

    Attributes
    ----------
    stages : dict of str to Stage
        "train" and "evaluate".
    hooks : TrainingHooks or None
        What handlers change while training.
    signatures : dict of str to list
        Shapes and dtypes of each stage's batches, for exporting.
    """

    def __init__(
        self,
        model: Model,
        trainers: ModelTrainers,
        spec: TaskSpec,
        state: RunState,
        log_once: Callable[[str], None],
        metrics: dict[str, list[StageMetric]] | None = None,
    ) -> None:
        self.model, self.trainers, self.spec, self.state, self._log_once = (
            model,
            trainers,
            spec,
            state,
            log_once,
        )
        self._metrics = _stage_metrics(spec) if metrics is None else metrics
        self.signatures: dict[str, list[SlotSignature]] = {name: [] for name in STAGES}
        self.restart()

    def restart(self, hooks: TrainingHooks | None = None) -> None:
        """Discard all graphs and figures, as at the beginning of a fit: the net may have changed.

        Parameters
        ----------
        hooks : TrainingHooks, optional
            What handlers change while training.
        """
        self.hooks = hooks
        for metric in (metric for metrics in self._metrics.values() for metric in metrics):
            metric.restart()
        self._splitters: dict[Any, BatchSplitter] = {}
        self.stages = {
            "train": self.new_stage("train", self._metrics["train"]),
            "evaluate": self.new_stage("evaluate", self._metrics["evaluate"]),
        }

    def new_stage(self, name: str, metrics: list[StageMetric]) -> Stage:
        """Return a new stage with these metrics."""
        training = name == "train"
        spec, hooks = (self.spec, self.hooks) if training else (self.spec.evaluation, None)
        # MXNet would lose the way to a planned graph's gradients if somebody else computes some first
        repeats = hooks is None or not hooks.active("change_objective")
        network = Network(self.model.net, spec, name, repeats, self.model.precision)
        return Stage(network, metrics, self.model.contexts, training, hooks)

    def splitter(self, name: str, labels: bool = True, batch_axis: int = 0) -> BatchSplitter:
        """Return the batch splitter of a stage.

        Parameters
        ----------
        name : {"train", "evaluate"}
            The stage.
        labels : bool
            Whether batches must have labels.
        batch_axis : int
            The axis of the samples.
        """
        key = (name, labels, batch_axis)
        if key not in self._splitters:
            changes = name == "train" and self.hooks is not None and self.hooks.active("change_batch")
            self._splitters[key] = BatchSplitter(
                self.stages[name].spec,
                self.model.contexts,
                self._log_once,
                labels,
                batch_axis,
                self.hooks.change_batch if changes and self.hooks is not None else None,
                self.signatures[name] if batch_axis == 0 else None,
            )
        return self._splitters[key]

    def wait(self) -> None:
        """Wait until the devices have done all their work."""
        mx.nd.waitall()

    def fork(self, state: RunState) -> Engine:
        """Return an engine for the same model and trainers with metrics, figures and graphs of its own."""
        metrics = {
            name: [StageMetric(metric.term, copy_metric(metric.metric)) for metric in stage_metrics]
            for name, stage_metrics in self._metrics.items()
        }
        return Engine(self.model, self.trainers, self.spec, state, self._log_once, metrics)


def _stage_metrics(spec: TaskSpec) -> dict[str, list[StageMetric]]:
    """Return each stage's metrics; an EvalMetric that serves twice is copied, so that its sums do not mix."""
    used: set[int] = set()
    metrics: dict[str, list[StageMetric]] = {}
    for name, declared in zip(STAGES, (spec, spec.evaluation)):
        metrics[name] = []
        for term in declared.metric_terms:
            if name in listed(term.spec.stage) or (name == "evaluate" and spec.evaluate is not None):
                metric = as_metric(term)
                metric = copy_metric(metric) if id(metric) in used else metric
                used.add(id(metric))
                metrics[name].append(StageMetric(term, metric))
    return metrics
