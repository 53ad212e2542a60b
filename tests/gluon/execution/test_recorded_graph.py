"""Nets that are recorded: one graph with their losses."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from multifit import SpecError, TrainerSpec
from multifit.gluon.compat import mx
from multifit.gluon.execution.network import Network
from multifit.gluon.precision import named_precision
from multifit.gluon.validation.dry_run import dry_run
from multifit.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import TWO_HEADS, Heads, PlainHeads, hybridized
from tests.common.specs import two_head_spec
from tests.engines import new_engine
from tests.gluon.execution.test_recording import Net

nd = mx.nd
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
