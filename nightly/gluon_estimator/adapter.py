"""Gluon's Estimator as a MultiEstimator: the constructor's arguments become a TaskSpec."""

from __future__ import annotations

from typing import Any

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec

import mxnet as mx  # isort: skip


class Estimator(MultiEstimator):
    """Takes the arguments of ``mxnet.gluon.contrib.estimator.Estimator``, and data as Gluon's does."""

    def __init__(
        self, net: Any, loss: Any, train_metrics: Any = None, val_metrics: Any = None,
        initializer: Any = None, trainer: Any = None, context: Any = None, val_net: Any = None,
        val_loss: Any = None, batch_processor: Any = None,
    ) -> None:  # fmt: skip
        def spec(loss: Any, metrics: Any, **more: Any) -> TaskSpec:
            listed = metrics if isinstance(metrics, list) else [metrics]
            specs = {f"metric{i}": MetricSpec(metric, "output", "label") for i, metric in enumerate(listed)}
            return TaskSpec(
                outputs="output",
                labels="label",
                losses={"output": LossSpec(loss, "output", "label")},
                metrics=specs,
                **more,
            )

        if val_net is not None or val_loss is not None:
            forward = None if val_net is None else lambda net, slots: val_net(slots["data"])
            evaluate = spec(val_loss or loss, val_metrics or train_metrics, forward=forward)
            declared: Any = spec(loss, train_metrics, evaluate=evaluate)
        else:
            declared = loss if train_metrics is None else spec(loss, train_metrics)
        super().__init__(net, declared, trainer, context, initializer)
        self.learning_rates(), self.trainers  # Gluon builds the trainer at once

    def fit(self, train_data: Any, val_data: Any = None, *args: Any, **options: Any) -> Any:
        """Train on a DataLoader; Gluon's Estimator takes nothing else."""
        for data in (train_data, *([] if val_data is None else [val_data])):
            if not isinstance(data, mx.gluon.data.DataLoader):
                raise ValueError(f"the data is a {type(data).__name__}, not a DataLoader")
        return super().fit(train_data, val_data, *args, **options)
