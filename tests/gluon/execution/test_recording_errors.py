"""What cannot be recorded is refused, and leaves the net as it is."""

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import SpecError
from multifit.gluon.compat import mx
from multifit.gluon.execution.network import Network
from tests.common.specs import two_head_spec
from tests.gluon.execution.test_recording import SHAPE, Net, numbers, recorded

nd, nn = mx.nd, mx.gluon.nn
OWN = np.random.RandomState(0)
APART = nn.Dense(2, flatten=False, in_units=2)
APART.initialize()
APART.hybridize()


def catching(net: Any, x: Any) -> Any:
    try:
        return x * x.sum().asscalar()
    except Exception:
        return x


def writing(net: Any, x: Any) -> Any:
    mask = nd.zeros(SHAPE)
    mask[:, 1] = 1
    return x * mask


def within(scope: Any, net: Any, x: Any) -> Any:
    with scope:
        return x * 2


def counting(net: Any, x: Any) -> Any:
    net.calls += 1
    return x


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "asnumpy": (lambda net, x: nd.array(x.asnumpy()), "reads numbers out of an array, as asnumpy()"),
    "if": (lambda net, x: x if x.sum() > 0 else -x, "reads numbers out of an array"),
    "caught": (catching, "reads numbers out of an array"),
    "pickled": (lambda net, x: copy.deepcopy(x), "reads numbers out of an array"),
    "dlpack": (lambda net, x: nd.from_dlpack(x.to_dlpack_for_read()), "reads numbers out of an array"),
    "pause": (lambda net, x: within(mx.autograd.pause(), net, x), "changes autograd's mode; leave record"),
    "gradient": (lambda net, x: x.attach_grad() or x, "computes gradients, or attaches them; let a loss"),
    "another net": (lambda net, x: APART(x), "calls a graph of its own: a SymbolBlock or one that is not"),
    "in place": (lambda net, x: x.__iadd__(1), "writes into an array that it has used; compute a new one"),
    "part": (writing, "writes into an array that it has used"),
    "own array": (lambda net, x: nd.broadcast_add(x, net.array), "uses an array, of shape (2,), that comes"),
    "own output": (lambda net, x: net.array, "it uses an array, of shape (2,), that comes neither"),
    "shapes": (
        lambda net, x: nd.contrib.boolean_mask(x, x[:, 0, 0] > 0),
        "calls _contrib_boolean_mask, whose result has another shape for other numbers; use operators whose",
    ),
    "NumPy's": (lambda net, x: x * np.random.rand(), "draws random numbers with Python or NumPy; draw them"),
    "own generator": (lambda net, x: x * OWN.rand(), "it did something else when it was called again; leave"),
    "counter": (counting, "its forward pass changes calls; let a handler do that"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    APART(numbers(1))
    with pytest.raises(SpecError) as caught:
        recorded(Net(function), numbers(1))
    assert f"the net cannot be recorded as a graph: {message}" in plain(str(caught.value))
    assert str(caught.value).endswith('or use engine="mxnet"')


def plain(message: str) -> str:
    """Return a message without the place in the net."""
    return re.sub(r"a graph: Net \(test_recording_errors.py, line \d+\), ", "a graph: ", message)


def test_statistics_stay_where_a_recording_is_refused() -> None:
    net = Net(lambda net, x: net.norm(net.dense(x)).asnumpy())
    with mx.autograd.record(), pytest.raises(SpecError):
        recorded(net, numbers(1))
    assert not net.norm.running_mean.data().asnumpy().any()


def test_an_error_of_the_nets_own_is_told() -> None:
    def fail_later(net: Any, x: Any) -> Any:
        net.calls += 1
        return x[net.calls - 1], x[:, :1]

    network = Network(Net(fail_later), two_head_spec(), "train")
    slots = {"image": nd.ones((2, 6))}
    assert not network.bind(slots)[1]
    network.net.calls = 5
    with pytest.raises(IndexError, match=r"raised in the net's forward pass \(train\), which is recorded"):
        network.trace(slots)


def test_a_refusal_names_the_block_and_its_line() -> None:
    class Reader(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return x * x.sum().asscalar()

    net = Net(lambda net, x: net.parts(x))
    net.parts = nn.HybridSequential()
    net.parts.add(Reader())
    message = r'"parts\.0", a Reader \(test_recording_errors\.py, line \d+\), reads numbers out of an array'
    with pytest.raises(SpecError, match=message):
        recorded(net, numbers(1))
