"""The log of a program that does not configure logging."""

import logging

from multifit import MultiEstimator

# isort: split
from mxnet import gluon


def test_a_handler_that_comes_later_repeats_nothing(capsys, monkeypatch):
    """MXNet's schedulers log at the root, where Python then makes a handler by itself."""
    logger = logging.getLogger("multifit")
    for where in (logger, logging.root):
        monkeypatch.setattr(where, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    estimator = MultiEstimator(gluon.nn.Dense(2), gluon.loss.L2Loss())
    logging.info("this makes a handler at the root")
    estimator.logger.info("logged once")
    shown = capsys.readouterr()
    assert shown.out.count("logged once") == 1
    assert "logged once" not in shown.err
