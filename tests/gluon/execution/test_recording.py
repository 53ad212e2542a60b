"""What a net does with arrays, recorded as a symbol: it computes the same, or the recording is refused."""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import SpecError
from multifit.gluon.compat import mx
from multifit.gluon.execution.recorder import Recording, record
from tests.common.nets import hybridized

nd, nn = mx.nd, mx.gluon.nn
SHAPE = (3, 4, 2)


class Net(mx.gluon.Block):
    """Calls a function with itself and an array; some have a layer, or a number, of the net's."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function, self.calls, self.rate = function, 0, 0.5
        with self.name_scope():
            self.dense = nn.Dense(4, flatten=False, in_units=2)
            self.norm = nn.BatchNorm(in_channels=4)
            self.drop = nn.Dropout(0.5)
            self.cell = mx.gluon.rnn.GRUCell(3, input_size=2)
            self.recurrent = mx.gluon.rnn.LSTM(3, input_size=2)
            self.table = self.params.get_constant("table", nd.array([[1.0, 2.0]]))
        self.array = nd.ones(2)
        self.initialize(mx.init.Normal(0.5))
        self.hybridize()
        self.dense(nd.ones(SHAPE))  # it has a graph of its own

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def recorded(net: Any, *arrays: Any) -> Recording:
    def call(*each: Any) -> dict[str, Any]:
        out = net(*each)
        out = out if isinstance(out, (list, tuple)) else [out]
        return {"out": out[0], **dict(enumerate(out[1:]))}

    return record(net, call, [mx.sym.var(f"x{i}") for i in range(len(arrays))], arrays)


def computed(recording: Recording, net: Any, *arrays: Any) -> list[Any]:
    """Run a recording with MXNet."""
    symbol = mx.sym.Group(list(recording.outputs.values()))
    values = {parameter.name: parameter.data() for parameter in net.collect_params().values()}
    values.update((name, nd.array(value, dtype=value.dtype)) for name, value in recording.constants.items())
    values.update((f"x{i}", array) for i, array in enumerate(arrays))
    outputs = mx.nd.CachedOp(symbol)(*[values[name] for name in symbol.list_inputs()])
    return list(outputs) if isinstance(outputs, list) else [outputs]


def numbers(seed: int) -> Any:
    return nd.array(np.random.RandomState(seed).randn(*SHAPE))


# ---- what is recorded --------------------------------------------------------------------------------------


def stepwise(net: Any, x: Any) -> Any:
    state, outputs = net.cell.begin_state(batch_size=x.shape[0]), []
    for i in range(x.shape[1]):
        out, state = net.cell(x[:, i], state)
        outputs.append(out)
    return nd.stack(*outputs, axis=1)


def with_states(net: Any, x: Any) -> Any:
    out, states = net.recurrent(x, net.recurrent.begin_state(x.shape[1]))
    return [out, *states]


def masked(net: Any, x: Any) -> Any:
    mask = nd.arange(x.shape[1]) < nd.array([[1], [2], [4]])
    return (
        nd.broadcast_mul(x, mask.expand_dims(2)) + nd.full((1, 1, 2), 3) - nd.ones_like(x) * nd.zeros(SHAPE)
    )


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "layers": lambda net, x: net.norm(net.dense(x)).relu(),
    "a recurrent layer": lambda net, x: net.recurrent(x),
    "states": with_states,
    "a cell, step by step": stepwise,
    "an unrolled cell": lambda net, x: net.cell.unroll(x.shape[1], x, merge_outputs=True)[0],
    "masks and numbers": masked,
    "indices": lambda net, x: [
        x[0], x[-1], x[1:], x[:-1], x[:, 1], x[1, 2], x[0, 1, 1], x[1:3, :2], x[0:1, 0:1], x[:, None], x[::2],
        x[[0, 2]], x[nd.array([0, 1])], x.T[0]],
    "shapes": lambda net, x: [
        x.reshape(-1), x.reshape(0, -1), x.reshape((4, -1)), x.reshape(shape=(-3, 0)),
        x.reshape((-1, 0), reverse=True), x.expand_dims(0).squeeze(), x.flatten(), x.swapaxes(0, 1)],
    "types": lambda net, x: [
        x.astype("int32").astype("float64"), x.copy(), x.as_in_context(mx.cpu()), nd.array(x), x == 1, -x],
    "a constant": lambda net, x: nd.broadcast_add(x, net.table.data()),
    "pieces": lambda net, x: [*nd.split(x, 2, axis=1), nd.concat(x, x, dim=2), nd.add_n(x, x, x)],
    "what is detached": lambda net, x: x * x.detach(),
    "Python's branches": lambda net, x: x * net.rate if len(x) > 2 and mx.autograd.is_training() else x * 2,
    "a loop of MXNet's": lambda net, x: nd.contrib.foreach(lambda row, s: (row + s, s + row), x, x[0])[0],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "training"),
    [*((name, True) for name in FUNCTIONS), ("layers", False), ("Python's branches", False)],
)
def test_a_recording_computes_other_numbers_as_the_net_does(name: str, training: bool) -> None:
    net, x = Net(FUNCTIONS[name]), numbers(2)
    with mx.autograd.record(training):
        recording = recorded(net, numbers(1))
    x.attach_grad()
    gradients = []
    for run in (net, lambda x: computed(recording, net, x)):
        with mx.autograd.record(training):
            outputs = run(x)
            outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            total = nd.add_n(*[out.astype("float32").square().sum() for out in outputs])
        total.backward()
        gradients.append((x.grad.copy(), *[p.grad().copy() for p in net.dense.collect_params().values()]))
        if len(gradients) == 1:
            expected = outputs
    assert len(expected) == len(outputs)
    for one, other in zip(expected, outputs):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), rtol=1e-5, atol=1e-6)
    for one, other in zip(*gradients):
        np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), rtol=1e-5, atol=1e-5)


def test_random_numbers_are_drawn_by_operators() -> None:
    net = Net(lambda net, x: net.drop(x) + nd.random.normal(shape=(2,)) + nd.random.uniform_like(x))
    graph = recorded(net, numbers(1)).outputs["out"].tojson()
    assert all(f'"{name}"' in graph for name in ("Dropout", "_random_normal", "_random_uniform_like"))


def test_the_net_stays_as_it_is() -> None:
    net = Net(FUNCTIONS["layers"])
    graph, x, invoke = net.dense._cached_op, numbers(1), mx.nd.register._imperative_invoke
    reshape, slices = mx.nd.NDArray.reshape, vars(mx.nd.NDArray)["_basic_indexing_slice_is_contiguous"]
    with mx.autograd.record():
        recorded(net, x)
    assert not net.norm.running_mean.data().asnumpy().any()
    assert net.dense._active and net.dense._cached_op is graph
    with pytest.raises(SpecError):
        recorded(Net(lambda net, x: x.asnumpy()), x)
    assert mx.nd.register._imperative_invoke is invoke and mx.nd.NDArray.reshape is reshape
    assert type(vars(mx.nd.NDArray)["_basic_indexing_slice_is_contiguous"]) is type(slices)
    x[:, 1:] = 3.0
    assert x.asnumpy().shape == SHAPE


def test_an_input_may_be_missing_and_another_be_given_twice() -> None:
    class Several(mx.gluon.HybridBlock):
        def forward(self, x: Any, nothing: Any, y: Any) -> Any:
            return x - 2 * y if nothing is None else nothing

    net, x, y = hybridized(Several()), numbers(1), numbers(2)
    symbols = [mx.sym.var("x0"), None, mx.sym.var("x1")]
    recording = record(net, lambda *each: {"out": net(*each)}, symbols, [x, None, x])
    np.testing.assert_array_equal(computed(recording, net, x, y)[0].asnumpy(), (x - 2 * y).asnumpy())


def test_another_thread_computes_meanwhile() -> None:
    found: list[float] = []

    def aside(net: Any, x: Any) -> Any:
        thread = threading.Thread(
            target=lambda: found.extend([nd.ones((2, 2)).reshape(-1)[1].asscalar(), random.random()])
        )
        thread.start()
        thread.join()
        return x * 2

    assert "ones" not in recorded(Net(aside), numbers(1)).outputs["out"].tojson()
    assert len(found) == 4 and found[0] == found[2] == 1.0
