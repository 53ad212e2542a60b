"""What `Freeze` and `estimator.freeze` freeze stays as it is, and learns afterwards as by hand."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit import Freeze, MultiEstimator, TrainerError, TrainerSpec
from tests.common.compare import assert_same_parameters, copy_parameters, snapshot, twins
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SILENT
from tests.common.handlers import handler
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import two_heads
from tests.common.specs import digit_spec
from tests.numerics.test_frozen import ADAM, BATCHES, EPOCHS, PARTS, by_hand, trainer

from mxnet.gluon import nn  # isort: skip


def make(net: Any = None, trainers: Any = None, **options: Any) -> MultiEstimator:
    trainers = TrainerSpec(".*", "adam", ADAM) if trainers is None else trainers
    return MultiEstimator(two_heads() if net is None else net, digit_spec(), trainers, **options)


def fit(estimator: MultiEstimator, *handlers: Any, epochs: int = EPOCHS, **options: Any) -> MultiEstimator:
    estimator.fit(BATCHES, epochs=epochs, event_handlers=[*SILENT, *handlers], **options)
    return estimator


def changed(net: Any, before: dict[str, np.ndarray]) -> set[str]:
    return {name for name, value in snapshot(net).items() if (value != before[name]).any()}


# Arguments of Freeze, the devices, and the step from which the body learns
WHEN: dict[str, tuple[dict[str, Any], Any, int]] = {
    "an epoch": ({"until": 1}, TWO, 4),
    "two epochs": ({"until": 2, "unit": "epoch"}, ONE, 8),
    "five batches": ({"until": 5, "unit": "batch"}, TWO, 5),
}


@pytest.mark.parametrize(("how", "devices", "step"), WHEN.values(), ids=WHEN)
def test_it_trains_as_by_hand(how: dict[str, Any], devices: Any, step: int) -> None:
    """Also with a trainer that holds nothing else; Adam counts the updates of the body from its first."""
    hand, net = twins(two_heads, BATCHES[0][0])
    net.collect_params().reset_ctx(devices)
    by_hand(hand, [trainer(hand, each) for each in PARTS.values()], {0: "body.*", step: ""})
    declared = {n: TrainerSpec(p, "adam", ADAM, clip_norm=1e3) for n, p in PARTS.items()}
    fit(make(hybridized(net), declared, context=devices), Freeze("body.*", **how))
    assert_same_parameters(net, hand)


@pytest.mark.parametrize(
    "params", [lambda net: "body.*", lambda net: net.body, lambda net: ["body.*", "b.*"]]
)
def test_between_fits_it_trains_as_by_hand(params: Any) -> None:
    hand, net = twins(two_heads, BATCHES[0][0])
    by_hand(hand, [trainer(hand, ".*")], {0: "", 4: "body.*", 8: ""})
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


STOP = handler("Stop", batch_end=lambda estimator: estimator.state.step == 2)
LATE, EARLY = "Freeze('body.*', until=2, unit='epoch'): ", "Freeze('digit.*', until=5, unit='batch'): "
LEARN = "they learn from now on"
LOGGED: dict[str, tuple[list[Any], dict[str, Any], list[str]]] = {
    "when they learn": (
        [Freeze("body.*", until=2), Freeze("digit.*", until=5, unit="batch")], {},
        [f"epoch 2, batch 2: {EARLY}{LEARN}", f"epoch 3, batch 1: {LATE}{LEARN}"],
    ),
    "a fit that stops early": (
        [STOP, Freeze("body.*", until=2)], {}, [f"{LATE}the fit ended before they learnt"]
    ),
    "too few epochs": (
        [Freeze("body.*", until=2)], {"epochs": 2},
        [f"{LATE}the fit ends after 2, before they learn", f"{LATE}the fit ended before they learnt"],
    ),
    "too few batches": (
        [Freeze("digit.*", until=5, unit="batch")], {"epochs": None, "batches": 4},
        [f"{EARLY}the fit ends after 4, before they learn", f"{EARLY}the fit ended before they learnt"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("handlers", "limits", "lines"), LOGGED.values(), ids=LOGGED)
def test_what_is_logged_and_nothing_stays_frozen(handlers, limits, lines, caplog) -> None:
    """A fit that is too short may be resumed, and so it says it at once."""
    caplog.set_level("INFO", "multifit")
    net = two_heads()
    estimator = fit(make(net), *handlers, **limits)
    assert [line for line in caplog.messages if "Freeze" in line] == lines
    before = snapshot(net)
    fit(estimator, epochs=1)
    assert changed(net, before) == set(before)


def test_counts_begin_with_each_fit() -> None:
    net = two_heads()
    estimator, frozen = fit(make(net), epochs=2), Freeze("body.*", until=1)
    before = snapshot(net)
    fit(estimator, frozen, handler("Stop", epoch_end=lambda estimator: True), epochs=2)
    assert changed(net, before) == {name for name in before if not name.startswith("body")}
    other = Freeze("body.*", until=1)
    other.load_state_dict(frozen.state_dict())
    assert other.state_dict() == {"first": 2}


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


def test_what_frozen_names_cannot_be_unfrozen_and_arguments_are_checked() -> None:
    with pytest.raises(TrainerError, match='unfreeze: frozen= has taken "body.bias", "body.weight"'):
        make(frozen=["body.*"]).unfreeze(".*")
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
    copy_parameters(by_name, frozen)
    fit(make(by_name, frozen=["body.weight"]), epochs=1)
    estimator = make(hybridized(frozen))
    estimator.freeze("body.weight")
    fit(estimator, epochs=1)
    assert_same_parameters(frozen, by_name)
    estimator = make(plain)
    estimator.freeze("body.weight")
    with pytest.raises(TrainerError, match='"body.weight" is frozen, but not "body.bias", .* net.hybridize'):
        fit(estimator, epochs=1)
