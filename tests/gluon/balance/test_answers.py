"""What a user's own method of balancing raises or returns is refused in its name, before anything moves."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, MultiEstimator, SpecError, TrainerSpec
from multifit.balance import GramianMethod, LossMethod
from multifit.balance.weighing import weigh_gradients
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import digit_batches
from tests.common.hand_loop import SGD, SILENT
from tests.common.nets import Heads, hybridized, sequential
from tests.common.noted import with_notes
from tests.common.specs import digit_spec

import mxnet as mx  # isort: skip
from mxnet import nd
from mxnet.gluon import nn

BATCHES = digit_batches([8] * 3)
MISSING = digit_spec(labels=["digit", LabelSpec("parity", missing="nan")])
WITHOUT_PARITY = [BATCHES[0], (*BATCHES[1][:2], np.full_like(BATCHES[1][2], np.nan)), BATCHES[2]]
Function = Callable[..., Any]


def of_gradients(solve: Function) -> Any:
    """A method of gradients that asks `solve` in the second batch."""

    class Mine(GramianMethod):
        def solve(self, gramian: Any, step: int = 0) -> Any:
            return solve(gramian) if step else np.ones(len(gramian))

    return Mine()


def on_host(weights: Function, needs: str = "losses") -> Any:
    """A method in NumPy that asks `weights` in the second batch."""

    class Mine(LossMethod):
        on_device = False

        def weights(self, measured: Any, state: dict) -> Any:
            return weights(measured, state) if measured.step else (np.ones(2), state)

    Mine.needs = needs
    return Mine()


def on_device(weights: Function, after_update: Function | None = None) -> Any:
    """A method on the device, which is traced in the first batch."""

    class Mine(LossMethod):
        def start(self, tasks: int) -> dict:
            return {"mean": np.zeros(tasks)}

        def weights(self, measured: Any, state: dict) -> Any:
            return weights(measured, state)

    if after_update is not None:
        Mine.after_update = staticmethod(after_update)  # type: ignore[attr-defined]
    return Mine()


def twice(measured: Any, state: dict) -> Any:
    return measured.F.concat(measured.losses, measured.losses, dim=0)


BATCH_2 = "epoch 1, batch 2: 1 problem found:\n  "
OF_2 = "it must return an array of shape (2,): the weights of the 2 tasks with a gradient in this batch"
COMPUTED = "it must return an array of shape (2,), computed with measured.F: the weights of the 2 tasks"

# fmt: off
ANSWERS: dict[str, tuple[Any, type, str]] = {
    "solve: too many": (of_gradients(lambda g: np.ones(3)), SpecError,
        f"{BATCH_2}1. balance: Mine.solve returned an array of shape (3,); {OF_2}"),
    "solve: words": (of_gradients(lambda g: ["a", "b"]), SpecError, f"returned ['a', 'b']; {OF_2}"),
    "solve: raises": (of_gradients(lambda g: 1 / 0), ZeroDivisionError,
        "raised in balance: Mine.solve (epoch 1, batch 2)"),
    "host: too many": (on_host(lambda m, s: (np.ones(3), s)), SpecError,
        f"{BATCH_2}1. balance: Mine.weights returned an array of shape (3,); it must return an array of "
        "shape (2,): the weights of the 2 tasks"),
    "host: raises": (on_host(lambda m, s: 1 / 0), ZeroDivisionError,
        "raised in balance: Mine.weights (epoch 1, batch 2)"),
    "device: too many": (on_device(lambda m, s: (twice(m, s), s)), SpecError,
        f"Mine.weights returned an array of shape (4,); {COMPUTED}"),
    "device: NumPy": (on_device(lambda m, s: (np.ones(2), s)), SpecError, COMPUTED),
    "device: unlike shapes": (on_device(lambda m, s: (twice(m, s) + m.losses, s)), mx.MXNetError,
        "raised in balance: Mine.weights (epoch 1, batch 1)"),
    "device: raises": (on_device(lambda m, s: 1 / 0), ZeroDivisionError, "raised in balance: Mine.weights "),
    "device: a number": (on_device(lambda m, s: (m.losses, {"mean": 1.0})), SpecError,
        "Mine.weights returns mean, which measured.F did not compute; on the device, a method remembers"),
    "device: a longer state": (on_device(lambda m, s: (m.losses, {"mean": twice(m, s)})), SpecError,
        "Mine.weights returns mean of shape (4,); on the device, a method remembers arrays of shape (2,)"),
}
# fmt: on


def make() -> Any:
    net = Heads(body=sequential(nn.Dense(8)), digit=5, parity=1)
    net.initialize()
    net(nd.array(BATCHES[0][0]))
    return hybridized(net)


class Watch:
    """Keeps the parameters as they were before the last batch."""

    def batch_begin(self, estimator: Any) -> None:
        self.before = snapshot(estimator.net)


def refused(method: Any, error: type, batches: Any = BATCHES, spec: Any = None) -> tuple[Any, Watch, str]:
    net, watch = make(), Watch()
    estimator = MultiEstimator(net, spec or digit_spec(), TrainerSpec(".*", "sgd", SGD), balance=method)
    with pytest.raises(error) as raised:
        estimator.fit(batches, epochs=1, event_handlers=[*SILENT, watch])
    return net, watch, with_notes(raised.value)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_refused_before_anything_moves(name: str) -> None:
    method, error, message = ANSWERS[name]
    net, watch, text = refused(method, error)
    assert message in text
    assert_unchanged(net, watch.before)


def test_as_many_weights_as_tasks_are_too_many_where_one_is_left_out() -> None:
    class Fixed(GramianMethod):
        def solve(self, gramian: Any, step: int = 0) -> Any:
            return np.array([0.5, 0.5])

    net, watch, text = refused(Fixed(), SpecError, WITHOUT_PARITY, MISSING)
    assert f"{BATCH_2}1. balance: Fixed.solve returned an array of shape (2,); it must return" in text
    assert "of shape (1,): the weights of the 1 task with a gradient in this batch; others are left" in text
    assert_unchanged(net, watch.before)


def test_an_array_of_one_number_is_remembered_as_a_whole() -> None:
    class Counting(GramianMethod):
        def start(self, tasks: int) -> Any:
            return {"batches": np.array(0.0)}

        def weights(self, measured: Any, state: Any) -> Any:
            return np.ones(measured.tasks), {"batches": state["batches"] + 1}

        def solve(self, gramian: Any, step: int = 0) -> Any:
            raise NotImplementedError

    estimator = MultiEstimator(make(), MISSING, TrainerSpec(".*", "sgd", SGD), balance=Counting())
    estimator.fit(WITHOUT_PARITY, epochs=1, event_handlers=SILENT)
    assert estimator._session.balancer.state()["memory"]["batches"] == 3


def test_what_looks_back_is_named() -> None:
    host = on_host(lambda m, s: (np.ones(2), s))
    type(host).after_update = lambda self, measured, after, state: 1 / 0
    for method in (host, on_device(lambda m, s: (m.losses, s), lambda measured, after, state: 1 / 0)):
        text = refused(method, ZeroDivisionError)[2]
        assert "raised in balance: Mine.after_update (epoch 1, batch 1)" in text


@pytest.mark.parametrize("base", [GramianMethod, LossMethod])
def test_an_error_at_the_start(base: type) -> None:
    method = type("Mine", (base,), {"start": lambda self, tasks: 1 / 0, "weights": twice})()
    with pytest.raises(ZeroDivisionError) as raised:
        MultiEstimator(make(), digit_spec(), balance=method)
    assert "raised in balance: Mine.start" in with_notes(raised.value)


def test_a_number_at_the_start_is_that_of_every_task() -> None:
    class Adding(GramianMethod):
        def start(self, tasks: int) -> dict:
            return {"sum": 1.5}

        def weights(self, measured: Any, state: dict) -> tuple:
            return np.ones(measured.tasks), {"sum": state["sum"] + measured.losses}

    gramian = np.diag([1.0, 0.0])
    _, state = weigh_gradients(Adding(), np.ones(2), gramian, np.ones(2), Adding().start(2))
    assert state["sum"].tolist() == [2.5, 1.5]
    _, state = weigh_gradients(Adding(), np.ones(2), np.eye(2), np.ones(2), state)
    assert state["sum"].tolist() == [3.5, 2.5]
