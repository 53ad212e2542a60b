"""estimator.profile: the times of a step's parts; tests/gluon/test_trial_run.py tests what it preserves."""

import os
import stat
from collections.abc import Iterator
from typing import Any

import pytest

from multifit import (
    DataError,
    GradientNoise,
    LabelSmoothing,
    MetricSpec,
    MixUp,
    MultiEstimator,
    TaskSpec,
    TrainerSpec,
    WeightAveraging,
)
from multifit.estimator.profiling import Operator, Part, Profile, Stopwatch
from multifit.gluon import engine as profiler
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import ONE, TWO
from tests.common.handlers import handler
from tests.common.nets import TWO_HEADS, Heads, hybridized, normed_heads, sequential, two_heads
from tests.common.specs import two_head_spec

import mxnet as mx  # isort: skip
from mxnet.gluon import nn

TRAINERS = {
    "body": TrainerSpec("body.*", "adam", clip_norm=1.0),
    "heads": TrainerSpec("(digit|size).*", "sgd"),
}


class Clock:
    """Advances only where it is told to, by milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, ms: float) -> None:
        self.now += ms / 1000


def make_estimator(net=None, contexts=ONE, trainers=None, **changes):
    net = two_heads("hybridized") if net is None else net
    net.initialize(ctx=contexts)
    return MultiEstimator(net, two_head_spec(**changes), trainers, contexts)


def batches(count: int = 4) -> list[Any]:
    return in_batches(two_head_arrays(8 * count).values())


def names(profile: Profile) -> list[str]:
    return [part.name for part in profile.parts]


def test_each_part_gets_its_own_time() -> None:
    """A loader, a metric and two handlers, one of them every second batch, advance the clock."""
    clock = Clock()

    both_ends = {"batch_begin": lambda est: clock.work(1), "batch_end": lambda est: clock.work(2)}
    watcher = handler("Watcher", **both_ends)
    often = {"train_begin": lambda est: clock.work(1000), "train_end": lambda est: clock.work(1000)}
    now = handler("Now", **often, batch_end=lambda est: clock.work(10 * (est.state.step % 2)))

    class Slow:
        """Data that takes long to load."""

        def __iter__(self) -> Iterator[Any]:
            for batch in batches():
                clock.work(7)
                yield batch

    class Own(mx.metric.EvalMetric):
        def update(self, labels: Any, preds: Any) -> None:
            clock.work(4)

    metrics = {**two_head_spec().metrics, "error": MetricSpec(Own("error"), "size", "size")}
    profile = make_estimator(metrics=metrics).profile(Slow(), 8, [watcher, now], clock)
    ms = {"data/loader": 7, "metrics/error": 4, "metrics": 4, "handlers/Watcher": 3, "forward": 0, "other": 0}
    assert {name: profile.ms(name) for name in ms} == pytest.approx(ms)
    means = {part.name: part.mean for part in profile.parts}
    assert means["handlers/Now"] == pytest.approx(5)
    assert profile.wall == pytest.approx(7 + 4 + 3 + 5) == pytest.approx(sum(means.values()))
    assert names(profile)[:3] == ["data/loader", "data/placing", "forward"]


def test_parts_within_parts_are_not_counted_twice() -> None:
    """Work of the device belongs to the part that began it."""
    clock, queue = Clock(), [0.0]

    def drain() -> None:
        clock.work(queue.pop())
        queue.append(0.0)

    watch = Stopwatch(clock, drain)
    with watch("forward"):
        clock.work(100)  # it does not measure yet
    watch.start()
    clock.work(5)
    with watch("forward"):
        clock.work(1)
        queue[0] += 10
        with watch("handlers/Inner"):
            clock.work(3)
        clock.work(2)
    watch.lap()
    assert watch.stop() == [pytest.approx({"other": 5, "forward": 13, "handlers/Inner": 3})]


def test_the_parts_of_a_real_step() -> None:
    # MXNet runs a layer and its activation as one operator, unless something is between them
    body = sequential(nn.Dense(6), nn.BatchNorm(), nn.Activation("relu"))
    net = hybridized(Heads(body=body, **TWO_HEADS))
    profile = make_estimator(net, trainers=TRAINERS).profile(batches(), 12)
    assert names(profile) == [
        "data/loader", "data/placing", "forward", "backward", "update/body", "update/heads", "other",
    ]  # fmt: skip
    assert profile.wall > 0 and profile.ms("handlers") == 0 and "one graph" in profile.how
    assert (profile.batches, profile.samples, profile.devices) == (12, 8, ("cpu(0)",))
    counts = {operator.name: operator.count for operator in profile.operators}
    # the fourth one looks for NaN in the inputs
    assert (counts["FullyConnected"], counts["_backward_FullyConnected"]) == (4, 3)


def test_the_table_adds_up() -> None:
    parts = (Part("forward", 3.0, 3.5), Part("backward", 6.0, 6.0), Part("handlers/Rare", 0.0, 1.5))
    operators = (Operator("Convolution", 4, 6.0), Operator("Pooling", 2, 1.0), Operator("add_n", 1, 1.0))
    profile = Profile(8.0, parts, operators, 1, 64, ("cpu(0)",), "all is one graph")
    lines = profile.summary(operators=1).splitlines()
    assert lines[:2] == ["a step of 64 samples on cpu(0) takes 8 ms (1 batch)", "all is one graph"]
    rows = [line.split("  ") for line in lines[5:]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["forward", "3.000", "33%", "3.500"], ["backward", "6.000", "67%", "6.000"],
        ["handlers/Rare", "0.000", "0%", "1.500"], ["all, one after the other", "9.000", "100%", "11.000"],
        [], ["Convolution", "6.000", "75%", "4"], ["2 more operators", "2.000", "25%"],
        ["all operators", "8.000", "100%"],
    ]  # fmt: skip
    nothing = Profile(0.0, (Part("forward", 0.0, 0.0),), (), 1, 1, ("cpu(0)",), "")
    assert "0%" in str(nothing) and "operators" not in str(nothing)


EVALUATE = TaskSpec(inputs=["image"], outputs=["digit", ...], labels=["digit", "size"], unused=["size"])


@pytest.mark.parametrize(
    ("changes", "contexts", "hybrid"), [({"metrics": {}}, TWO, True), ({"evaluate": EVALUATE}, ONE, False)]
)
def test_every_kind_of_step_can_be_profiled(changes: Any, contexts: Any, hybrid: bool) -> None:
    net = normed_heads()
    net.hybridize(hybrid)
    profile = make_estimator(net, contexts, **changes).profile(batches(), 2)
    assert len(profile.devices) == len(contexts)
    assert {"forward", "backward", "update/trainer"} < set(names(profile)) and profile.operators


def test_handlers_that_change_a_step_are_timed() -> None:
    class Counts:
        """Changes outputs, those of each batch and of the first one's check."""

        outputs = steps = 0

        def change_outputs(self, estimator: Any, outputs: Any) -> None:
            Counts.outputs += 1

        def batch_end(self, estimator: Any) -> None:
            Counts.steps += 1

    handlers = [MixUp(), LabelSmoothing(0.1), GradientNoise(), Counts(), WeightAveraging("ema")]
    estimator = make_estimator()
    estimator.check(batches())
    before = snapshot(estimator.net)
    profile = estimator.profile(batches(), 4, handlers)
    assert {f"handlers/{type(handler).__name__}" for handler in handlers} < set(names(profile))
    assert profile.ms("handlers/MixUp") > 0 and Counts.outputs == Counts.steps + 1 > 1
    assert_unchanged(estimator.net, before)


