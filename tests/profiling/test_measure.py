"""estimator.profile: whose time it is, and nothing that is not as it was."""

from __future__ import annotations

import os
import random
import stat
from typing import Any, Iterator

import numpy as np
import pytest

from multifit import (
    DataError,
    GradientNoise,
    LabelSmoothing,
    LossSpec,
    MetricSpec,
    MixUp,
    MultiEstimator,
    TaskSpec,
    TrainerError,
    TrainerSpec,
    UserCodeError,
    WeightAveraging,
)
from multifit.gluon import operator_times as profiler
from multifit.gluon.data.seeding import seed_everything
from multifit.profiling import Operator, Profile
from multifit.profiling.stopwatch import Stopwatch, part_times

import mxnet as mx  # isort: skip
from mxnet.gluon import nn

CE = mx.gluon.loss.SoftmaxCrossEntropyLoss()
CONTEXTS = [mx.cpu(0), mx.cpu(1)]
ACCURACY = {"acc": MetricSpec(mx.metric.Accuracy(), outputs="kind", labels="kind")}


class Clock:
    """Stands still but where somebody lets it go on, by milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, ms: float) -> None:
        self.now += ms / 1000


class Net(mx.gluon.HybridBlock):
    """A body with running statistics, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Dense(6, in_units=3), nn.BatchNorm(in_channels=6), nn.Activation("relu"))
        self.kind, self.place = nn.Dense(3, in_units=6), nn.Dense(1, in_units=6)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        h = self.body(x)
        return self.kind(h), self.place(h)


def made(contexts: Any = None, hybridized: bool = True) -> Net:
    seed_everything(1)
    net = Net()
    net.initialize(ctx=contexts or CONTEXTS[:1])
    if hybridized:
        net.hybridize()
    return net


def spec(**more: Any) -> TaskSpec:
    losses = {"kind": CE, "place": mx.gluon.loss.L2Loss()}
    usual = {"inputs": ["x"], "outputs": ["kind", "place"], "labels": ["kind", "place"]}
    return TaskSpec(**{**usual, "losses": losses, "metrics": ACCURACY, **more})


def batches(count: int = 4, size: int = 8) -> list[Any]:
    generator = np.random.RandomState(3)
    x = generator.randn(count, size, 3).astype("float32")
    return [(each, each.argmax(1).astype("float32"), each[:, :1]) for each in x]


class Slow:
    """Data in an order that depends on NumPy's and Python's random state, slowly made."""

    def __init__(self, clock: Clock | None = None, ms: float = 0.0) -> None:
        self.clock, self.ms = clock, ms

    def __iter__(self) -> Iterator[Any]:
        data = batches()
        np.random.shuffle(data)
        random.shuffle(data)
        for batch in data:
            if self.clock is not None:
                self.clock.work(self.ms)
            yield batch


def names(profile: Profile) -> list[str]:
    return [part.name for part in profile.parts]


# ---- whose time it is -----------------------------------------------------------------------------------


def test_each_part_gets_its_own_time() -> None:
    """With a clock that only they move: a loader, a metric, two handlers, one of them every second batch."""
    clock = Clock()

    class Watcher:
        """Works at both ends of a batch."""

        def batch_begin(self, estimator: Any) -> None:
            clock.work(1)

        def batch_end(self, estimator: Any) -> None:
            clock.work(2)

    class Now:
        """Works at the end of each second batch, and at the begin and end of all."""

        def train_begin(self, estimator: Any) -> None:
            clock.work(1000)

        train_end = train_begin

        def batch_end(self, estimator: Any) -> None:
            clock.work(10 * (estimator.state.step % 2))

    def error(labels: Any, outputs: Any) -> float:
        clock.work(4)
        return float(np.abs(labels - outputs).mean())

    metrics = {**ACCURACY, "error": MetricSpec(error, outputs="place", labels="place")}
    estimator = MultiEstimator(made(), spec(metrics=metrics))
    found = estimator.profile(Slow(clock, 7), 8, [Watcher(), Now()], clock, clock)
    expected = {"data/loader": 7, "figures": 4, "figures/error": 4, "handlers/Watcher": 3, "forward": 0}
    for name, ms in expected.items():
        part = found.part(name)
        assert part.ms == pytest.approx(ms) and part.quartiles == pytest.approx((ms, ms)), name
        assert part.python_ms == pytest.approx(ms) and np.median(part.in_training) == pytest.approx(ms)
        assert part.waits == pytest.approx(0)
    assert found.part("handlers/Now").mean == pytest.approx(5)
    assert found.part("handlers").mean == pytest.approx(8)
    assert found.wall == pytest.approx(7 + 4 + 3 + 5)
    assert names(found)[:3] == ["data", "data/loader", "data/placing"]
    assert all(len(part.times) == 8 for part in found.parts)
    assert found.advice[0].startswith("the loader takes 37% of a step")
    assert found.advice[1].startswith("Now takes 26% of a step")


