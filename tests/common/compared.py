"""Fits in which some tasks are not compared, for either engine."""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from multifit import LabelSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import Sum
from multifit.distributed import ALONE, World
from multifit.gluon.compat import mx
from tests.common.data import digit_batches
from tests.common.hand_loop import SILENT
from tests.common.nets import hybridized
from tests.common.shared_nets import Chain, Nested, three_tasks, two_heads
from tests.common.specs import digit_spec

SIZE = 8  # samples of a batch
WHOLE, EVEN, HALF = slice(None), slice(None, None, 2), slice(SIZE // 2)


def lacking(*missing: tuple[Any, Any]) -> list[Any]:
    """Return a batch for each pair: the samples that lack the digit, and those that lack the parity."""
    batches = digit_batches([SIZE] * len(missing))
    for (_, *labels), places in zip(batches, missing):
        for label, place in zip(labels, places):
            if place is not None:
                label[place] = np.nan
    return batches


def other(place: slice) -> np.ndarray:
    """Return the samples that are not at a place."""
    return np.delete(np.arange(SIZE), place)


def missable() -> TaskSpec:
    return digit_spec(labels=[LabelSpec(name, missing="nan") for name in ("digit", "parity")])


FULL, APART = (None, None), (EVEN, other(EVEN))
PARTS = np.r_[4, 6], np.r_[5, 7]  # a half of the batch has both labels, in the other half they never meet
ONE, THREE = {"digit_parity"}, {"digit_parity", "digit_size", "parity_size"}
NOTHING: set[str] = set()

# Net, spec, batches; and the pairs that are compared on features, and on parameters.
CASES: dict[str, tuple[Callable[[], Any], Callable[[], TaskSpec], Any, set[str], set[str]]] = {
    "branches at two places": (Nested, three_tasks, lacking(FULL, FULL), ONE, THREE),
    "a pair that shares nothing": (
        Chain, three_tasks, lacking(FULL, FULL), THREE - {"digit_size"}, THREE - {"digit_size"}
    ),
    "labels that never meet in a sample": (two_heads, missable, lacking(APART, APART), NOTHING, ONE),
    "each half with labels of its own": (
        two_heads, missable, lacking((HALF, other(HALF)), APART), NOTHING, ONE
    ),
    "labels that meet in one half": (two_heads, missable, lacking(PARTS, APART), ONE, ONE),
    "labels that meet in one batch": (two_heads, missable, lacking(APART, FULL), ONE, ONE),
    "labels that are in different batches": (
        two_heads, missable, lacking((None, WHOLE), (WHOLE, None)), NOTHING, NOTHING
    ),
}  # fmt: skip


def fitted(
    case: str, on: str, engine: str = "mxnet", devices: Any = None, world: World = ALONE, **fit: int
) -> MultiEstimator:
    """Fit for two epochs, or as the options of the fit say."""
    make, spec, batches, *_ = CASES[case]
    mx.random.seed(1)
    net = hybridized(make())
    net.initialize(mx.init.Xavier(), ctx=devices)
    net(mx.nd.array(batches[0][0], ctx=devices[0] if devices else None))
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
    estimator = MultiEstimator(net, spec(), trainer, devices, balance=Sum(on=on), engine=engine, world=world)
    estimator.fit(batches, event_handlers=SILENT, **(fit or {"epochs": 2}))
    return estimator


def figures(history: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of gradients in a history."""
    kinds = ("train_cosine_", "train_gradnorm_", "train_conflict")
    return {name: history[name] for name in history if name.startswith(kinds)}


def assert_compared(history: Mapping[str, Any], pairs: set[str]) -> None:
    """Check that in each epoch the cosines of these pairs were measured, and of no others."""
    tasks = [name.removeprefix("train_gradnorm_") for name in history if "gradnorm" in name]
    for pair in map("_".join, combinations(tasks, 2)):
        assert np.isfinite(history[f"train_cosine_{pair}"]).tolist() == [pair in pairs] * 2, pair
    assert np.isfinite(history["train_conflict"]).tolist() == [bool(pairs)] * 2
