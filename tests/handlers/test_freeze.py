"""What `Freeze` and `estimator.freeze` freeze stays as it is, and learns afterwards as by hand."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, Every, Freeze, MultiEstimator, TrainerError, TrainerSpec
from tests.common.compare import assert_same_parameters, snapshot, twins
from tests.common.data import digit_batches
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SILENT
from tests.common.handlers import handler
from tests.common.nets import Heads, hybridized, sequential
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.shared_nets import two_heads
from tests.common.specs import digit_spec
from tests.numerics.test_frozen import by_hand, selected

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

SIZES = [12, 12, 7, 12]
BATCHES = digit_batches(SIZES)
EPOCHS = 3  # those of `by_hand`
ADAM = {"learning_rate": 5e-3, "wd": 0.01}
# Arguments of Freeze, and the step from which the body learns
WHEN: dict[str, tuple[dict[str, Any], int]] = {
    "an epoch": ({"until": 1}, 4),
    "two epochs": ({"until": 2, "unit": "epoch"}, 8),
    "five batches": ({"until": 5, "unit": "batch"}, 5),
}


def make(net: Any = None, trainers: Any = None, **options: Any) -> MultiEstimator:
    trainers = TrainerSpec(".*", "adam", ADAM) if trainers is None else trainers
    return MultiEstimator(two_heads() if net is None else net, digit_spec(), trainers, **options)


def fit(estimator: MultiEstimator, *handlers: Any, epochs: int = EPOCHS, **options: Any) -> MultiEstimator:
    estimator.fit(BATCHES, epochs=epochs, event_handlers=[*SILENT, *handlers], **options)
    return estimator


def changed(net: Any, before: dict[str, np.ndarray]) -> set[str]:
    return {name for name, value in snapshot(net).items() if (value != before[name]).any()}


@pytest.mark.parametrize("devices", [ONE, TWO], ids=["one device", "two devices"])
@pytest.mark.parametrize(("how", "step"), WHEN.values(), ids=WHEN)
def test_it_trains_as_by_hand(how: dict[str, Any], step: int, devices: Any) -> None:
    """Also with a trainer that holds nothing else; Adam counts the updates of the body from its first."""
    hand, net = twins(two_heads, BATCHES[0][0])
    net.collect_params().reset_ctx(devices)
    parts = {"heads": "(digit|parity).*", "body": "body.*"}
    trainers = [gluon.Trainer(selected(hand, each), "adam", ADAM) for each in parts.values()]
    by_hand(hand, trainers, {0: "body.*", step: ""}, every=1)
    declared = {n: TrainerSpec(p, "adam", ADAM, clip_norm=1e3) for n, p in parts.items()}
    fit(make(hybridized(net), declared, context=devices), Freeze("body.*", **how))
    assert_same_parameters(net, hand)


@pytest.mark.parametrize(
    "params", [lambda net: "body.*", lambda net: net.body, lambda net: ["body.*", "b.*"]]
)
def test_between_fits_it_trains_as_by_hand(params: Any) -> None:
    hand, net = twins(two_heads, BATCHES[0][0])
    by_hand(hand, [gluon.Trainer(hand.collect_params(), "adam", ADAM)], {0: "", 4: "body.*", 8: ""}, every=1)
    estimator = fit(make(net), epochs=1)
    assert estimator.freeze(params(net)) == ["body.bias", "body.weight"]
    assert estimator.freeze("body.*|digit.bias") == ["digit.bias"]
    assert estimator.unfreeze("digit.bias") == ["digit.bias"]
    before = snapshot(net)
    fit(estimator, epochs=1)
    assert changed(net, before) == {name for name in before if not name.startswith("body")}
    assert estimator.plan is not None and estimator.plan.frozen == ("body.weight", "body.bias")
    assert estimator.unfreeze(params(net)) == ["body.bias", "body.weight"]
    fit(estimator, epochs=1)
    assert_same_parameters(net, hand)


@pytest.mark.parametrize("affine", [True, False])
def test_running_statistics_stay_too(affine: bool) -> None:
    """Those of a BatchNorm that learns nothing as well, as with ``frozen=``."""
    body = partial(sequential, nn.Dense(8), nn.BatchNorm(scale=affine, center=affine))
    frozen, by_name = twins(lambda: Heads(body=body(), digit=5, parity=1), BATCHES[0][0])
    estimator = make(hybridized(frozen))
    start = snapshot(frozen)
    estimator.freeze("body.*")
    fit(estimator, epochs=1)
    assert changed(frozen, start) == {name for name in start if "body" not in name}
    fit(make(hybridized(by_name), frozen=["body.*"]), epochs=1)
    assert_same_parameters(frozen, by_name)
    assert estimator.unfreeze("body.*running.*") == ["body.1.running_mean", "body.1.running_var"]
    estimator.unfreeze(frozen.body)
    fit(estimator, epochs=1)
    moved = {name.partition("@")[0] for name in changed(frozen, start)}
    assert {"body.0.weight", "body.1.running_mean", "body.1.running_var"} <= moved


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("how", [{"until": 1}, {"until": 6, "unit": "batch"}], ids=str)
def test_it_resumes_bit_for_bit(tmp_path: Path, how: dict[str, Any], accumulate: int) -> None:
    """Cut off in an epoch and after one, before and after the body began to learn, and within a window."""

    def run(folder: Path, *handlers: Any, resume: Any = None) -> MultiEstimator:
        mx.random.seed(1)
        body = sequential(nn.Dense(8), nn.BatchNorm(scale=False, center=False))
        net = twins(lambda: Heads(body=body, digit=5, parity=1), BATCHES[0][0])[0]
        saving = CheckpointHandler(folder, every=Every(1, "batch"))
        frozen = Freeze("digit.*", until=2), Freeze("body.*", **how)
        estimator = make(hybridized(net), accumulate=accumulate)
        return fit(estimator, *frozen, saving, *handlers, resume=resume)

    assert_resumes_bit_for_bit(run, tmp_path, 2, 4, 5, 7, 10)


def test_the_log_says_when_they_learn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "multifit")
    fit(make(), Freeze("body.*", until=2), Freeze("digit.*", until=5, unit="batch"))
    lines = [line for line in caplog.messages if "Freeze" in line]
    assert lines == [
        "epoch 2, batch 2: Freeze('digit.*', until=5, unit='batch'): they learn from now on",
        "epoch 3, batch 1: Freeze('body.*', until=2, unit='epoch'): they learn from now on",
    ]


def test_a_fit_that_stops_early_says_so_and_leaves_nothing_frozen(caplog: pytest.LogCaptureFixture) -> None:
    net, stop = two_heads(), handler("Stop", batch_end=lambda estimator: estimator.state.step == 2)
    estimator = fit(make(net), stop, Freeze("body.*", until=2))
    assert "Freeze('body.*', until=2, unit='epoch'): the fit ended before they learnt" in caplog.text
    before = snapshot(net)
    fit(estimator, epochs=1)
    assert changed(net, before) == set(before)


@pytest.mark.parametrize("how", [{"until": 3}, {"until": 5, "unit": "batch"}], ids=str)
def test_a_fit_that_is_too_short_says_so_at_once(
    how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It may be resumed."""
    limits = {"epochs": 3} if "unit" not in how else {"epochs": None, "batches": 4}
    fit(make(), Freeze("body.*", **how), **limits)
    assert (
        f"{Freeze('body.*', **how)}: the fit ends after {3 + ('unit' in how)}, before they learn"
        in caplog.text
    )