def test_waiting_is_told_from_work() -> None:
    """Whoever waits does not work; a part within another one is its own."""
    clock, busy, queue = Clock(), Clock(), [0.0]

    def work(ms: float) -> None:
        clock.work(ms)
        busy.work(ms)

    def drain() -> None:
        clock.work(queue.pop())
        queue.append(0.0)

    def step(watch: Stopwatch) -> None:
        with watch("forward"):
            work(1)
            queue[0] += 10
            with watch("handlers", "Inner"):
                work(3)
            work(2)
        with watch("figures"):
            work(4)
            drain()
        watch.lap()

    drained, free = Stopwatch(clock, busy, drain), Stopwatch(clock, busy, lambda: None)
    step(drained)
    step(free)
    assert drained.laps[0][("forward",)] == pytest.approx([3, 13])
    assert drained.laps[0][("handlers", "Inner")] == pytest.approx([3, 3])
    assert drained.laps[0][("figures",)] == pytest.approx([4, 4])
    assert free.laps[0][("forward",)] == pytest.approx([3, 3])
    assert free.laps[0][("figures",)] == pytest.approx([4, 14])
    parts = {part.name: part for part in part_times(drained.laps, free.laps)}
    figures = parts["figures"]
    assert [figures.ms, figures.python_ms, figures.waits] == pytest.approx([4, 4, 10])
    assert list(parts) == ["data", "forward", "backward", "update", "figures", "handlers", "handlers/Inner"]


def test_the_part_times_a_real_step() -> None:
    trainers = {
        "body": TrainerSpec("body.*", "adam", clip_norm=1.0),
        "heads": TrainerSpec("(kind|place).*", "sgd"),
    }
    found = MultiEstimator(made(), spec(), trainers).profile(batches(), 12)
    assert names(found) == [
        "data", "data/loader", "data/placing", "forward", "forward/net", "forward/losses", "forward/figures",
        "backward", "update", "update/body", "update/heads", "figures", "handlers",
    ]  # fmt: skip
    pieces = [part for part in found.parts if part.name.startswith("forward/")]
    assert sum(piece.ms for piece in pieces) == pytest.approx(found.part("forward").ms)
    assert found.part("figures").ms == found.part("handlers").ms == 0
    assert found.wall > 0 and found.python > 0 and found.total > 0 and 0 <= found.idle <= 1
    assert (found.batches, found.samples, found.devices) == (12, 8, ("cpu(0)",))
    counts = {operator.name: operator.count for operator in found.operators}
    assert counts["FullyConnected"] == counts["_backward_FullyConnected"] == 3
    kinds = {operator.name: operator.kind for operator in found.operators}
    assert kinds["FullyConnected"] == "forward" and kinds["_backward_FullyConnected"] == "backward"
    assert kinds["DeleteVariable"] == "engine" and "update" in kinds.values()
    assert not found.hybridizable and "one graph" in found.how


def joint(predictions: Any, labels: Any) -> Any:
    return [((p - t) ** 2).mean() for p, t in zip(predictions, labels)]


