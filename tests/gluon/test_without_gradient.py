"""Parameters of a trainer that no loss's gradient reaches are warned of."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec

from mxnet import gluon  # isort: skip

L2 = gluon.loss.L2Loss()


class Net(gluon.HybridBlock):
    """A body and two heads, whose results are `joined`."""

    def __init__(self, joined: Any) -> None:
        super().__init__()
        self.joined = joined
        self.body, self.first, self.second = (gluon.nn.Dense(2) for _ in range(3))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.joined(F, self.body(x), self.first, self.second)


BOTH = Net(lambda F, body, first, second: (first(body), second(body)))
BLOCKED = Net(lambda F, body, first, second: (first(body), F.BlockGrad(second(body))))
BLOCKED_BODY = Net(lambda F, body, first, second: (first(F.BlockGrad(body)), second(F.round(body))))
WORDS = "so at most weight decay changes them"


def warnings(net: Any, losses: dict[str, Any], hybridized: bool = True, **options: Any) -> list[str]:
    net.hybridize(hybridized)
    unused = [name for name in ("one", "two") if name not in losses]
    specs = {name: LossSpec(options.pop("fn", L2), name, "y", weight=w) for name, w in losses.items()}
    spec = TaskSpec(inputs="x", outputs=["one", "two"], labels="y", losses=specs, unused=unused)
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1, "wd": 0.1})
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    notices = MultiEstimator(net, spec, trainer, **options).check([batch]).notices
    return [notice for notice in notices if WORDS in notice]


@pytest.mark.parametrize(
    ("net", "losses", "block"),
    [
        (BOTH, {"one": 1}, "second"),
        (BOTH, {"one": 1, "two": 0}, "second"),
        (BLOCKED, {"one": 1, "two": 1}, "second"),
        (BLOCKED_BODY, {"one": 1, "two": 1}, "body"),
    ],
    ids=["an output without a loss", "a loss of weight 0", "BlockGrad", "operators without a gradient"],
)
def test_parameters_without_a_gradient(net: Net, losses: dict[str, float], block: str) -> None:
    assert warnings(net, losses) == [
        f'no loss\'s gradient reaches "{block}.weight", "{block}.bias", {WORDS}: an operator such as '
        "BlockGrad stops it, or only outputs without a loss depend on them; pass "
        f'frozen=["{block}.*"], or give them a loss'
    ]
    assert not warnings(net, losses, frozen=[f"{block}.*"])  # the way out


@pytest.mark.parametrize(
    ("net", "losses", "hybridized"),
    [
        (BOTH, {"one": 1, "two": 1}, True),
        (BOTH, {"one": 1, "two": lambda state: 0.0}, True),  # which may grow
        (BLOCKED, {"one": 1}, False),  # it has no graph
    ],
    ids=["all have one", "a weight that changes", "not hybridized"],
)
def test_no_warning(net: Net, losses: dict[str, Any], hybridized: bool) -> None:
    assert not warnings(net, losses, hybridized)


class OfHead(gluon.HybridBlock):
    """Applies a head of the net to its features itself, as losses of proxies do."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, self.l2 = head, gluon.loss.L2Loss()

    def hybrid_forward(self, F: Any, features: Any, label: Any) -> Any:
        return self.l2(self.head(features), label)


def test_a_loss_may_train_a_layer_of_the_net() -> None:
    net = Net(lambda F, body, first, second: (first(body), F.BlockGrad(second(body))))
    loss = OfHead(net.second)
    loss.hybridize()
    assert not warnings(net, {"one": 1}, fn=loss)


class TrainsSecond:
    def change_objective(self, estimator: Any, objectives: list[Any], pred: Any) -> list[Any]:
        return objectives + [output.mean().reshape((1,)) for output in pred["two"]]


def test_a_handler_may_train_an_output(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(BOTH.joined)
    net.hybridize()
    losses = {"one": LossSpec(L2, "one", "y")}
    spec = TaskSpec(outputs=["one", "two"], labels=["y"], losses=losses, inputs=["x"], unused=["two"])
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    for handlers, warned in (([TrainsSecond()], False), ([], True)):
        caplog.clear()
        MultiEstimator(net, spec).fit([batch], epochs=1, event_handlers=handlers)
        assert any(WORDS in record.getMessage() for record in caplog.records) is warned