def test_counts_begin_with_each_fit() -> None:
    net = two_heads()
    estimator, freeze = fit(make(net), epochs=2), Freeze("body.*", until=1)
    before = snapshot(net)
    fit(estimator, freeze, handler("Stop", epoch_end=lambda estimator: True), epochs=2)
    assert changed(net, before) == {name for name in before if not name.startswith("body")}


FAULTS: dict[str, tuple[Any, Any, Any, str]] = {
    "nothing": (Freeze("bodi.*", until=1), {}, TrainerError, "freeze: the pattern \"bodi.*\" selects none"),
    "no pattern": (Freeze(3, until=1), {}, TrainerError, "freeze: 3 selects no parameters"),
    "no patterns": (Freeze([], until=1), {}, TrainerError, "freeze: [] selects no parameters"),
    "everything": (
        Freeze(".*", until=1), {}, TrainerError, "the net has no parameters to train: unfreeze() some"),
    "what no trainer will update": (
        Freeze("body.*", until=1), {"trainers": {"heads": TrainerSpec("(digit|parity).*")}}, TrainerError,
        'no trainer updates "body.weight", "body.bias", so they would stay as they are'),
    "what two trainers will update": (
        Freeze("body.*", until=1), {"trainers": {"all": TrainerSpec(".*"), "body": TrainerSpec("body.*")}},
        TrainerError, 'the trainers all and body would update "body.weight", "body.bias"; each parameter'),
    "frozen by name": (
        Freeze("body.*", until=1), {"frozen": ["body.bias"]}, TrainerError,
        'freeze: frozen= has taken "body.bias" from the trainers; leave frozen= out'),
    "twice": (
        [Freeze("body.*", until=1), Freeze("body.bias", until=2)], {}, ValueError,
        "Freeze('body.bias', until=2, unit='epoch'): all of them are frozen already"),
}  # fmt: skip