SPECS = {
    "plain": {},
    "no metric": {"metrics": {}},
    "batch scope": {
        "losses": {"kind": CE, "place": LossSpec(joint, outputs="place", labels="place", scope="batch")}
    },
    "evaluate": {
        "evaluate": TaskSpec(inputs=["x"], outputs=["kind", ...], labels=["kind", "place"], unused=["place"])
    },
}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("hybridized", [True, False])
@pytest.mark.parametrize("contexts", [CONTEXTS[:1], CONTEXTS], ids=["one", "two"])
def test_every_kind_of_step_can_be_profiled(kind: str, hybridized: bool, contexts: Any) -> None:
    estimator = MultiEstimator(made(contexts, hybridized), spec(**SPECS[kind]), context=contexts)
    found = estimator.profile(batches(), 2)
    assert found.hybridizable is not hybridized and len(found.devices) == len(contexts)
    assert ("forward/figures" in names(found)) is (kind != "no metric")
    assert {"forward/net", "forward/losses"} < set(names(found)) and found.operators


def test_a_net_that_cannot_be_hybridized_is_not_told_to_be() -> None:
    class Plain(mx.gluon.Block):
        """Works on arrays."""

        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Any) -> Any:
            return self.net(x)

    net = Plain()
    net.initialize()
    assert not MultiEstimator(net, spec()).profile(batches(), 1).hybridizable


# ---- handlers -------------------------------------------------------------------------------------------


def test_handlers_that_change_what_flows_are_on_the_watch() -> None:
    class Asks:
        """Changes the outputs; must not be asked more often than there are batches."""

        outputs = steps = 0

        def change_outputs(self, estimator: Any, outputs: Any) -> None:
            Asks.outputs += 1

        def batch_end(self, estimator: Any) -> None:
            Asks.steps += 1

    handlers = [MixUp(), LabelSmoothing(0.1), GradientNoise(), Asks(), WeightAveraging("ema")]
    estimator = MultiEstimator(made(), spec(), context=CONTEXTS[:1])
    before = values(estimator)
    found = estimator.profile(batches(), 4, handlers)
    assert {f"handlers/{type(handler).__name__}" for handler in handlers} < set(names(found))
    assert found.part("handlers/MixUp").ms > 0 and Asks.outputs == Asks.steps > 0
    assert "forward/net" not in names(found)
    same(before, values(estimator))


def test_a_handler_that_fails_is_named_and_nothing_stays() -> None:
    class Fails:
        """Fails after some batches."""

        def batch_end(self, estimator: Any) -> None:
            if estimator.state.step == 3:
                raise RuntimeError("it is tired")

    estimator = MultiEstimator(made(), spec())
    before, state = values(estimator), vars(estimator.state).copy()
    with pytest.raises(
        UserCodeError, match="^profiling, batch 3: Fails failed in batch_end .*: it is tired$"
    ):
        estimator.profile(batches(), 5, Fails())
    same(before, values(estimator))
    assert vars(estimator.state) == state and not estimator._handlers.running


# ---- nothing stays --------------------------------------------------------------------------------------


def values(estimator: Any) -> list[np.ndarray]:
    found = [a for p in estimator._engine.model.parameters.values() for a in (*p._data, *(p._grad or ()))]
    return [array.asnumpy() for array in found]


def same(then: list[np.ndarray], now: list[np.ndarray]) -> None:
    for one, other in zip(then, now):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("contexts", [CONTEXTS[:1], CONTEXTS], ids=["one", "two"])
