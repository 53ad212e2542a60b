"""BinaryAccuracy: the accuracy that mxnet 1.9.1 lacks, for one logit per answer."""

from __future__ import annotations

from typing import Any

from ..compat import mx

__all__ = ["BinaryAccuracy"]


class BinaryAccuracy(mx.metric.EvalMetric):
    """Share of answers where ``output > threshold`` agrees with a label of 0 or 1.

    ``mx.metric.Accuracy`` takes the argmax over axis 1: for one logit of shape (N, 1) always class 0.

    Parameters
    ----------
    threshold : float, default 0.0
        Outputs above it say 1. The default is for logits; give 0.5 for probabilities.
    name : str, default "binary_accuracy"
        Name of the figure.
    output_names, label_names : list of str, optional
        As in ``mx.metric.EvalMetric``.
    """

    def __init__(
        self,
        threshold: float = 0.0,
        name: str = "binary_accuracy",
        output_names: list[str] | None = None,
        label_names: list[str] | None = None,
    ) -> None:
        super().__init__(
            name,
            threshold=threshold,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.threshold = threshold

    def update(self, labels: Any | list[Any], preds: Any | list[Any]) -> None:
        """Count one batch.

        Parameters
        ----------
        labels : NDArray or list of NDArray, shape (N,) or (N, ...)
            0 or 1; what is above one half counts as 1.
        preds : NDArray or list of NDArray, shape (N,), (N, 1) or (N, ...)
            As many elements as `labels`.

        Raises
        ------
        ValueError
            As many lists or elements as that are not given.
        """
        labels, preds = mx.metric.check_label_shapes(labels, preds, wrap=True)
        for label, pred in zip(labels, preds):
            truth = label.asnumpy().ravel() > 0.5
            said = pred.asnumpy().ravel() > self.threshold
            mx.metric.check_label_shapes(truth, said, shape=True)
            right, size = int((truth == said).sum()), truth.size
            self.sum_metric += right
            self.global_sum_metric += right
            self.num_inst += size
            self.global_num_inst += size
