"""BinaryAccuracy: the accuracy for one logit per answer, which mxnet 1.9.1 lacks."""

from __future__ import annotations

from typing import Optional, Sequence

from ...arguments import checked
from ...protocols import Array
from ..compat import mx


class BinaryAccuracy(mx.metric.EvalMetric):
    """The share of elements in which ``output > threshold`` agrees with a label of 0 or 1.

    ``mx.metric.Accuracy`` takes the argmax over axis 1, which is always 0 for one logit of shape (N, 1).

    Parameters
    ----------
    threshold : float, default 0.0
        Outputs above it predict 1. The default is for logits; use 0.5 for probabilities.
    name : str, default "binary_accuracy"
        Name of the figure.
    output_names, label_names : list of str, optional
        As in ``mx.metric.EvalMetric``.
    """

    @checked
    def __init__(
        self,
        threshold: float = 0.0,
        name: str = "binary_accuracy",
        output_names: Optional[Sequence[str]] = None,
        label_names: Optional[Sequence[str]] = None,
    ) -> None:
        super().__init__(
            name,
            threshold=threshold,
            output_names=output_names,
            label_names=label_names,
            has_global_stats=True,
        )
        self.threshold = threshold

    def update(self, labels: Array | list[Array], preds: Array | list[Array]) -> None:
        """Add one batch: labels of 0 and 1 (above 0.5 counts as 1), and as many outputs.

        Arrays may have shape (N,), (N, 1) or (N, ...); lists of arrays are compared pair by pair. Raises
        ValueError if the numbers of arrays or of elements differ.
        """
        for label, pred in zip(*mx.metric.check_label_shapes(labels, preds, wrap=True)):
            positive = label.asnumpy().ravel() > 0.5
            predicted = pred.asnumpy().ravel() > self.threshold
            mx.metric.check_label_shapes(positive, predicted, shape=True)
            right, size = int((positive == predicted).sum()), positive.size
            self.sum_metric += right
            self.global_sum_metric += right
            self.num_inst += size
            self.global_num_inst += size
