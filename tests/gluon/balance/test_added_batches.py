"""Methods that compare the gradients of parameters, where several batches make an update."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, Every, GradientAccumulation, MultiEstimator, TrainerSpec
from multifit.balance import MGDA, FairGrad, GradNorm, PCGrad, UPGrad
from tests.common.balance_methods import methods
from tests.common.compare import assert_same_parameters, twins
from tests.common.grids import TWO
from tests.common.hand_loop import SGD, SILENT
from tests.common.nets import hybridized
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.shared_nets import Nested, three_tasks

import mxnet as mx  # isort: skip

METHODS_ADDED = [
    UPGrad(on="parameters"),
    PCGrad(on="parameters"),
    GradNorm(on="body.*"),
    MGDA(on="parameters", every=2),
]


# fmt: off
ADDED: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "by a handler": ({}, [GradientAccumulation(2)]),
    "by the trainer": ({"every": 2, "accumulate": True}, []),
}
# fmt: on


def random_batches(size: int, count: int) -> list[Any]:
    random = np.random.RandomState(0)
    x, labels = random.randn(48, 6).astype("float32"), random.randint(0, 5, 48).astype("float32")
    columns = (x, labels, (labels % 2).reshape(-1, 1))
    return [tuple(c[i * size : (i + 1) * size] for c in columns) for i in range(count)]


# each method by both, once on one device and once on two; odd methods the other way round
PAIRS = [
    pytest.param(how, method, (None, TWO)[(i + j) % 2], id=f"{how}-{type(method).__name__}")
    for i, method in enumerate(METHODS_ADDED)
    for j, how in enumerate(ADDED)
]


@pytest.mark.parametrize(("how", "method", "devices"), PAIRS)
def test_batches_that_are_added_up_are_one_large_batch(how: str, method: Any, devices: Any) -> None:
    options, handlers = ADDED[how]
    whole, parts = twins(Nested, random_batches(4, 1)[0][0])
    histories = []
    for net, size, declared, added in ((whole, 8, {}, []), (parts, 4, options, handlers)):
        trainers = TrainerSpec(".*", "sgd", SGD, **declared)
        estimator = MultiEstimator(hybridized(net), three_tasks(), trainers, devices, balance=method)
        for _ in range(2):
            estimator.fit(random_batches(size, 24 // size), epochs=1, event_handlers=[*SILENT, *added])
        histories.append(estimator.history)
    assert_same_parameters(parts, whole, rtol=1e-4, atol=1e-5)
    for figure in ("weight_digit", "cosine_digit_size"):
        assert histories[1][f"train_{figure}"] == pytest.approx(histories[0][f"train_{figure}"], rel=1e-3)


SAME: dict[str, dict[str, Any]] = {
    "nothing": {},
    **{name: {"balance": method} for name, method in methods().items()},
    "equal lengths": {"balance": UPGrad(normalize=True)},
    "equal lengths, two devices": {"balance": UPGrad(normalize=True), "context": TWO},
    "equal lengths, parameters": {"balance": UPGrad(on="parameters", normalize=True)},
    "in units of lengths": {"balance": FairGrad(alpha=1, every=2)},
    "a pattern, two devices": {"balance": GradNorm(on="body.*"), "context": TWO},
    "groups": {"balance": GradNorm(tasks={"both": ["digit", "parity"]})},
}


@pytest.mark.parametrize("name", SAME)
def test_a_handler_adds_up_as_trainers_do(name: str) -> None:
    """Bit for bit, with the same weights and gradients, of an update that waits for three batches."""
    nets, histories = twins(Nested, random_batches(4, 1)[0][0]), []
    for net, rhythm, added in zip(
        nets, ({}, {"every": 3, "accumulate": True}), ([GradientAccumulation(3)], [])
    ):
        estimator = MultiEstimator(
            hybridized(net), three_tasks(), TrainerSpec(".*", "sgd", SGD, **rhythm), **SAME[name]
        )
        mx.random.seed(1)
        histories.append(estimator.fit(random_batches(4, 6), epochs=2, event_handlers=[*SILENT, *added]))
    assert_same_parameters(*nets, rtol=0, atol=0)
    np.testing.assert_equal(dict(histories[0]), dict(histories[1]))


def test_a_device_that_a_batch_leaves_without_a_sample_adds_what_it_has() -> None:
    one, two = twins(Nested, random_batches(4, 1)[0][0])
    columns = random_batches(10, 1)[0]
    data = [tuple(column[i:j] for column in columns) for i, j in ((0, 4), (4, 5), (5, 6), (6, 10))]
    for net, devices in ((one, None), (two, TWO)):
        trainers = TrainerSpec(".*", "sgd", SGD, every=2, accumulate=True)
        estimator = MultiEstimator(
            hybridized(net), three_tasks(), trainers, devices, balance=UPGrad(on="parameters")
        )
        estimator.fit(data, epochs=2, event_handlers=SILENT)
    assert_same_parameters(two, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "method", "devices"),
    [
        ("by a handler", PCGrad(on="parameters"), None),
        ("by a handler", UPGrad(on="parameters", every=2), TWO),
        ("by the trainer", UPGrad(on="parameters"), None),
    ],
    ids=["handler", "handler, two devices", "trainer"],
)
def test_a_fit_is_resumed_amid_the_batches_of_an_update(
    how: str, method: Any, devices: Any, tmp_path: Path
) -> None:
    options, handlers = ADDED[how]

    def run(folder: Path, *further: Any, **resume: Any) -> MultiEstimator:
        mx.random.seed(5)
        net = hybridized(Nested())
        net.initialize(mx.init.Xavier())
        trainers = TrainerSpec(".*", "sgd", SGD, **options)
        estimator = MultiEstimator(net, three_tasks(), trainers, devices, balance=method)
        used = [*map(copy.copy, handlers), CheckpointHandler(folder, Every(3, "batch"), seed=1), *further]
        estimator.fit(random_batches(4, 5), epochs=2, event_handlers=[*SILENT, *used], **resume)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 4)


def test_batches_left_over_by_a_handler_are_forgotten() -> None:
    once, again = twins(Nested, random_batches(4, 1)[0][0])
    estimators = []
    for net, counts in ((once, [4, 2]), (again, [5, 2])):
        trainers = TrainerSpec(".*", "sgd", SGD)
        estimators.append(
            MultiEstimator(hybridized(net), three_tasks(), trainers, balance=UPGrad(on="parameters"))
        )
        for count in counts:
            handlers = [*SILENT, GradientAccumulation(2)]
            estimators[-1].fit(random_batches(4, count), epochs=1, event_handlers=handlers)
    assert_same_parameters(again, once, rtol=0, atol=0)
