"""gluoncv's SSD on scenes of digits, as tasks/detection.py has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import mxnet as mx
import numpy as np
from gluoncv.loss import SSDMultiBoxLoss
from mxnet import autograd, gluon

from multifit import TaskSpec

from .subject import STATIC, Epoch, Subject, task

__all__ = ["SSD", "Detector"]


@dataclass(frozen=True, eq=False)  # hashed by identity, for the cache of its batches
class Detector(Subject):
    """The detector with settings of the task."""

    name: str
    settings: tuple[str, ...]
    predicts: str = "boxes"
    optimizer: tuple[str, Mapping[str, float]] = ("adam", {"learning_rate": 1e-3})

    @property
    def _task(self) -> Any:
        return task("detection", "val_count=2", *self.settings)

    def net(self) -> Any:
        """Return the net of the task; computing its anchors has determined its shapes."""
        mx.random.seed(0)
        net = self._task.net([mx.cpu()])
        net.hybridize(**STATIC)
        return net

    @cache  # noqa: B019 - there are few of its kind
    def batches(self) -> list[tuple[Any, ...]]:
        """Return batches of images (N, 3, size, size) with their targets."""
        np.random.seed(0)  # all processes that are compared train on the same batches
        train, _ = self._task.data(self._task.net([mx.cpu()]))
        return [tuple(batch) for batch in train]

    def spec(self, net: Any) -> TaskSpec:
        """Return the task's spec."""
        return self._task.spec(net)

    def hand_written(self) -> Epoch:
        """Return an epoch as in gluoncv's ``train_ssd.py``."""
        net, mbox_loss = self.net(), SSDMultiBoxLoss()
        trainer = gluon.Trainer(net.collect_params(), *self.optimizer)
        ce_metric, smooth_l1_metric = mx.metric.Loss("CrossEntropy"), mx.metric.Loss("SmoothL1")

        def epoch(batches: Any) -> list[float]:
            ce_metric.reset()
            smooth_l1_metric.reset()
            for image, cls_targets, box_targets in batches:
                with autograd.record():
                    cls_preds, box_preds, _ = net(image)
                    sums, cls_losses, box_losses = mbox_loss(cls_preds, box_preds, cls_targets, box_targets)
                autograd.backward(sums)
                trainer.step(1)  # the loss is normalised already
                ce_metric.update(0, [loss * len(image) for loss in cls_losses])
                smooth_l1_metric.update(0, [loss * len(image) for loss in box_losses])
            return [ce_metric.get()[1], smooth_l1_metric.get()[1]]

        return epoch


SSD = Detector("SSD", ("train_count=80",))  # five batches of 16 images, (3, 128, 128)
