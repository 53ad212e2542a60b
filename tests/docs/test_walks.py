"""The walks in CONTRIBUTING are true: a real training calls these functions, in this order."""

import re
import sys
from pathlib import Path
from typing import Any

import multifit
from multifit import MetricSpec, MultiEstimator, TaskSpec

import mxnet as mx  # isort: skip

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| \d \| `([\w/]+\.py)` \| `(?:\w+\.)?(\w+)` \|", re.MULTILINE)


def walks() -> list[list[tuple[str, str]]]:
    """Return the (file, function) pairs of each walk."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text[text.index("## Two walks") : text.index("## Style")]
    batch, _, figure = section.partition("**A figure**")
    return [ROW.findall(batch), ROW.findall(figure)]


def calls_of_a_fit() -> list[tuple[str, str]]:
    """Return every call of multifit's functions in a fit of three batches, in order."""
    calls: list[tuple[str, str]] = []
    package = Path(multifit.__file__).parent

    def record(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(package)):
            calls.append(
                (Path(frame.f_code.co_filename).relative_to(package).as_posix(), frame.f_code.co_name)
            )

    net = mx.gluon.nn.Dense(2)
    net.hybridize()
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    spec = TaskSpec(
        outputs=["y"],
        labels=["y"],
        losses={"y": loss},
        metrics={"accuracy": MetricSpec(mx.metric.Accuracy(), "y", "y")},
    )
    batch = [mx.nd.ones((4, 3)), mx.nd.zeros((4,))]
    estimator = MultiEstimator(net, spec)
    sys.setprofile(record)
    try:
        estimator.fit([batch] * 3, epochs=1)
    finally:
        sys.setprofile(None)
    return calls


def test_the_walks_are_true():
    calls = calls_of_a_fit()
    batch, figure = walks()
    assert (len(batch), len(figure)) == (7, 5)
    assert set(batch + figure) <= set(calls)
    last = [len(calls) - calls[::-1].index(place) for place in batch]
    assert last == sorted(last), "the last batch calls them in this order"
