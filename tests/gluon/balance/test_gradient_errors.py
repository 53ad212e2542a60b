"""Methods that compare gradients: what they refuse."""

from typing import Any

import pytest

from multifit import LossSpec, MultiEstimator, SpecError
from multifit.balance import UPGrad
from tests.common.compare import assert_unchanged, snapshot
from tests.common.hand_loop import SILENT
from tests.common.nets import hybridized
from tests.common.shared_nets import Alone, two_heads
from tests.common.specs import BCE, CE, digit_spec
from tests.gluon.balance.test_gradients import BATCHES, fitted
from tests.numerics.test_losses import Shapely

from mxnet import gluon, nd  # isort: skip


def own(out: Any, label: Any) -> Any:
    return BCE(out, label)


def whole(outs: list, labels: list) -> Any:
    return [nd.mean(BCE(out, label)) for out, label in zip(outs, labels)]


def plain() -> Any:
    net = gluon.nn.Sequential()
    net.add(two_heads())
    return net


def wrong_needs() -> Any:
    method = UPGrad()
    method.needs = "gradients"  # type: ignore[misc]
    return method


CUT = "the gradients of tasks are compared in the traced graph of net and losses, and "


ERRORS: dict[str, tuple[Any, Any, Any, str]] = {
    "plain": (two_heads, UPGrad(), {}, f"{CUT}the net is not in it: call net.hybridize(); or use"),
    "a Block": (
        plain, UPGrad(), {}, f"{CUT}the net is not in it: write it as a HybridBlock, and call net.hyb"
    ),
    "forward": (
        lambda: hybridized(two_heads()), UPGrad(), {"forward": lambda net, slots: net(slots["x"])},
        "the net is not in it: it has a forward or hooks of its own",
    ),
    "own loss": (
        lambda: hybridized(two_heads()), UPGrad(), {"losses": {"digit": CE, "parity": own}},
        f'{CUT}losses["parity"] is not in it: make it a HybridBlock',
    ),
    "nothing shared": (
        lambda: hybridized(Alone()), UPGrad(), {}, "the tasks share no parameter that is trained, so that"
    ),
    "untraceable": (
        lambda: hybridized(two_heads()), UPGrad(),
        {"losses": {"digit": CE, "parity": LossSpec(Shapely())}},
        "graph of net and losses, which cannot be traced: 'Symbol' object has no attribute 'shape'",
    ),
    "needs": (
        lambda: hybridized(two_heads()), wrong_needs(), {},
        """UPGrad.needs is 'gradients'; valid are "nothing", "losses", "gramian\"""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_cut_is_refused(name: str) -> None:
    make, method, changes, message = ERRORS[name]
    with pytest.raises(SpecError) as raised:
        MultiEstimator(make(), digit_spec(**changes), balance=method).fit(
            BATCHES, epochs=1, event_handlers=SILENT
        )
    assert message in str(raised.value)


def test_a_handler_that_adds_to_the_objective_is_refused() -> None:
    class Penalty:
        def change_objective(self, estimator: Any, objectives: list, **views: Any) -> list:
            weight = estimator.parameters["body.weight"]
            return [*objectives, *[nd.sum(nd.square(data)) for data in weight.list_data()]]

    net = hybridized(two_heads())
    net.initialize()
    net(nd.array(BATCHES[0][0]))
    before = snapshot(net)
    with pytest.raises(SpecError) as raised:
        fitted(net, UPGrad(), handlers=[Penalty()])
    assert "balance: a handler (Penalty) adds to the objective" in str(raised.value)
    assert_unchanged(net, before)
