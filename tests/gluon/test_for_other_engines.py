"""What MXNet's side hands to another engine: graphs, numbers of updates, and sums that are fetched."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, TrainerSpec
from multifit.gluon.compat import mx
from multifit.gluon.data.arrays import new_array, shared
from multifit.gluon.data.batch import Batch
from multifit.gluon.engine import Engine
from multifit.gluon.execution.carried_state import CarriedState
from multifit.gluon.execution.graph_cut import SAMPLES, WEIGHTS, TracedGraph
from multifit.gluon.execution.stage import FEW
from multifit.gluon.model.model import Model
from multifit.gluon.model.model_trainers import ModelTrainers
from multifit.gluon.optim.gradients import pending_gradients, set_pending
from multifit.gluon.optim.numbers import UpdateNumbers, set_values, values_of
from multifit.gluon.snapshot.figures import save_figures
from multifit.gluon.steps.train_step import TrainStep
from multifit.gluon.validation.dry_run import dry_run
from multifit.seeding import SEEDERS, seed_everything
from multifit.state import RunState
from tests.common.data import in_batches, two_head_arrays
from tests.common.language import STATE
from tests.common.nets import TWO_HEADS, PlainHeads, as_tuple, two_heads
from tests.common.specs import CE, L2, two_head_spec
from tests.engines import new_engine

BATCHES = in_batches(two_head_arrays(21).values(), 8)


@pytest.fixture
def engine() -> Any:
    trainers = TrainerSpec(".*", "sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01})
    engine = new_engine(two_heads("hybridized"), two_head_spec(), trainers)
    dry_run(engine, BATCHES[0])
    return engine


def computed(traced: TracedGraph, engine: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Run a traced graph with MXNet."""
    symbol = mx.sym.load_json(traced.symbol)
    values = {p.name: p.data() for p in engine.model.parameters.values()}
    values.update({variable: given[name] for variable, name in traced.inputs.items()})
    with mx.autograd.pause():
        outputs = mx.nd.CachedOp(symbol)(*[values[name] for name in symbol.list_inputs()])
    return dict(zip(traced.outputs, outputs if isinstance(outputs, list) else [outputs]))


@pytest.mark.parametrize(
    ("name", "batch"), [("train", BATCHES[1]), ("evaluate", BATCHES[2])], ids=["train", "evaluate"]
)
def test_the_graph_of_a_step_can_run_on_another_engine(engine: Any, name: str, batch: Any) -> None:
    training = name == "train"
    stage, split = engine.stages[name], engine.splitter(name).split(batch)
    if not training:
        stage.network.bind(split.slots[0])
    graph, scale, constants = stage.prepare(split, engine.state)
    assert stage.figures.sums.batches == (1 if training else 0)  # as after the check
    traced = graph.trace(split.slots[0], weighted=training)
    assert set(constants) == ({SAMPLES, WEIGHTS} if training else {SAMPLES})
    given = {**constants, **split.slots[0]}
    values, result = computed(traced, engine, given), stage.run(split, engine.state)
    for output, array in result.outputs[0].items():
        np.testing.assert_allclose(values[f"output.{output}"].asnumpy(), array.asnumpy(), rtol=1e-5)
    for part, array in result.parts[0].items():
        np.testing.assert_allclose(values[f"part.{part}"].asnumpy(), array.asnumpy(), rtol=1e-5)
    assert ("objective" in values) is training
    assert all(scale.norms[term.key] for term in engine.spec.terms)


def test_a_form_of_batches_that_is_new_runs_once_and_changes_nothing(engine: Any) -> None:
    stage = engine.stages["train"]
    small = engine.splitter("train").split([array[:1] for array in BATCHES[0]])
    before = {name: value.copy() for name, value in values_of(engine.model.parameters).items()}
    batches = stage.figures.sums.batches
    assert stage.prepare(small).graph is stage.prepare(small).graph
    assert stage.figures.sums.batches == batches
    for name, value in values_of(engine.model.parameters).items():
        np.testing.assert_array_equal(value, before[name])


