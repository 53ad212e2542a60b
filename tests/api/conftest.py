"""A small net with two heads, its data and its spec, in the forms that the tests need."""

from __future__ import annotations

import logging
from typing import Any, Callable, Iterator

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from multifit import MetricSpec, TaskSpec


class Hybrid(gluon.HybridBlock):
    """Two heads on one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Dense(8, activation="relu")
        self.digit = nn.Dense(3)
        self.size = nn.Dense(1)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.body(image)
        return self.digit(features), self.size(features)


class Plain(gluon.Block):
    """The same as a Block; it keeps the shape of everything that it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Dense(8, activation="relu")
        self.digit = nn.Dense(3)
        self.size = nn.Dense(1)
        self.calls: list[tuple[int, ...]] = []

    def forward(self, image: Any) -> Any:
        self.calls.append(image.shape)
        features = self.body(image)
        return self.digit(features), self.size(features)


def _hybridized() -> Hybrid:
    net = Hybrid()
    net.hybridize()
    return net


@pytest.fixture
def make_net() -> Callable[..., Any]:
    """Return ``make_net(kind)``; kinds are plain, hybrid and hybridized."""
    kinds: dict[str, Callable[[], Any]] = {"plain": Plain, "hybrid": Hybrid, "hybridized": _hybridized}
    return lambda kind="plain": kinds[kind]()


@pytest.fixture
def make_spec() -> Callable[..., TaskSpec]:
    """Return ``make_spec(**changes)``."""

    def make(**changes: Any) -> TaskSpec:
        declared: dict[str, Any] = {
            "inputs": ["image"],
            "outputs": ["digit", "size"],
            "labels": ["digit", "size"],
            "losses": {"digit": gluon.loss.SoftmaxCrossEntropyLoss(), "size": gluon.loss.L2Loss()},
            "metrics": {"accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit")},
        }
        return TaskSpec(**{**declared, **changes})

    return make


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """Return 20 samples; class and size can be learned from the image."""
    image = np.random.randn(20, 6).astype("float32")
    digit = image[:, :3].argmax(axis=1).astype("float32")
    return {"image": image, "digit": digit, "size": image[:, 3:4] * 2}


@pytest.fixture
def batches(arrays: dict[str, np.ndarray]) -> list[tuple[np.ndarray, ...]]:
    """Return them in batches of 8, 8 and 4."""
    return [tuple(array[i : i + 8] for array in arrays.values()) for i in (0, 8, 16)]


@pytest.fixture
def snapshot() -> Callable[[Any], dict[str, np.ndarray]]:
    """Return ``snapshot(net)``: a copy of all parameters, on all their devices."""

    def copy(net: Any) -> dict[str, np.ndarray]:
        found = net._collect_params_with_prefix()
        return {
            f"{name}@{data.context}": data.asnumpy() for name, p in found.items() for data in p.list_data()
        }

    return copy


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return ``log()``: the lines that multifit has logged so far."""
    with caplog.at_level(logging.INFO, logger="multifit"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "multifit"]
