"""Batches that accumulate to one update: on either engine, the update is that of one batch of all samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from multifit import LabelSpec, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.compat import mx
from multifit.utils.seeding import seed_everything
from tests.common.nets import Heads, hybridized
from tests.common.specs import CE, L2

SAMPLES = 14
SGD = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
# name: the batches' sizes, whether labels are missing, whether a loss is divided by its tokens
CASES: dict[str, tuple[Sequence[int], bool, bool]] = {
    "6 and 2 samples": ((6, 2), False, False),
    "1 and 4 labels": ((4, 4), True, False),
    "36 and 4 tokens": ((4, 4), False, True),
    "all of it": ((3, 1, 4), True, True),
    "a batch without a label": ((1, 3, 4), True, True),  # the first sample's digit is missing here
}


def net_of(contexts: Any = None) -> Any:
    """Return two heads in float64, equal each time."""
    seed_everything(3)
    net = Heads(body=mx.gluon.nn.Dense(6, activation="tanh"), digit=3, size=2)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    net.cast("float64")
    return hybridized(net)


def spec_of(missing: bool = False, tokens: bool = False, **changes: Any) -> TaskSpec:
    """Return the spec of `batches_of`."""
    losses = {"digit": CE, "size": LossSpec(L2, weight=0.5, normalize_by="tokens" if tokens else None)}
    labels = [LabelSpec("digit", missing=-1 if missing else None), "size", "tokens"]
    unused = () if tokens else ("tokens",)
    declared = {"inputs": ["x"], "outputs": ["digit", "size"], "unused": unused, "losses": losses}
    return TaskSpec(**{**declared, "labels": labels, **changes})


def batches_of(sizes: Sequence[int], missing: bool = False) -> list[tuple[np.ndarray, ...]]:
    """Cut the same samples into batches; of the first four, each has 9 tokens, and one may have a label."""
    random = np.random.RandomState(0)
    digit = random.randint(0, 3, SAMPLES).astype("float64")
    if missing:
        digit[[0, 2, 3, 9]] = -1
    tokens = np.where(np.arange(SAMPLES) < 4, 9.0, 1.0)
    arrays = random.randn(SAMPLES, 5), digit, random.randn(SAMPLES, 2), tokens
    ends = np.cumsum([0, *sizes])
    return [tuple(array[i:j] for array in arrays) for i, j in zip(ends, ends[1:])]


def values_of(estimator: MultiEstimator) -> dict[str, np.ndarray]:
    """Return the parameters, on the first device."""
    return estimator.values()


def trained(
    sizes: Sequence[int],
    missing: bool = False,
    tokens: bool = False,
    epochs: int = 2,
    context: Any = None,
    trainers: Any = None,
    **options: Any,
) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
    """Return the parameters and the history of a fit."""
    net = net_of(None if isinstance(context, str) else context)
    trainers = TrainerSpec(".*", "sgd", SGD) if trainers is None else trainers
    estimator = MultiEstimator(net, spec_of(missing, tokens), trainers, context, **options)
    history = estimator.fit(batches_of(sizes, missing), epochs=epochs, event_handlers=[])
    return values_of(estimator), dict(history)


def assert_is_one_batch(case: str, window: int, tolerance: float = 1e-12, **options: Any) -> None:
    """Check that batches accumulate to the update of one batch of all samples, for two epochs."""
    sizes, *kinds = CASES[case]
    values, history = trained([sum(sizes)], *kinds, **{**options, "accumulate": 1})
    apart, _ = trained(sizes, *kinds, **{**options, "accumulate": 1})
    accumulated, figures = trained(sizes, *kinds, **{**options, "accumulate": window})
    for name, value in values.items():
        np.testing.assert_allclose(accumulated[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
    assert any(abs(apart[name] - value).max() > 1e-3 for name, value in values.items())
    for figure, numbers in history.items():
        np.testing.assert_allclose(figures[figure], numbers, rtol=tolerance, err_msg=figure)
