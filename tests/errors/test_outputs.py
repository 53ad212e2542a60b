"""Nets: what they return against the outputs declared, at once and later, and what cannot be trained."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import regression_batches
from tests.common.hand_loop import SILENT, train, train_by_hand, trainer_of
from tests.common.nets import sequential
from tests.common.specs import CE, L2, one_loss_spec

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

from .setups import Setup, around, arrays, new_setup, stops

PAIR = {"outputs": ["digit", "amount"], "losses": {"digit": CE}, "unused": ["outputs.amount"]}
PICK = "return arrays alone, or pick them, with forward="
# fmt: off
RETURNED = {
    "fewer": (lambda d, x: d(x),
        "outputs: 2 declared (digit, amount), the net returns 1 array: (8, 3) float32; name as many"),
    "more": (lambda d, x: (d(x), d(x), x),
        "the net returns 3 arrays: [(8, 3) float32, (8, 3) float32, (8, 6) float32]",
        "or end outputs with ... to ignore the rest"),
    "nested": (lambda d, x: (d(x), [d(x)]),
        "returns 2 arrays: [(8, 3) float32, [(8, 3) float32]]; nest the names as the net nests"),
    "None": (lambda d, x: (d(x), None), "returns 1 array and None: [(8, 3) float32, None]"),
    "None between": (lambda d, x: [d(x), None, d(x)],
        "(digit, amount), the net returns 2 arrays and None: [", f"None cannot be an output: {PICK}"),
    "None at the end": (lambda d, x: [d(x), d(x), None],
        "None cannot be an output: leave it out, or end outputs with ... to ignore"),
    "numpy": (lambda d, x: (d(x), d(x).asnumpy()),
        '"amount" as ndarray; every output that is declared must be an'),
    "key missing": (lambda d, x: {"digit": d(x), "amont": d(x)},
        '1 problem found:\n  1. outputs: the net returns no "amount" (did you mean "amont"?); ',
        'it returns "digit", "amont"'),
    "key more": (lambda d, x: {"digit": d(x), "amount": d(x), "boxes": x},
        'outputs: the net also returns "boxes", which is not declared; name it (and list it in unused=)'),
    "dict within": (lambda d, x: [{"digit": d(x)}, d(x)], '[{"digit": (8, 3) float32}, (8, 3) float32]'),
}
# fmt: on


@pytest.mark.parametrize(("function", "texts"), [(f, t) for f, *t in RETURNED.values()], ids=RETURNED)
def test_outputs_that_do_not_fit(function: Any, texts: list) -> None:
    """What is wrong in training and evaluation is reported once."""
    faulty = around(function, **PAIR)
    message = faulty.but(val_data=faulty.data).refused(SpecError, *texts)
    assert message.startswith("1 problem found:")
    faulty.but(net=around(lambda d, x: (d(x), x)).net).trains()
    if "2 arrays and None" in message:
        pick = lambda net, slots: [each for each in net(slots["x"]) if each is not None]  # noqa: E731
        faulty.but(forward=pick).trains()


def test_another_structure_when_evaluating() -> None:
    """SSD returns something else then; the message says what such a net needs."""
    net = around(lambda d, x: (d(x), x) if mx.autograd.is_training() else (d(x), x, x), **PAIR)
    net.but(val_data=net.data).refused(
        SpecError,
        "the net when evaluating returns 3 arrays",
        "a net that returns something else when evaluating needs evaluate=TaskSpec(...)",
    )
    metrics = {"accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit")}
    evaluate = TaskSpec(outputs=["digit", ...], labels=["digit"], inputs=["x"], metrics=metrics)
    net.but(val_data=net.data, evaluate=evaluate).trains()


def test_forward_predicting_and_too_many_inputs() -> None:
    """How many inputs a net takes is its own business: Python's words are the clearest."""
    faulty = around(lambda d, x: d(x), **PAIR)
    nothing = faulty.but(forward=lambda net, slots: None)
    nothing.refused(SpecError, "2 declared (digit, amount), forward= returns 0 arrays and None: None")
    with pytest.raises(SpecError, match=r"2 declared .*, the net when evaluating returns 1 array"):
        faulty.make().predict(np.ones((2, 6), "float32"))
    faulty = around(lambda d, x: d(x), inputs=["x", "y"])
    faulty.but(data=[[faulty.data[0][0], *faulty.data[0]]]).refused(
        TypeError,
        "raised in the net's forward pass (train)",
        "called with x (8, 6) float32, y (8, 6) float32",
    )


