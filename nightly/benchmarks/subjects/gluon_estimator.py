"""Gluon's own Estimator, for nets with one output and one loss."""

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import mxnet as mx
from mxnet import gluon
from mxnet.gluon.contrib.estimator import Estimator
from mxnet.gluon.contrib.estimator.event_handler import LoggingHandler

from .subject import Epoch

__all__ = ["gluon_epoch"]


class Prepared(gluon.data.DataLoader):
    """A DataLoader of batches made beforehand; Gluon's Estimator takes nothing but a DataLoader."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __del__(self) -> None:
        """Do nothing: there are no workers to stop."""


def gluon_epoch(subject: Any) -> Epoch:
    """Return an epoch of Gluon's Estimator, silent, with the same figures."""
    net = subject.net()
    estimator = Estimator(
        net,
        subject.loss(),
        train_metrics=[mx.metric.Loss(), subject.metric()],  # given a metric, it adds no loss of its own
        val_metrics=subject.metric(),  # it cannot copy every metric itself
        trainer=gluon.Trainer(net.collect_params(), *subject.optimizer),
        context=subject.contexts,
    )
    estimator.logger.setLevel(logging.ERROR)
    quiet = LoggingHandler(metrics=estimator.train_metrics)

    def epoch(batches: Any) -> list[float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(Prepared(batches), epochs=1, event_handlers=[quiet])
        return [metric.get()[1] for metric in estimator.train_metrics]

    return epoch
