"""A spec with metrics of all kinds, which is used by ranks and resumed runs."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, classification, regression

from multifit import LossSpec, MetricSpec, TaskSpec


class Count:
    """Counts labels, batch by batch."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count = 0

    def update(self, labels: Tensor, outputs: Tensor) -> None:
        self.count += len(labels)

    def compute(self) -> float:
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state["count"]


class Largest(Metric):
    """States that torchmetrics reduces in other ways: a largest value, and a mean over the updates."""

    higher_is_better, full_state_update = True, False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("largest", torch.tensor(-math.inf).double(), "max")
        self.add_state("mean", torch.tensor(0.0).double(), "mean")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.largest = torch.maximum(self.largest, preds.max())
        self.mean = (self.mean * (self.update_count - 1) + len(preds)) / self.update_count

    def compute(self) -> Tensor:
        return torch.stack([self.largest, self.mean])


def first_column(output: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    return label[:, 0], output[:, 0]


def measuring() -> TaskSpec:
    """Return a spec with metrics of all kinds, of which two cannot be divided among ranks."""
    kinds, sizes = {"outputs": "kind", "labels": "kind"}, {"outputs": "size", "labels": "size"}
    return TaskSpec(
        inputs=["x"], outputs=["kind", "size"], labels=["kind", "size"],
        losses={"kind": nn.CrossEntropyLoss(), "size": LossSpec(nn.MSELoss(), weight=0.5)},
        metrics={
            "iou": MetricSpec("mean_iou", **kinds), "r2": MetricSpec("sklearn.r2_score", **sizes),
            "auroc": MetricSpec(classification.MulticlassAUROC(3), **kinds),
            "pearson": MetricSpec(regression.PearsonCorrCoef(), **sizes, transform=first_column),
            "largest": MetricSpec(Largest(), **kinds, names=["value", "mean"]),
            "mean": MetricSpec(MeanMetric(), "kind", [], transform=lambda o: ([], [o.sum(1)])),
            "count": MetricSpec(Count(), **kinds),
        },
    )  # fmt: skip
