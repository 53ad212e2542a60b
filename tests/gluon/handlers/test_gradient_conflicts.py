"""How tasks' gradients compare, measured in a training that stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    GradientConflicts,
    LossSpec,
    MultiEstimator,
    SpecError,
    TrainerSpec,
)
from multifit.balance import IMTLL, Sum, UPGrad
from tests.common.compare import assert_same_parameters, assert_unchanged, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import TWO
from tests.common.hand_loop import SGD, SILENT
from tests.common.language import BATCHES as TEXTS
from tests.common.language import make_net, make_spec
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import Alone
from tests.common.specs import digit_spec

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip
from mxnet.gluon.loss import L2Loss, SoftmaxCrossEntropyLoss  # isort: skip

BATCHES = digit_batches([8] * 5)
FIGURES = ["gradnorm_digit", "gradnorm_parity", "cosine_digit_parity", "conflict"]


def random_heads() -> Heads:
    """Return a net that draws random numbers and has statistics."""
    body = sequential(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dropout(0.5))
    return hybridized(Heads(body=body, digit=5, parity=1))


def plain_heads() -> Heads:
    return hybridized(Heads(body=sequential(nn.Dense(8, activation="tanh")), digit=5, parity=1))


def pooled_heads() -> Heads:
    """Return a net with max pooling, which MXNet differentiates wrongly in evaluation mode."""
    image = nn.HybridLambda(lambda F, x: F.reshape(x, (0, 1, 2, 5)))
    body = sequential(image, nn.Conv2D(4, 1), nn.MaxPool2D((2, 2), (1, 1)), nn.Dense(8, activation="tanh"))
    return hybridized(Heads(body=body, digit=5, parity=1))


def fitted(
    net: Any, *handlers: Any, rate: float = 0.1, devices: Any = None, epochs: int = 2, **options: Any
) -> Any:
    trainers = TrainerSpec(".*", "sgd", {**SGD, "learning_rate": rate})
    resume = options.pop("resume", None)
    estimator = MultiEstimator(net, digit_spec(), trainers, devices, **options)
    mx.random.seed(3)
    estimator.fit(BATCHES, epochs=epochs, event_handlers=[*SILENT, *handlers], resume=resume)
    return estimator


CASES: dict[str, dict] = {
    "one device": {"make": random_heads},
    "two": {"devices": TWO},  # which draw in any order
    "balanced by losses": {"make": random_heads, "balance": IMTLL()},
    "accumulated": {"make": random_heads, "accumulate": 3},
    "of parameters": {"on": "parameters"},
}


@pytest.mark.parametrize("name", CASES)
def test_training_is_bit_for_bit_what_it_is_without_it(name: str) -> None:
    options = {"make": plain_heads, "on": "features", "handlers": [], **CASES[name]}
    make, on, handlers = (options.pop(key) for key in ("make", "on", "handlers"))
    net, other = twins(make, BATCHES[0][0])
    without = fitted(net, *handlers, **options).history
    history = fitted(other, *handlers, GradientConflicts(every=2, on=on), **options).history
    assert_same_parameters(other, net, rtol=0, atol=0)
    assert {name: history[name] for name in without} == dict(without)
    assert [name for name in history if name not in without] == [f"train_{name}" for name in FIGURES]


@pytest.mark.parametrize("tasks", [None, {"all": ["digit"], "other": ["parity"]}])
@pytest.mark.parametrize(("make", "on"), [(plain_heads, "features"), (pooled_heads, "parameters")])
def test_figures_are_those_of_the_sum(make: Any, on: str, tasks: Any) -> None:
    """Of a net that does not move, as the sum measures before an update."""
    net, other = twins(make, BATCHES[0][0])
    expected = fitted(net, rate=0.0, balance=Sum(every=2, tasks=tasks, on=on)).history
    history = fitted(other, GradientConflicts(every=2, tasks=tasks, on=on), rate=0.0).history
    for name in history:
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-5)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_batch_is_measured_as_it_began(every: int) -> None:
    """With the state that the batch before left, and with its own weights."""
    small = LossSpec(L2Loss(batch_axis=1), "hidden", "hidden", weight=lambda state: 1 + state.step)
    losses = {"next": LossSpec(SoftmaxCrossEntropyLoss(batch_axis=1), "logits", "next"), "small": small}
    still = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})
    measured = []
    for balance, handlers in ((Sum(every=every), []), (None, [GradientConflicts(every=every)])):
        estimator = MultiEstimator(make_net(), make_spec(losses=losses), still, balance=balance)
        handlers = [*SILENT, *handlers]
        measured.append(estimator.fit(TEXTS, epochs=2, batch_axis=1, event_handlers=handlers).last)
    for name, value in measured[1].items():
        np.testing.assert_allclose(value, measured[0][name], rtol=1e-5, err_msg=name)


def test_epochs_without_a_measurement_have_none() -> None:
    history = fitted(plain_heads(), GradientConflicts(every=6), epochs=3).history
    assert np.isfinite(history["train_conflict"]).tolist() == [True, True, True]
    history = fitted(plain_heads(), GradientConflicts(every=50), epochs=2).history
    assert np.isfinite(history["train_gradnorm_digit"]).tolist() == [True, False]


def test_a_run_resumes_with_the_same_figures(tmp_path: Path) -> None:
    net, other = twins(plain_heads, BATCHES[0][0])
    expected = fitted(net, GradientConflicts(every=2), epochs=1).history

    class Stop:
        def batch_end(self, estimator: Any) -> None:
            if estimator.state.step == 3:
                estimator.state.stop("enough")
                estimator.state.interrupted = True

    checkpoints = [CheckpointHandler(tmp_path, every=Every(1, "batch"))]
    fitted(other, GradientConflicts(every=2), *checkpoints, Stop(), epochs=1)
    resumed = fitted(plain_heads(), GradientConflicts(every=2), *checkpoints, epochs=1, resume=tmp_path)
    assert dict(resumed.history) == dict(expected)


def test_a_method_that_measures_them_anyway_is_refused() -> None:
    with pytest.raises(SpecError, match=r"GradientConflicts: balance=UPGrad\(\) records the same figures"):
        fitted(plain_heads(), GradientConflicts(), balance=UPGrad())


NOT_APART = {
    "not hybridized": (lambda: Heads(digit=5, parity=1), "the net is not in it: call net.hybridize()"),
    "nothing shared": (lambda: hybridized(Alone()), "the tasks share no parameter that is trained"),
}


@pytest.mark.parametrize("on", ["features", "parameters"])
@pytest.mark.parametrize("case", NOT_APART)
def test_what_cannot_be_compared_is_refused_before_the_first_update(case: str, on: str) -> None:
    make, message = NOT_APART[case]
    net = make()
    net.initialize()
    net(mx.nd.array(BATCHES[0][0]))
    before = snapshot(net)
    with pytest.raises(SpecError, match=f"(?s)GradientConflicts, which .*{message}"):
        fitted(net, GradientConflicts(every=4, on=on))
    assert_unchanged(net, before)


def test_before_a_fit_there_is_nothing_to_save() -> None:
    assert GradientConflicts().state_dict() == {}
