"""Methods that compare the gradients of parameters: what they refuse."""

from typing import Any

import numpy as np
import pytest

from multifit import MultiEstimator, SpecError, TrainerError, TrainerSpec
from multifit.balance import UPGrad
from tests.common.compare import snapshot, twins
from tests.common.hand_loop import SILENT
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import Nested, three_tasks
from tests.common.specs import digit_spec
from tests.gluon.balance.test_parameters import BATCHES, fitted

from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip


def test_gradients_of_parameters_are_not_compared_while_they_are_accumulated() -> None:
    net, _ = twins(Nested, BATCHES[0][0])
    trainers = {
        "body": TrainerSpec("body.*", every=2, accumulate=True),
        "heads": TrainerSpec("(pair|digit|parity|size).*"),
    }
    estimator = MultiEstimator(hybridized(net), three_tasks(), trainers, balance=UPGrad(on="parameters"))
    before = snapshot(net)
    message = r'trainers\["body"\]: accumulates the gradients of 2 .*balance= compares .*on="features"'
    with pytest.raises(TrainerError, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=SILENT)
    np.testing.assert_equal(snapshot(net), before)


def dropped() -> Any:
    return Heads(body=sequential(nn.Dense(8), nn.Dropout(0.5)), digit=5, parity=1)


def sparse() -> Any:
    return Heads(body=nn.Embedding(100, 8, sparse_grad=True), digit=5, parity=1)


class Loops(gluon.HybridBlock):
    """A body with a loop, or a branch, of MXNet's."""

    def __init__(self, loop: Any) -> None:
        super().__init__()
        self.body, self.loop = nn.Dense(8, in_units=10), loop
        self.digit, self.parity = nn.Dense(5, in_units=8), nn.Dense(1, in_units=8)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.loop(F, self.body(image))
        return self.digit(features), self.parity(features)


def foreach(F: Any, x: Any) -> Any:
    return F.contrib.foreach(lambda row, state: (F.tanh(row), state), x, F.zeros((1,)))[0]


PASSED_ONCE = 'MXNet runs F.contrib.foreach backward only once; use on="features"'


ERRORS: dict[str, tuple[Any, str, Any, Any, str]] = {
    "foreach": (lambda: Loops(foreach), "parameters", digit_spec, [], PASSED_ONCE),
    "dropout": (
        dropped, "parameters", digit_spec, [],
        'is the identity in every backward pass but the first; use on="features", or in place of',
    ),
    "sparse": (sparse, "parameters", digit_spec, [], "sparse gradients are not compared"),
    "expression": (Nested, "(", three_tasks, [], 'balance: on="(" is not a regular expression'),
    "unknown": (Nested, "bodies", three_tasks, [], 'balance: on="bodies" matches no parameter'),
    "not shared": (Nested, "digit.*", three_tasks, [], 'on="digit.*" selects no parameter that tasks share'),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_compared_is_refused(name: str) -> None:
    make, on, declared, handlers, message = ERRORS[name]
    with pytest.raises(SpecError) as raised:
        fitted(hybridized(make()), UPGrad(on=on), spec=declared(), handlers=handlers)
    assert message in str(raised.value)