@pytest.mark.parametrize("begun", [False, True])
def test_training_goes_on_as_if_nothing_had_been(contexts: Any, begun: bool) -> None:
    """Bit for bit: parameters, gradients, trainers' states, generators, figures, metrics, history."""
    ends = []
    for look in (False, True):
        host = mx.metric.create(lambda label, pred: float(np.abs(label - pred).mean()))
        metrics = {**ACCURACY, "error": MetricSpec(host, outputs="place", labels="place")}
        trainers = {
            "body": TrainerSpec("body.*", "adam", clip_norm=1.0),
            "heads": TrainerSpec("(kind|place).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        }
        estimator = MultiEstimator(made(contexts), spec(metrics=metrics), trainers, context=contexts)
        histories = [estimator.fit(Slow(), epochs=2, event_handlers=[])] if begun else []
        if look:
            if not begun:
                estimator.check(Slow())
            history, plan, state = estimator.history, estimator.plan, vars(estimator.state).copy()
            figures, sums = estimator.figures(), (host.sum_metric, host.num_inst)
            stages, seen = estimator._engine.stages, estimator._engine.signatures
            before, rates = values(estimator), estimator.learning_rates()
            estimator.profile(Slow(), 5)
            same(before, values(estimator))
            assert estimator.history is history and estimator.plan is plan
            assert vars(estimator.state) == state and estimator.learning_rates() == rates
            assert (host.sum_metric, host.num_inst) == sums and estimator.figures() == figures
            assert estimator._engine.stages is stages and estimator._engine.signatures is seen
        histories.append(estimator.fit(Slow(), epochs=2, event_handlers=[]))
        ends.append((values(estimator), histories, np.random.rand(), random.random()))
    same(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]


def test_no_file_is_left_and_no_device_is_lost(tmp_path: Any, monkeypatch: Any) -> None:
    """MXNet deletes whatever has the name of its trace."""
    names_of_traces = []
    set_config = mx.profiler.set_config
    monkeypatch.setattr(
        mx.profiler,
        "set_config",
        lambda **options: (names_of_traces.append(options["filename"]), set_config(**options)),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    MultiEstimator(made(), spec()).profile(batches(), 2)
    assert os.listdir(tmp_path) == [] and stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert names_of_traces and all(
        os.path.dirname(name).startswith(str(tmp_path)) for name in names_of_traces
    )


def test_without_mxnets_profiler_the_rest_is_there(monkeypatch: Any) -> None:
    monkeypatch.setitem(profiler.ON, "profile_api", "perhaps")  # which MXNet refuses
    found = MultiEstimator(made(), spec()).profile(batches(), 2)
    assert found.operators == () and found.wall > 0
    assert "no operators are shown: MXNet's profiler cannot be used" in found.summary()


# ---- what cannot be profiled ----------------------------------------------------------------------------


def test_data_that_cannot_be_used() -> None:
    class Once:
        """Yields nothing the second time, and does not say so."""

        times = 0

        def __iter__(self) -> Iterator[Any]:
            self.times += 1
            return iter(batches() if self.times < 3 else [])

    estimator = MultiEstimator(made(), spec())
    for data, message in (
        ([], "train_data is empty"),
        (iter(batches()), "train_data is a list_iterator, which can be read only once"),
        (Once(), "train_data yields no batch in epoch 2, though it did before"),
        ([batches()[0][:2]], "place"),
    ):
        with pytest.raises(DataError, match=message):
            estimator.profile(data, 8)


@pytest.mark.parametrize("count", [0, -1, 2.5, "many"])
def test_bad_numbers_of_batches(count: Any) -> None:
    with pytest.raises(ValueError, match="profile: batches"):
        MultiEstimator(made(), spec()).profile(batches(), count)


def test_trainers_on_servers() -> None:
    estimator = MultiEstimator(made(), spec())
    estimator.check(batches())
    estimator.trainers["trainer"]._distributed = True
    with pytest.raises(TrainerError, match='profile: trainer "trainer" is distributed'):
        estimator.profile(batches(), 2)


def test_not_in_the_middle_of_a_fit() -> None:
    class Asks:
        """Wants to know too late."""

        def batch_end(self, estimator: Any) -> None:
            estimator.profile(batches(), 2)

    with pytest.raises(Exception, match="profile was called by an event handler"):
        MultiEstimator(made(), spec()).fit(batches(), epochs=1, event_handlers=[Asks()])


def test_operators_that_run_in_a_row_have_a_name_that_fits() -> None:
    assert profiler._short_name("FullyConnected") == "FullyConnected"
    assert profiler._short_name("Activation,Pooling,Flatten") == "Activation and 2 more in a row"
    name = profiler._short_name("add_n,_backward_pick,_backward_log_softm")
    assert name == "_backward_pick and 2 more in a row"
    assert Operator(name, 1.0, 0.1).kind == "backward"