def of_one_size(digit: Any, size: Any) -> Any:
    """Return outputs as they are, of 21 samples or of one."""
    return digit, size if len(size) == 1 else size.reshape((21, -1))


@pytest.mark.parametrize(("form", "expected"), [(as_tuple, [FEW]), (of_one_size, [FEW, 21])])
def test_a_few_samples_show_what_net_and_losses_return(form: Any, expected: list[int]) -> None:
    """A batch may be large, and MXNet runs on the CPU; but a net may take batches of one size only."""
    engine = new_engine(PlainHeads(form, **TWO_HEADS), two_head_spec(), TrainerSpec(".*"))
    one, whole = ([array[:size] for array in two_head_arrays(21).values()] for size in (1, 21))
    dry_run(engine, one)
    stage, split = engine.stages["train"], engine.splitter("train").split
    engine.model.net.calls.clear()
    graph = stage.prepare(split(whole)).graph
    assert [samples for samples, _ in engine.model.net.calls] == expected
    assert graph is stage.prepare(split(whole)).graph


def test_a_normalizer_of_0_is_seen() -> None:
    by = {"digit": lambda slots: slots["digit"] * 0, "size": lambda slots: 0.0}
    losses = {name: LossSpec(fn, normalize_by=by[name]) for name, fn in (("digit", CE), ("size", L2))}
    engine = new_engine(two_heads("hybridized"), two_head_spec(losses=losses), TrainerSpec(".*"))
    dry_run(engine, BATCHES[0])
    scale = engine.stages["train"].prepare(engine.splitter("train").split(BATCHES[0])).scale
    assert not any(scale.norms[term.key] for term in engine.spec.terms)


def test_the_net_alone_can_run_on_another_engine(engine: Any) -> None:
    network = engine.stages["train"].network
    slots = engine.splitter("train").split(BATCHES[1]).slots[0]
    values = computed(network.trace(slots), engine, slots)
    for name, array in network(slots).items():
        np.testing.assert_allclose(values[name].asnumpy(), array.asnumpy(), rtol=1e-5)


def test_numbers_of_updates_are_those_of_the_trainer(engine: Any) -> None:
    handle = engine.trainers.get()["trainer"]
    parameters = [engine.model.parameters[name] for name in ("digit.bias", "body.weight")]
    parameters[1].lr_mult, parameters[0].wd_mult = 0.5, 0.0
    numbers = UpdateNumbers(handle, parameters)
    assert numbers.kind == "sgd" and numbers.states() == [None, None]
    assert numbers.count([0, 1]) == ([0.1, 0.05], [0.0, 0.01], [1, 1])
    assert numbers.count([1]) == ([0.05], [0.01], [2])
    velocity = np.ones(parameters[1].shape, "float32")
    numbers.set_states([1], [velocity])
    assert numbers.states()[0] is None
    np.testing.assert_array_equal(numbers.states()[1], velocity)
    TrainStep(engine)(BATCHES[1])  # MXNet goes on from them
    assert (numbers.states()[1] != velocity).any() and numbers.options is handle.optimizer


def test_states_of_several_arrays() -> None:
    engine = new_engine(two_heads("hybridized"), two_head_spec(), TrainerSpec(".*", "adam"))
    dry_run(engine, BATCHES[0])
    TrainStep(engine)(BATCHES[0])
    numbers = UpdateNumbers(engine.trainers.get()["trainer"], list(engine.model.parameters.values()))
    states = numbers.states()
    numbers.set_states(range(len(states)), states)
    for one, other in zip(states, numbers.states()):
        assert isinstance(one, tuple) and len(one) == 2
        np.testing.assert_array_equal(one, other)


def test_values_can_be_read_and_set(engine: Any) -> None:
    values = {name: value + 1 for name, value in values_of(engine.model.parameters).items()}
    set_values(engine.model.parameters, values)
    for name, value in values_of(engine.model.parameters).items():
        np.testing.assert_array_equal(value, values[name])
    array = new_array(np.arange(3, dtype="int64"))
    assert array.dtype == np.int64 and array.context == mx.cpu()


