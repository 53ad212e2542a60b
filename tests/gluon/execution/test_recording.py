"""What a net does with arrays, recorded as a symbol: it computes the same, or the recording is refused."""

import copy
import random
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from multifit import SpecError, TrainerSpec
from multifit.gluon.compat import mx
from multifit.gluon.execution.network import Network
from multifit.gluon.execution.recorder import Recording, record
from multifit.gluon.precision import named_precision
from multifit.gluon.validation.dry_run import dry_run
from multifit.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import TWO_HEADS, Heads, PlainHeads, hybridized
from tests.common.specs import two_head_spec
from tests.engines import new_engine

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
    return re.sub(r"a graph: Net \(test_recording.py, line \d+\), ", "a graph: ", message)


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
    message = r'"parts\.0", a Reader \(test_recording\.py, line \d+\), reads numbers out of an array'
    with pytest.raises(SpecError, match=message):
        recorded(net, numbers(1))


BATCHES = in_batches(two_head_arrays(21).values(), 8)


class OnArrays(PlainHeads):
    """Two heads, which need the shape of an array; `scale` is a number that a handler may change."""

    scale = 2.0

    def forward(self, image: Any) -> Any:
        digit, size = [head(self.body(image)) for head in (self.digit, self.size)]
        return digit * self.scale, nd.broadcast_add(size, nd.array([[len(image)]]))


def on_arrays() -> Any:
    seed_everything(3)
    net = OnArrays(**TWO_HEADS)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


@pytest.fixture
def engine() -> Any:
    engine = new_engine(on_arrays(), two_head_spec(), TrainerSpec(".*", "sgd"))
    dry_run(engine, BATCHES[0])
    return engine


@pytest.mark.parametrize("weighted", [True, False])
def test_a_recorded_net_is_one_graph_with_its_losses(engine: Any, weighted: bool) -> None:
    stage, batch = engine.stages["train"], engine.splitter("train").split(BATCHES[1])
    assert stage.network.recorded and not stage.network.traced
    graph, _, given = stage.prepare(batch, engine.state)
    traced, result = graph.trace(batch.slots[0], weighted), stage.run(batch, engine.state)
    assert [value.tolist() for value in traced.constants.values()] == [[[8.0]]]
    values = {parameter.name: parameter.data() for parameter in engine.model.parameters.values()}
    values.update((variable, {**given, **batch.slots[0]}[name]) for variable, name in traced.inputs.items())
    values.update((name, nd.array(value)) for name, value in traced.constants.items())
    symbol = mx.sym.load_json(traced.symbol)
    outputs = mx.nd.CachedOp(symbol)(*[values[name] for name in symbol.list_inputs()])
    found = dict(zip(traced.outputs, outputs))
    for name, array in result.outputs[0].items():
        np.testing.assert_allclose(found[f"output.{name}"].asnumpy(), array.asnumpy(), rtol=1e-5)
    assert ("objective" in found) is weighted


def test_the_plan_says_that_another_engine_records_the_net(engine: Any) -> None:
    stage = engine.stages["train"]
    assert stage.describe().startswith("the net runs as it is")
    stage.network.precision = replace(named_precision("float32"), on_other_engine=True)
    expected = "the net, 2 losses and 1 metric are one graph, recorded for each form of batches"
    assert stage.describe().startswith(expected)


def test_the_form_of_batches_is_all_that_python_may_look_at(engine: Any) -> None:
    network, split = engine.stages["train"].network, engine.splitter("train").split
    one, same, smaller = (split(batch).slots[0] for batch in BATCHES)
    form = network.form(one)
    assert form == network.form(same) != network.form(smaller)
    assert form != network.form({"image": one["image"].astype("float16")})
    network.net.scale = 3.0
    assert form != network.form(one)


NOT_RECORDED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "the net, or a block in it, has hooks": (lambda net: net.digit.register_forward_hook(print), None),
    "the net is not hybridized": (lambda net: net.digit.hybridize(False), None),
    "the TaskSpec's forward= is not a graph": (lambda net: None, lambda net, slots: ()),
}  # fmt: skip


@pytest.mark.parametrize("why", NOT_RECORDED)
def test_nets_that_are_not_recorded(why: str) -> None:
    (change, forward), net = NOT_RECORDED[why], on_arrays()
    change(net)
    network = Network(net, two_head_spec(forward=forward), "train")
    assert network.obstacle is not None and network.obstacle[0] == why
    assert not network.recorded
    traced = Network(hybridized(Heads(**TWO_HEADS)), two_head_spec(), "train")
    assert traced.traced and traced.obstacle is None and not traced.recorded


def test_a_recorded_net_is_lowered_to_a_lower_precision() -> None:
    precision = replace(named_precision("bfloat16"), on_other_engine=True)
    slots = {"image": nd.ones((2, 6))}
    network = Network(on_arrays(), two_head_spec(), "train", precision=precision)
    _, problems = network.bind(slots)
    assert not problems and '"bfloat16"' in network.trace(slots).symbol
    assert network.precision_note == "; 6 operators of the net in bfloat16"

    none = Network(Net(lambda net, x: (x, x * 2)), two_head_spec(), "train", precision=precision)
    assert not none.bind(slots)[1]
    with pytest.raises(
        SpecError, match="cannot compute in bfloat16, as only .* do, and it has none of them; leave"
    ):
        none.trace(slots)
