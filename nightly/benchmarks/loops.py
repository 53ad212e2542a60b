"""The contenders: a loop as people write it, Gluon's Estimator, and multifit."""

from __future__ import annotations

import logging
import warnings
from typing import Any, Callable, Iterator

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import Estimator
from mxnet.gluon.contrib.estimator.event_handler import LoggingHandler

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec

from .models import Case

__all__ = ["Prepared", "gluon_epoch", "hand_written_epoch", "multifit_fit"]

OPTIONS = ("sgd", {"learning_rate": 0.01, "momentum": 0.9})


class Prepared(gluon.data.DataLoader):
    """A DataLoader (Gluon's Estimator takes nothing else) that yields batches made beforehand."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __del__(self) -> None:
        """Do nothing: there are no workers to end."""


def hand_written_epoch(case: Case) -> Callable[[Any], None]:
    """Return the forty-line loop's epoch: forward, backward, step, and both figures updated each batch."""
    net, loss_fn = case.built(), case.loss()
    trainer = gluon.Trainer(net.collect_params(), *OPTIONS)
    metric, mean_loss = case.metric(), mx.metric.Loss()

    def epoch(batches: Any) -> None:
        metric.reset()
        mean_loss.reset()
        for data, label in batches:
            images = gluon.utils.split_and_load(data, case.contexts)
            labels = gluon.utils.split_and_load(label, case.contexts)
            with autograd.record():
                outputs = [net(image) for image in images]
                losses = [loss_fn(output, own) for output, own in zip(outputs, labels)]
            autograd.backward(losses)
            trainer.step(data.shape[0])
            metric.update(labels, outputs)
            mean_loss.update(0, losses)
        metric.get(), mean_loss.get()

    return epoch


def gluon_epoch(case: Case) -> Callable[[Any], None]:
    """Return an epoch of Gluon's own Estimator, silent, with the same figures."""
    net = case.built()
    trainer = gluon.Trainer(net.collect_params(), *OPTIONS)
    metrics = {
        "train_metrics": case.metric(),
        "val_metrics": case.metric(),
    }  # it cannot copy every metric itself
    estimator = Estimator(net, case.loss(), trainer=trainer, context=case.contexts, **metrics)
    estimator.logger.setLevel(logging.ERROR)
    quiet = LoggingHandler(metrics=estimator.train_metrics)

    def epoch(batches: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(batches, epochs=1, event_handlers=[quiet])

    return epoch


def multifit_fit(case: Case, batches: Any, epochs: int, handler: Any) -> None:
    """Run a fit whose epochs `handler` times."""
    net = case.built()
    spec = TaskSpec(
        outputs=["output"],
        labels=["label"],
        losses={"cross_entropy": LossSpec(case.loss(), "output", "label")},
        metrics={"metric": MetricSpec(case.metric(), "output", "label")},
    )
    trainer = gluon.Trainer(net.collect_params(), *OPTIONS)
    logging.getLogger("multifit").setLevel(logging.ERROR)
    MultiEstimator(net, spec, trainers=trainer, context=case.contexts).fit(
        batches, epochs=epochs, event_handlers=handler
    )