# ---- later batches -----------------------------------------------------------------------------------------

ODD = 1e3  # the first value of a batch in which something else is returned
WAY_OUT = (
    "return the same form in every batch: the same number of axes, and a row for each sample or one number "
    "for all"
)


def rows(out: Any, y: Any) -> Any:
    return nd.square(out - y.reshape((-1, 1))).mean(axis=1)


def is_odd(array: Any) -> bool:
    return float(array.reshape(-1)[0].asscalar()) == ODD


def with_odd(slot: int, number: int) -> list[list[np.ndarray]]:
    data = [arrays()[:2] for _ in range(4)]
    data[number][slot] = np.full_like(data[number][slot], ODD)
    return data


# What a loss returns at first, in an odd batch, and what the message says of the latter.
LOSSES = {
    "a number, not rows": (rows, lambda a, y: rows(a, y).mean(), "(1,) float32"),
    "rows, not a number": (lambda a, y: rows(a, y).mean(), rows, "(8,) float32"),
    "some of the rows": (rows, lambda a, y: rows(a, y)[:3], "(3,) float32"),
    "more axes": (rows, lambda a, y: nd.square(a), "(8, 3) float32"),
    "another dtype": (rows, lambda a, y: rows(a, y).astype("float64"), "(8,) float64"),
    "None": (rows, lambda a, y: None, "None"),
    "deep": (rows, lambda a, y: [[[[[[a]]]]]], "[[[[…]]]]"),
    "a tuple": (rows, lambda a, y: (rows(a, y), rows(a, y)), "2 parts, [(8,) float32, (8,) float32]"),
}  # fmt: skip
# What a net returns for the output "digit" in an odd batch, and what the message says.
NETS = {
    "more axes": (lambda a: a.reshape((8, 3, 1)), 'outputs: the net returns "digit" as (8, 3, 1) float32'),
    "fewer rows": (lambda a: a[:3], 'returns "digit" as (3, 3) float32 in a batch of 8 samples, but (8, 3)'),
    "another dtype": (lambda a: a.astype("int32"), 'returns "digit" as (8, 3) int32'),
    "a tuple": (lambda a: (a, a), "outputs: 1 declared (digit), the net returns 2 arrays"),
    "None": (lambda a: None, "the net returns 0 arrays and None: None"),
    "a dict": (lambda a: {"digits": a}, 'the net returns no "digit" (did you mean "digits"?)'),
}  # fmt: skip


def later_loss(case: str) -> tuple[Setup, int, str]:
    usual, other, text = LOSSES[case]
    loss = LossSpec(lambda a, y: (other if is_odd(y) else usual)(a, y))
    return around(lambda dense, x: dense(x), losses={"digit": loss}), 1, f'losses["digit"]: returns {text}'


def later_net(case: str) -> tuple[Setup, int, str]:
    other, text = NETS[case]
    return around(lambda dense, x: other(dense(x)) if is_odd(x) else dense(x)), 0, text