def test_values_can_be_set_while_something_is_recorded(engine: Any) -> None:
    values = {name: value.copy() for name, value in values_of(engine.model.parameters).items()}
    weight = engine.model.parameters["body.weight"].data()
    with mx.autograd.record():
        total = mx.nd.sum(weight * weight)
        set_values(engine.model.parameters, values)
    total.backward()
    np.testing.assert_allclose(weight.grad.asnumpy(), 2 * values["body.weight"], rtol=1e-6)


def test_gradients_that_no_trainer_has_used_can_be_read_and_set(engine: Any) -> None:
    parameters = engine.model.parameters
    parameters["size.bias"].grad_req = "null"
    assert pending_gradients(parameters) == {}
    engine.stages["train"].run(engine.splitter("train").split(BATCHES[0])).objectives[0].backward()
    computed = pending_gradients(parameters)
    assert set(computed) == set(parameters) - {"size.bias"}
    set_pending(parameters, {"body.weight": computed["body.weight"] + 1})
    (name, gradient), *others = pending_gradients(parameters).items()
    np.testing.assert_array_equal(gradient, computed["body.weight"] + 1)
    assert name == "body.weight" and not others


@pytest.mark.usefixtures("float16_activations")
def test_casts_to_a_lower_precision_are_a_part_of_the_graph() -> None:
    model = Model(two_heads("hybridized"), two_head_spec(), [mx.cpu()], None, "float16", print)
    engine = Engine(model, ModelTrainers(None, (), model, print), two_head_spec(), RunState(), print)
    dry_run(engine, BATCHES[0])
    stage, batch = engine.stages["train"], engine.splitter("train").split(BATCHES[0])
    with stage.recording():
        symbol = stage.prepare(batch).graph.trace(batch.slots[0], weighted=True).symbol
    assert '"float16"' in symbol


class OtherEngineSums:
    """Sums of another engine, which are fetched once."""

    def __init__(self, figures: Any) -> None:
        self.figures, self.calls = figures, list[str]()

    def fetch(self) -> None:
        self.calls.append("fetch")
        self.figures.sums.samples += 1

    def clear(self) -> None:
        self.calls.append("clear")


def test_sums_of_another_engine_are_fetched_before_figures_are_read(engine: Any) -> None:
    figures = engine.stages["train"].figures
    other = figures.other_engine_sums = OtherEngineSums(figures)
    figures.read()
    save_figures(figures)
    figures.reset()
    assert other.calls == ["fetch", "fetch", "clear"]


class OtherEngineState:
    """The state of a language model that another engine has."""

    def __init__(self, carried: CarriedState, value: float) -> None:
        self._carried, self.state = carried, [{name: mx.nd.full((1, 4, 5), value) for name in STATE}]

    def fetch(self) -> None:
        if self.state:
            self._carried.load(self.state)

    def clear(self) -> None:
        self.state = []


def test_the_state_of_another_engine_is_saved_and_begun_anew() -> None:
    carried = CarriedState(STATE, [mx.cpu()], "float32")
    batch = Batch(None, 4, [mx.cpu()], [{}], [4])
    carried.other_engine_state = OtherEngineState(carried, 3.0)
    (state,) = carried.state()
    assert {name: array.sum().asscalar() for name, array in state.items()} == dict.fromkeys(STATE, 60.0)
    carried.fill_in(batch)
    assert all(array.asnumpy().all() for array in batch.slots[0].values())
    carried.other_engine_state = OtherEngineState(carried, 3.0)
    carried.reset()
    assert carried.state() == []


def test_generators_of_other_engines_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr("multifit.seeding.SEEDERS", [*SEEDERS, seeds.append])
    seed_everything(7)
    assert seeds == [7]


def test_dense_arrays_share_their_memory() -> None:
    assert type(shared(mx.nd.zeros((2, 3)))).__name__ == "PyCapsule"
    for other in (np.zeros(2), mx.nd.zeros((2, 3)).tostype("csr"), mx.nd.zeros(2, dtype="bool"), None):
        assert shared(other) is None
