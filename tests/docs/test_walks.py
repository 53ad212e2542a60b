"""The walks in CONTRIBUTING are true: a real training calls these functions, and enters few files."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import multifit
from multifit import Handler, MetricSpec, MultiEstimator, TaskSpec

import mxnet as mx  # isort: skip

ROOT = Path(__file__).parents[2]
PACKAGE = Path(multifit.__file__).parent
ROW = re.compile(r"^\| \d \| `([\w/]+\.py)` \| `(?:\w+\.)?(\w+)` \|", re.MULTILINE)
MOST_FILES = 20


def walks() -> list[list[tuple[str, str]]]:
    """Return the (file, function) pairs of each walk."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text[text.index("## Two walks") : text.index("## Style")]
    batch, _, figure = section.partition("**A figure**")
    return [ROW.findall(batch), ROW.findall(figure)]


@contextmanager
def recorded(calls: list[tuple[str, str]]) -> Iterator[None]:
    """Add every call of multifit's functions, in order."""

    def record(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            file = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
            calls.append((file, frame.f_code.co_name))

    sys.setprofile(record)
    try:
        yield
    finally:
        sys.setprofile(None)


class OneBatch(Handler):
    """Records the calls from the end of one batch to the end of the next one, in the second epoch."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._recording: Any = None

    def batch_end(self, estimator: Any, **_: Any) -> None:
        if self._recording is not None:
            self._recording.__exit__(None, None, None)
            self._recording = None
        if (estimator.state.epoch, estimator.state.batch) == (1, 2):
            self._recording = recorded(self.calls)
            self._recording.__enter__()


def fit(*handlers: Any, epochs: int = 2) -> None:
    """Train a small net from a DataLoader over arrays."""
    net = mx.gluon.nn.Dense(2)
    net.hybridize()
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    metrics = {"accuracy": MetricSpec(mx.metric.Accuracy(), "y", "y")}
    spec = TaskSpec(outputs=["y"], labels=["y"], losses={"y": loss}, metrics=metrics)
    arrays = np.ones((24, 3), "float32"), np.zeros(24, "float32")
    data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(*arrays), batch_size=4)
    MultiEstimator(net, spec).fit(data, epochs=epochs, event_handlers=handlers)


def test_the_walks_are_true() -> None:
    calls: list[tuple[str, str]] = []
    with recorded(calls):
        fit(epochs=1)
    batch, figure = walks()
    assert (len(batch), len(figure)) == (5, 3)
    assert set(batch + figure) <= set(calls)
    last = [len(calls) - calls[::-1].index(place) for place in batch]
    assert last == sorted(last), "the last batch calls them in this order"


def test_a_steady_batch_enters_few_files() -> None:
    """From the loader to the handlers, the default ones included."""
    one = OneBatch()
    fit(one)
    batch, _ = walks()
    files = {file for file, _ in one.calls}
    assert {file for file, _ in batch} < files
    assert len(files) <= MOST_FILES, sorted(files)
