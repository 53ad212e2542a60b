"""Methods that compare gradients, at features or of parameters: what they refuse."""

from typing import Any

import pytest

from multifit import LossSpec, MultiEstimator, SpecError
from multifit.balance import UPGrad
from multifit.gluon.graph.cut import Cut
from multifit.gluon.step.split_graph import SplitGraph
from tests.common.compare import assert_unchanged, snapshot
from tests.common.hand_loop import SILENT
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import Alone, Nested, three_tasks, two_heads
from tests.common.specs import BCE, CE, digit_spec
from tests.gluon.balance.test_gradients import fitted
from tests.gluon.balance.test_parameters import BATCHES
from tests.numerics.test_losses import Shapely

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


def own(out: Any, label: Any) -> Any:
    return BCE(out, label)


def wrong_needs() -> Any:
    method = UPGrad()
    method.needs = "gradients"  # type: ignore[misc]
    return method


def on_body(*layers: Any) -> Any:
    return hybridized(Heads(body=sequential(*layers), digit=5, parity=1))


class Loops(gluon.HybridBlock):
    """A body with a loop of MXNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Dense(8, in_units=10)
        self.digit, self.parity = nn.Dense(5, in_units=8), nn.Dense(1, in_units=8)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        rows, state = self.body(image), F.zeros((1,))
        features = F.contrib.foreach(lambda row, state: (F.tanh(row), state), rows, state)[0]
        return self.digit(features), self.parity(features)


def heads() -> Any:
    return hybridized(two_heads())


def nested() -> Any:
    return hybridized(Nested())


CUT = "the gradients of tasks are compared in the traced graph of net and losses, and "
WHOLE = UPGrad(on="parameters")
ERRORS: dict[str, tuple[Any, Any, Any, str]] = {
    "plain": (two_heads, UPGrad(), {}, f"{CUT}the net is not in it: call net.hybridize(); or use"),
    "forward": (heads, UPGrad(), {"forward": lambda net, slots: net(slots["x"])},
        "the net is not in it: it has a forward or hooks of its own"),
    "own loss": (heads, UPGrad(), {"losses": {"digit": CE, "parity": own}},
        f'{CUT}losses["parity"] is not in it: make it a HybridBlock'),
    "nothing shared": (lambda: hybridized(Alone()), UPGrad(), {},
        "the tasks share no parameter that is trained, so that"),
    "untraceable": (heads, UPGrad(), {"losses": {"digit": CE, "parity": LossSpec(Shapely())}},
        "graph of net and losses, which cannot be traced: 'Symbol' object has no attribute 'shape'"),
    "needs": (heads, wrong_needs(), {},
        """UPGrad.needs is 'gradients'; valid are "nothing", "losses", "gramian\""""),
    "foreach": (lambda: hybridized(Loops()), WHOLE, {},
        'MXNet runs F.contrib.foreach backward only once; use on="features", which needs one pass, or write'),
    "sparse": (lambda: on_body(nn.Embedding(100, 8, sparse_grad=True)), WHOLE, {},
        'sparse gradients are not compared; use on="features", which needs one pass, or build the layer'),
    "expression": (nested, UPGrad(on="("), None, 'balance: on="(" is not a regular expression'),
    "unknown": (nested, UPGrad(on="bodies"), None, 'balance: on="bodies" matches no parameter'),
    "not shared": (nested, UPGrad(on="digit.*"), None, 'on="digit.*" selects no parameter that tasks share'),
}  # fmt: skip


@pytest.mark.parametrize("tasks", [None, {"digits": ["digit"]}], ids=["losses", "groups"])
def test_a_preference_for_no_task_is_refused_when_the_estimator_is_made(tasks: Any) -> None:
    method = UPGrad(preference={"house": 2, "digti": 2, "size": 3}, tasks=tasks)
    with pytest.raises(SpecError) as raised:
        MultiEstimator(nested(), three_tasks(), balance=method)
    name, text = "digits" if tasks else "digit", str(raised.value)
    assert f'balance: preference: there is no task "house"; valid are "{name}", "parity", "size"' in text
    assert f'there is no task "digti" (did you mean "{name}"?); valid are' in text


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_compared_is_refused(name: str) -> None:
    make, method, changes, message = ERRORS[name]
    spec = three_tasks() if changes is None else digit_spec(**changes)
    with pytest.raises(SpecError) as raised:
        MultiEstimator(make(), spec, balance=method).fit(BATCHES, epochs=1, event_handlers=SILENT)
    assert message in str(raised.value)


def test_a_handler_that_adds_to_the_objective_is_refused() -> None:
    class Penalty:
        def change_objective(self, estimator: Any, objectives: list, **views: Any) -> list:
            weight = estimator.parameters["body.weight"]
            return [*objectives, *[nd.sum(nd.square(data)) for data in weight.list_data()]]

    net = heads()
    net.initialize()
    net(nd.array(BATCHES[0][0]))
    before = snapshot(net)
    with pytest.raises(SpecError) as raised:
        fitted(net, UPGrad(), handlers=[Penalty()])
    assert "balance: a handler (Penalty) adds to the objective" in str(raised.value)
    assert_unchanged(net, before)


def test_recurrent_layers_on_gpus_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("mxnet.context.current_context", lambda: mx.gpu())
    body = mx.sym.RNN(*map(mx.sym.var, "xphc"), state_size=2, num_layers=1, mode="lstm")
    graph = SplitGraph(*[None] * 6, repeats=True)
    message = 'overwrites what the next one needs; use on="features".*engine="torch"'
    with pytest.raises(SpecError, match=message):
        graph._check_repeated(Cut(body, None, [], []))