@pytest.mark.parametrize(("handlers", "options", "error", "message"), FAULTS.values(), ids=FAULTS)
def test_mistakes_are_refused(handlers: Any, options: dict[str, Any], error: Any, message: str) -> None:
    handlers = handlers if isinstance(handlers, list) else [handlers]
    net = twins(two_heads, BATCHES[0][0])[0]
    before, estimator = snapshot(net), make(net, **options)
    with pytest.raises(error) as caught:
        fit(estimator, *handlers)
    assert message in str(caught.value)
    assert not changed(net, before)
    assert {parameter.grad_req for parameter in estimator.parameters.values()} == {"write"}


def test_what_frozen_names_cannot_be_unfrozen() -> None:
    estimator = make(frozen=["body.*"])
    with pytest.raises(TrainerError, match='unfreeze: frozen= has taken "body.bias", "body.weight"'):
        estimator.unfreeze(".*")


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="until is 0; valid is a whole number of at least 1"):
        Freeze("body.*", until=0)
    with pytest.raises(ValueError, match='unit is \'batches\' .*"epoch" or "batch"'):
        Freeze("body.*", 2, "batches")


@pytest.mark.parametrize("hybrid", [True, False])
def test_what_frozen_names_has_gradients_outside_of_fits_only(hybrid: bool) -> None:
    """In a net that is not traced, MXNet would compute some other gradients wrongly."""
    net, seen = two_heads(), set[str]()
    watch = handler("Watch", batch_end=lambda estimator: seen.add(estimator.parameters["body.bias"].grad_req))
    net.body.weight.grad_req = "add"
    estimator = make(hybridized(net, hybrid), frozen=["body.*"])
    for _ in range(2):
        fit(estimator, watch, epochs=1)
        assert seen == {"null" if hybrid else "write"}
        assert (net.body.weight.grad_req, net.body.bias.grad_req) == ("add", "write")


def test_a_bias_learns_beside_a_frozen_weight() -> None:
    """On CPUs, MXNet computes its gradient only in a net that is traced."""
    by_name, frozen, plain = (twins(two_heads, BATCHES[0][0])[0] for _ in range(3))
    for net in (frozen, plain):
        for own, other in zip(net.collect_params().values(), by_name.collect_params().values()):
            own.set_data(other.data())
    fit(make(by_name, frozen=["body.weight"]), epochs=1)
    estimator = make(hybridized(frozen))
    estimator.freeze("body.weight")
    fit(estimator, epochs=1)
    assert_same_parameters(frozen, by_name)
    estimator = make(plain)
    estimator.freeze("body.weight")
    with pytest.raises(TrainerError, match='"body.weight" is frozen, but not "body.bias", .* net.hybridize'):
        fit(estimator, epochs=1)
