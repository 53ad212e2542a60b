"""estimator.profile: the times of a step's parts; tests/gluon/test_trial_run.py tests what it preserves."""

from __future__ import annotations

import os
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
    TrainerSpec,
    WeightAveraging,
)
from multifit.gluon import operator_times as profiler
from multifit.profiling import Operator, Profile
from multifit.profiling.stopwatch import Stopwatch, part_times
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import ONE, TWO
from tests.common.handlers import handler
from tests.common.nets import TWO_HEADS, Heads, hybridized, normed_heads, sequential, two_heads
from tests.common.specs import CE, two_head_spec

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


def make_estimator(
    net: Any = None, contexts: Any = ONE, trainers: Any = None, **changes: Any
) -> MultiEstimator:
    net = two_heads("hybridized") if net is None else net
    net.initialize(ctx=contexts)
    return MultiEstimator(net, two_head_spec(**changes), trainers, contexts)


def batches(count: int = 4) -> list[Any]:
    return in_batches(two_head_arrays(8 * count).values())


def names(profile: Profile) -> list[str]:
    return [part.name for part in profile.parts]


# ---- times ----------------------------------------------------------------------------------------------


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
    profile = make_estimator(metrics=metrics).profile(Slow(), 8, [watcher, now], clock, clock)
    expected = {"data/loader": 7, "figures": 4, "figures/error": 4, "handlers/Watcher": 3, "forward": 0}
    for name, ms in expected.items():
        part = profile.part(name)
        assert part.ms == pytest.approx(ms) and part.quartiles == pytest.approx((ms, ms)), name
        assert part.python_ms == pytest.approx(ms) and np.median(part.in_training) == pytest.approx(ms)
        assert part.waits == pytest.approx(0)
    assert profile.part("handlers/Now").mean == pytest.approx(5)
    assert profile.part("handlers").mean == pytest.approx(8)
    assert profile.wall == pytest.approx(7 + 4 + 3 + 5)
    assert names(profile)[:3] == ["data", "data/loader", "data/placing"]
    assert all(len(part.times) == 8 for part in profile.parts)
    assert profile.advice[0].startswith("the loader takes 37% of a step")
    assert profile.advice[1].startswith("Now takes 26% of a step")


def test_waiting_is_told_from_work() -> None:
    """Python that waits does not work; a part within another one has its own time."""
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


def test_the_parts_of_a_real_step() -> None:
    # MXNet runs a layer and its activation as one operator, unless something is between them
    body = sequential(nn.Dense(6), nn.BatchNorm(), nn.Activation("relu"))
    net = hybridized(Heads(body=body, **TWO_HEADS))
    profile = make_estimator(net, trainers=TRAINERS).profile(batches(), 12)
    assert names(profile) == [
        "data", "data/loader", "data/placing", "forward", "forward/net", "forward/losses", "forward/figures",
        "backward", "update", "update/body", "update/heads", "figures", "handlers",
    ]  # fmt: skip
    pieces = [part for part in profile.parts if part.name.startswith("forward/")]
    assert sum(piece.ms for piece in pieces) == pytest.approx(profile.part("forward").ms)
    assert profile.part("figures").ms == profile.part("handlers").ms == 0
    assert profile.wall > 0 and profile.python > 0 and profile.total > 0 and 0 <= profile.idle <= 1
    assert (profile.batches, profile.samples, profile.devices) == (12, 8, ("cpu(0)",))
    counts = {operator.name: operator.count for operator in profile.operators}
    # the fourth one looks for NaN in the inputs
    assert (counts["FullyConnected"], counts["_backward_FullyConnected"]) == (4, 3)
    kinds = {operator.name: operator.kind for operator in profile.operators}
    assert kinds["FullyConnected"] == "forward" and kinds["_backward_FullyConnected"] == "backward"
    assert kinds["DeleteVariable"] == "engine" and "update" in kinds.values()
    assert not profile.hybridizable and "one graph" in profile.how


OWN = {"digit": CE, "size": LossSpec(lambda p, t: ((p - t) ** 2).mean(), outputs="size", labels="size")}
EVALUATE = TaskSpec(inputs=["image"], outputs=["digit", ...], labels=["digit", "size"], unused=["size"])


@pytest.mark.parametrize(
    ("changes", "contexts", "hybrid"),
    [
        ({}, ONE, False), ({}, TWO, True),
        ({"metrics": {}}, TWO, True),
        ({"losses": OWN}, ONE, True), ({"losses": OWN}, TWO, False),
        ({"evaluate": EVALUATE}, ONE, False),
    ],
)  # fmt: skip
def test_every_kind_of_step_can_be_profiled(changes: Any, contexts: Any, hybrid: bool) -> None:
    net = normed_heads()
    net.hybridize(hybrid)
    profile = make_estimator(net, contexts, **changes).profile(batches(), 2)
    assert profile.hybridizable is not hybrid and len(profile.devices) == len(contexts)
    assert ("forward/figures" in names(profile)) is ("metrics" not in changes)
    assert {"forward/net", "forward/losses"} < set(names(profile)) and profile.operators
    if not changes and not hybrid:
        assert not make_estimator(two_heads("plain")).profile(batches(), 1).hybridizable


# ---- handlers -------------------------------------------------------------------------------------------


def test_handlers_that_change_a_step_are_timed() -> None:
    class Counts:
        """Changes outputs; must not be called more often than there are batches."""

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
    assert profile.part("handlers/MixUp").ms > 0 and Counts.outputs == Counts.steps > 0
    assert "forward/net" not in names(profile)
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


# ---- MXNet's profiler -----------------------------------------------------------------------------------


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
    monkeypatch.setitem(profiler.ON, "profile_api", "perhaps")  # which MXNet refuses
    profile = make_estimator().profile(batches(), 2)
    assert profile.operators == () and profile.wall > 0
    assert "no operators are shown: MXNet's profiler cannot be used" in profile.summary()


def test_operators_that_run_in_a_row_have_a_short_name() -> None:
    for name, short in (
        ("FullyConnected", "FullyConnected"),
        ("Activation,Pooling,Flatten", "Activation and 2 more in a row"),
        ("[FullyConnected,Activation]", "FullyConnected and 1 more in a row"),
        ("add_n,_backward_pick,_backward_log_softm", "_backward_pick and 2 more in a row"),
    ):
        assert profiler._short_name(name) == short
    assert Operator(short, 1.0, 0.1).kind == "backward"


# ---- what cannot be profiled ----------------------------------------------------------------------------


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
    for count in (0, -1, 2.5, "many"):
        with pytest.raises(ValueError, match="profile: batches"):
            estimator.profile(batches(), count)
