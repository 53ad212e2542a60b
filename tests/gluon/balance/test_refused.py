"""What methods of balancing refuse: nets, losses, options, handlers, and what a user's own method returns."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import Every, LabelSmoothing, LabelSpec, LossSpec, MixUp, SpecError
from multifit.balance import GLS, GramianMethod, LossMethod, UPGrad
from multifit.gluon.graph.cut import Cut
from multifit.gluon.step.split_graph import SplitGraph
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import digit_batches
from tests.common.nets import Heads, hybridized, sequential
from tests.common.noted import with_notes
from tests.common.shared_nets import Alone, two_heads
from tests.common.specs import BCE, CE, digit_spec
from tests.gluon.balance.by_hand import fitted
from tests.numerics.test_losses import Shapely

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

BATCHES = digit_batches([8] * 3)
Function = Callable[..., Any]


def mine(base: type = LossMethod, **members: Any) -> Any:
    """A user's own method."""
    return type("Mine", (base,), members)()


def of_gradients(solve: Function) -> Any:
    """A method of gradients that asks `solve` from the second batch on."""
    return mine(GramianMethod, solve=lambda self, g, step=0: solve(g) if step else np.ones(len(g)))


def on_host(weights: Function, **members: Any) -> Any:
    """A method in NumPy that asks `weights` in the second batch."""
    members["weights"] = lambda self, m, state: weights(m, state) if m.step else (np.ones(2), state)
    return mine(on_device=False, **members)


def on_device(weights: Function, **members: Any) -> Any:
    """A method on the device, which is traced in the first batch."""
    members["weights"] = lambda self, m, state: weights(m, state)
    return mine(start=lambda self, tasks: {"mean": np.zeros(tasks)}, **members)


def twice(measured: Any, state: dict) -> Any:
    return measured.F.concat(measured.losses, measured.losses, dim=0)


def fails(*arguments: Any) -> Any:
    return 1 / 0


BATCH_2 = "epoch 1, batch 2: 1 problem found:\n  "
OF_2 = "it must return an array of shape (2,): the weights of the 2 tasks with a gradient in this batch"
COMPUTED = "it must return an array of shape (2,), computed with measured.F: the weights of the 2 tasks"
AFTER = "raised in balance: Mine.after_update (epoch 1, batch 1)"

# fmt: off
ANSWERS: dict[str, tuple[Any, type, str]] = {
    "solve: too many": (of_gradients(lambda g: np.ones(3)), SpecError,
        f"{BATCH_2}1. balance: Mine.solve returned an array of shape (3,); {OF_2}"),
    "solve: words": (of_gradients(lambda g: ["a", "b"]), SpecError, f"returned ['a', 'b']; {OF_2}"),
    "solve: raises": (of_gradients(fails), ZeroDivisionError,
        "raised in balance: Mine.solve (epoch 1, batch 2)"),
    "host: too many": (on_host(lambda m, s: (np.ones(3), s)), SpecError,
        f"{BATCH_2}1. balance: Mine.weights returned an array of shape (3,); it must return an array of "
        "shape (2,): the weights of the 2 tasks"),
    "host: raises": (on_host(fails), ZeroDivisionError, "raised in balance: Mine.weights (epoch 1, batch 2)"),
    "host: looks back": (on_host(lambda m, s: (np.ones(2), s), after_update=fails), ZeroDivisionError, AFTER),
    "device: too many": (on_device(lambda m, s: (twice(m, s), s)), SpecError,
        f"Mine.weights returned an array of shape (4,); {COMPUTED}"),
    "device: NumPy": (on_device(lambda m, s: (np.ones(2), s)), SpecError, COMPUTED),
    "device: unlike shapes": (on_device(lambda m, s: (twice(m, s) + m.losses, s)), mx.MXNetError,
        "raised in balance: Mine.weights (epoch 1, batch 1)"),
    "device: raises": (on_device(fails), ZeroDivisionError, "raised in balance: Mine.weights "),
    "device: a number": (on_device(lambda m, s: (m.losses, {"mean": 1.0})), SpecError,
        "Mine.weights returns mean, which measured.F did not compute; on the device, a method remembers"),
    "device: a longer state": (on_device(lambda m, s: (m.losses, {"mean": twice(m, s)})), SpecError,
        "Mine.weights returns mean of shape (4,); on the device, a method remembers arrays of shape (2,)"),
    "device: looks back": (on_device(lambda m, s: (m.losses, s), after_update=fails), ZeroDivisionError,
        AFTER),
    "start": (mine(start=fails, weights=fails), ZeroDivisionError, "raised in balance: Mine.start"),
    "start, of gradients": (mine(GramianMethod, start=fails), ZeroDivisionError, "in balance: Mine.start"),
}
# fmt: on


class Watch:
    """Keeps the parameters as they were before the last batch."""

    before: Any = None

    def batch_begin(self, estimator: Any) -> None:
        self.before = snapshot(estimator.net)