def test_a_handler_that_fails_is_named() -> None:
    def batch_end(estimator: Any) -> None:
        if estimator.state.step == 3:
            raise RuntimeError("it is tired")

    estimator = make_estimator()
    estimator.check(batches())
    before, state = snapshot(estimator.net), vars(estimator.state).copy()
    with pytest.raises(
        RuntimeError, match=r"^it is tired\nraised in Fails.batch_end \(.*\) \(profiling, batch 3\)$"
    ):
        estimator.profile(batches(), 5, handler("Fails", batch_end=batch_end))
    assert_unchanged(estimator.net, before)
    assert vars(estimator.state) == state and not estimator._handlers.running


def test_no_file_is_left_and_no_device_is_deleted(tmp_path: Any, monkeypatch: Any) -> None:
    """MXNet deletes the file that has the name of its trace, even if it is a device."""
    traces = []
    set_config = mx.profiler.set_config
    watched = lambda **options: (traces.append(options["filename"]), set_config(**options))  # noqa: E731
    monkeypatch.setattr(mx.profiler, "set_config", watched)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make_estimator().profile(batches(), 2)
    assert os.listdir(tmp_path) == [] and stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert traces and all(os.path.dirname(name).startswith(str(tmp_path)) for name in traces)


def test_without_mxnets_profiler_everything_else_is_measured(monkeypatch: Any) -> None:
    monkeypatch.setitem(profiler.PROFILER_ON, "profile_api", "perhaps")  # which MXNet refuses
    profile = make_estimator().profile(batches(), 2)
    assert profile.operators == () and profile.wall > 0
    assert "no operators are shown: MXNet's profiler cannot be used" in str(profile)


def test_operators_that_run_in_a_row_have_a_short_name() -> None:
    for name, short in (
        ("FullyConnected", "FullyConnected"),
        ("Activation,Pooling,Flatten", "Activation and 2 more in a row"),
        ("[FullyConnected,Activation]", "FullyConnected and 1 more in a row"),
        ("add_n,_backward_pick,_backward_log_softm", "_backward_pick and 2 more in a row"),
    ):
        assert profiler._short_name(name) == short


def test_data_that_cannot_be_used_is_an_error() -> None:
    class Once:
        """Yields nothing the third time, without an error."""

        times = 0

        def __iter__(self) -> Iterator[Any]:
            self.times += 1
            return iter(batches() if self.times < 3 else [])

    estimator = make_estimator()
    for data, message in (
        ([], "train_data is empty"),
        (iter(batches()), "train_data is a list_iterator, which can be read only once"),
        (Once(), "train_data yields no batch in epoch 2, though it did before"),
        ([batches()[0][:2]], "size"),
    ):
        with pytest.raises(DataError, match=message):
            estimator.profile(data, 8)
    with pytest.raises(ValueError, match="profile: batches is 0"):
        estimator.profile(batches(), 0)