@pytest.mark.parametrize(
    ("make", "case"), [*((later_loss, case) for case in LOSSES), *((later_net, case) for case in NETS)]
)
def test_another_form_than_in_the_first_batch(make: Any, case: str) -> None:
    setup, slot, text = make(case)
    estimator = setup.make()
    for run, place in (
        (partial(estimator.fit, with_odd(slot, 2), epochs=1, event_handlers=SILENT), "epoch 1, batch 3: "),
        (partial(estimator.evaluate, with_odd(slot, 1), event_handlers=SILENT), "evaluating, batch 2: "),
    ):
        with pytest.raises(SpecError, match=f"^{place}") as raised:
            run()
        message = str(raised.value).replace("the net when evaluating", "the net")
        assert text in message and len(message) < 700 and (WAY_OUT in message or make is later_net)
    assert estimator.state.step == 2
    estimator.fit([arrays()[:2]], epochs=1, event_handlers=SILENT)


# Forms that may change: the shapes come from batches of many sizes, the first of which may be one sample.
@pytest.mark.parametrize(
    "loss",
    [
        lambda a, y: nd.square(a - y).mean(axis=1),
        lambda a, y: nd.square(a - y),
        lambda a, y: nd.square(a - y)[: max(1, len(a) // 2 - 1)].mean(axis=1),
        lambda a, y: (a * nd.ones_like(a)).reshape(-1)[: 2 + len(a) % 3],
        lambda a, y: nd.square(a).sum(axis=0),  # as long as the outputs are wide, in every batch
    ],
    ids=["rows", "tokens", "some of the rows", "any number", "columns"],
)
def test_what_may_change(loss: Any) -> None:
    batches = regression_batches([1, 8, 8, 5, 1, 2], outputs=(8,))
    hand, net = twins(lambda: nn.Dense(8), batches[0][0])
    train_by_hand(hand, trainer_of(hand), batches, lambda net, x, y: loss(net(x), y))
    train(net, one_loss_spec(loss), batches)
    assert_same_parameters(net, hand)


def test_a_metric_that_is_summed_on_the_device_cannot_move() -> None:
    net = nn.Dense(3, in_units=2)
    net.initialize()
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y"], metrics={"m": MetricSpec("mae", "out", "y")})
    estimator = MultiEstimator(net, spec)
    data = [(np.ones((4, 2), "float32"), np.ones((4, columns), "float32")) for columns in (3, 3, 1)]
    assert np.isfinite(estimator.evaluate(data[:2], [])["m"])
    text = 'metrics["m"]: arrays of some batches can be summed, and'
    stops(lambda: estimator.evaluate(data, []), SpecError, text)


# ---- cond and while_loop, whose gradients are wrong in hybridized blocks -----------------------------------

BATCHES = [
    (np.random.RandomState(i).randn(5, 4) + sign, np.random.RandomState(9 + i).randn(5, 4))
    for i, sign in enumerate((1, -1, 1, 1, -1, -1))
]
BATCHES = [(x.astype("float32"), y.astype("float32")) for x, y in BATCHES]
MESSAGE = "the gradients of F.contrib.{} are wrong in a hybridized block, in MXNet; use F.where, or"


class Flow(gluon.HybridBlock):
    """A function of an input and a square weight."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = self.params.get("weight", shape=(4, 4), init=mx.init.Xavier())
        self._function = function

    def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
        return self._function(F, x, weight)


def branch(F: Any, x: Any, weight: Any) -> Any:
    return F.contrib.cond(F.sum(x) > 0, lambda: F.tanh(F.dot(x, weight)), lambda: x * 2)


def loop(F: Any, x: Any, weight: Any) -> Any:
    def step(count: Any, state: Any) -> Any:
        return [], [count + 1, F.tanh(F.dot(state, weight))]

    return F.contrib.while_loop(lambda count, _: count < 3, step, [F.zeros((1,)), x], max_iterations=5)[1][1]


def flips(cond: Any, F: Any, x: Any, weight: Any) -> Any:
    """Branch on inputs, and on what a BlockGrad returns: no gradient is needed there."""
    y = F.dot(cond(F, F.sum(x) > 0, lambda: F.flip(x, axis=1), lambda: x), weight)
    fixed = F.BlockGrad(y)
    return y + F.tanh(cond(F, F.sum(fixed) > 0, lambda: fixed * 1, lambda: -fixed))


def by_where(F: Any, condition: Any, one: Any, other: Any) -> Any:
    return F.where(F.broadcast_like(F.reshape(condition, (1, 1)), one()), one(), other())


def between(function: Any) -> Any:
    return sequential(nn.Dense(4, in_units=4), Flow(function), nn.Dense(4, in_units=4))


def estimator_of(net: Any, loss: Any = L2) -> MultiEstimator:
    return MultiEstimator(net, one_loss_spec(loss), TrainerSpec(".*", "sgd", {"learning_rate": 0.05}))


@pytest.mark.parametrize(("name", "function"), [("cond", branch), ("while_loop", loop)])
def test_control_flow_trains_unless_it_is_hybridized(name: str, function: Any) -> None:
    """And evaluates in any case."""
    net, other = twins(lambda: between(function), BATCHES[0][0])
    estimator_of(net).fit(BATCHES, epochs=1, event_handlers=SILENT)
    trainer = trainer_of(other, options={"learning_rate": 0.05})
    train_by_hand(other, trainer, BATCHES, lambda net, x, t: L2(net(x), t))
    assert_same_parameters(net, other, rtol=1e-5, atol=1e-6)
    for part in (net[1], net):
        part.hybridize()
        stops(lambda: estimator_of(net).fit(BATCHES, epochs=1), SpecError, MESSAGE.format(name))
        figures = [estimator_of(each).evaluate(BATCHES, []) for each in (net, other)]
        assert figures[0] == pytest.approx(figures[1], rel=1e-5)


def test_control_flow_in_a_loss_and_where_no_gradient_is_needed() -> None:
    class Branching(gluon.loss.Loss):
        def hybrid_forward(self, F: Any, y: Any, t: Any) -> Any:
            return F.contrib.cond(F.sum(t) > 0, lambda: F.square(y - t), lambda: F.abs(y - t))

    loss = Branching(None, 0)
    loss.hybridize()
    net, other = twins(lambda: Flow(partial(flips, lambda F, *each: F.contrib.cond(*each))), BATCHES[0][0])
    stops(lambda: estimator_of(net, loss).fit(BATCHES, epochs=1), SpecError, MESSAGE.format("cond"))
    other._function = partial(flips, by_where)
    for each in (net, other):
        each.hybridize()
        estimator_of(each).fit(BATCHES, epochs=2, event_handlers=SILENT)
    assert_same_parameters(net, other, rtol=1e-5, atol=1e-6)


# ---- MXNet's NumPy interface -------------------------------------------------------------------------------

ACTIVE = "MXNet's NumPy interface is active (npx.set_np())"
USES: dict[str, Callable[[Any], Any]] = {
    "check": lambda estimator: estimator.check([arrays()]),
    "fit": lambda estimator: estimator.fit([arrays()], epochs=1),
    "predict": lambda estimator: estimator.predict(arrays()[0]),
}


def test_mxnets_numpy_interface_is_refused_and_its_arrays_are_converted() -> None:
    setup = new_setup()
    estimator = setup.make()
    mx.npx.set_np()
    try:
        initialised = new_setup()
        for use in (*(partial(use, estimator) for use in USES.values()), setup.make):
            with pytest.raises(SpecError) as raised:
                use()
            assert ACTIVE in str(raised.value) and "call npx.reset_np() first" in str(raised.value)
        batch = [mx.np.array(array) for array in arrays()]
    finally:
        mx.npx.reset_np()
    initialised.refused(SpecError, "net: the net was initialised with MXNet's NumPy interface")
    for use in USES.values():
        use(estimator)
    setup.but(data=[batch, arrays(), batch]).trains()
    predicted, expected = (estimator.predict(x)["digit"] for x in (batch[0], arrays()[0]))
    np.testing.assert_array_equal(predicted, expected)