def refused(method: Any, error: type, batches: Any = BATCHES, handlers: Any = (), **options: Any) -> str:
    """Return the message; the batch that was refused must have changed nothing, unless it was trained on."""
    net, watch = heads(), Watch()
    net.initialize()
    net(nd.array(BATCHES[0][0]))
    with pytest.raises(error) as raised:
        fitted(net, method, batches, handlers=[watch, *handlers], **options)
    text = with_notes(raised.value)
    if "after_update" not in text and watch.before:
        assert_unchanged(net, watch.before)
    return text


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_refused_before_anything_moves(name: str) -> None:
    method, error, message = ANSWERS[name]
    assert message in refused(method, error)


def test_as_many_weights_as_tasks_are_too_many_where_one_is_left_out() -> None:
    spec = digit_spec(labels=["digit", LabelSpec("parity", missing="nan")])
    without = [BATCHES[0], (*BATCHES[1][:2], np.full_like(BATCHES[1][2], np.nan)), BATCHES[2]]
    text = refused(of_gradients(lambda g: np.array([0.5, 0.5])), SpecError, without, spec=spec)
    assert f"{BATCH_2}1. balance: Mine.solve returned an array of shape (2,); it must return" in text
    assert "of shape (1,): the weights of the 1 task with a gradient in this batch; others are left" in text


# ---- declarations


def own(out: Any, label: Any) -> Any:
    return BCE(out, label)


def own_gradient(out: Any, label: Any) -> Any:
    """A loss that ignores the gradient that it receives."""
    return -nd.log(nd.pick(nd.SoftmaxOutput(out, label), label))


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


def sparse() -> Any:
    return hybridized(Heads(body=sequential(nn.Embedding(100, 8, sparse_grad=True)), digit=5, parity=1))


CUT = "the gradients of tasks are compared in the traced graph of net and losses, and "
WHOLE = UPGrad(on="parameters")
# By message: the net, the method, and what else is declared; None are three tasks.
# fmt: off
WRONG: dict[str, tuple[Any, Any, Any]] = {
    # when the estimator is made
    "balance: it is the class GLS; give an instance: GLS()": (two_heads, GLS, {}),
    "Mine.start(2) returns history of shape (2, 3); on the device, a method remembers":
        (two_heads, mine(start=lambda self, tasks: {"history": np.zeros((tasks, 3))}, weights=fails), {}),
    # in the first batch
    f"{CUT}the net is not in it: call net.hybridize(); or use": (two_heads, UPGrad(), {}),
    "the net is not in it: it has a forward or hooks of its own":
        (heads, UPGrad(), {"forward": lambda net, slots: net(slots["x"])}),
    f'{CUT}losses["parity"] is not in it: make it a HybridBlock':
        (heads, UPGrad(), {"losses": {"digit": CE, "parity": own}}),
    "the tasks share no parameter that is trained, so that": (lambda: hybridized(Alone()), UPGrad(), {}),
    "graph of net and losses, which cannot be traced: 'Symbol' object has no attribute 'shape'":
        (heads, UPGrad(), {"losses": {"digit": CE, "parity": LossSpec(Shapely())}}),
    'MXNet runs F.contrib.foreach backward only once; use on="features", which needs one pass, or write':
        (lambda: hybridized(Loops()), WHOLE, {}),
    'sparse gradients are not compared; use on="features", which needs one pass, or build the layer':
        (sparse, WHOLE, {}),
    'losses["digit"]: it ignores the gradient that it receives, so balance= would':
        (two_heads, GLS(), {"losses": {"digit": own_gradient, "parity": BCE}}),
}
# fmt: on


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_compared_or_weighed_is_refused(message: str) -> None:
    make, method, changes = WRONG[message]
    with pytest.raises(SpecError) as raised:
        fitted(make(), method, BATCHES, spec=digit_spec(**changes))
    assert message in str(raised.value)


# ---- handlers


class Penalty:
    """Adds to the objective."""

    def change_objective(self, estimator: Any, objectives: list, **views: Any) -> list:
        weight = estimator.parameters["body.weight"]
        return [*objectives, *[nd.sum(nd.square(data)) for data in weight.list_data()]]


BLENDS = "replaces a share of losses by others, which would not count as"


@pytest.mark.parametrize(
    ("method", "handler", "message"),
    [
        (UPGrad(), Penalty(), r"balance: a handler \(Penalty\) adds to the objective"),
        (GLS(), MixUp(loss="digit"), f"MixUp.* {BLENDS}.*leave the handler or balance= out"),
        (UPGrad(), Every(2, "batch", LabelSmoothing()), f"LabelSmoothing.* {BLENDS}"),
    ],
)
def test_handlers_that_change_losses_are_refused(method: Any, handler: Any, message: str) -> None:
    """Those that blend losses before the first batch is read."""

    class Unread(list):
        def __iter__(self) -> Any:
            raise AssertionError("a batch is read")

    text = refused(method, SpecError, BATCHES if "Penalty" in message else Unread(BATCHES), [handler])
    assert re.search(message, text, re.DOTALL)


def test_recurrent_layers_on_gpus_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("mxnet.context.current_context", lambda: mx.gpu())
    body = mx.sym.RNN(*map(mx.sym.var, "xphc"), state_size=2, num_layers=1, mode="lstm")
    graph = SplitGraph(*[None] * 6, repeats=True)
    with pytest.raises(SpecError, match='the next one needs; use on="features".*engine="torch"'):
        graph._check_repeated(Cut(body, None, [], []))
