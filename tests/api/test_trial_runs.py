"""profile() and find_learning_rate(); tests/gluon/test_trial_run.py tests what they preserve."""

import io
import os
import stat
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from multifit import DataError, MetricSpec, MultiEstimator, TaskSpec, TrainerError, TrainerSpec
from multifit.estimator.profiling import Operator, Part, Profile, Stopwatch
from multifit.estimator.rate_search import RateSearch
from multifit.gluon import engine as profiler
from multifit.handlers import GradientNoise, LabelSmoothing, MixUp, WeightAveraging
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import ONE, TWO
from tests.common.handlers import handler
from tests.common.nets import TWO_HEADS, Heads, hybridized, mlp, normed_heads, sequential, two_heads
from tests.common.specs import L2, one_loss_spec, two_head_spec

# ---- profile -----------------------------------------------------------------------------------------------


TRAINERS = {
    "body": TrainerSpec("body.*", "adam", clip_norm=1.0),
    "heads": TrainerSpec("(digit|size).*", "sgd"),
}


class Clock:
    """A clock that moves only when a test advances it, by milliseconds."""

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
        clock.work(queue[0])
        queue[0] = 0.0

    watch = Stopwatch(clock, drain)
    with watch("forward"):
        clock.work(100)  # it does not measure yet
    watch.start()
    clock.work(5)
    with watch("forward"):
        clock.work(1)
        queue[0] = 10
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


def test_handlers_that_change_a_step_are_timed_and_named() -> None:
    counts = {"outputs": 0, "steps": 0}

    def count(name: str) -> Any:
        return lambda estimator: counts.update({name: counts[name] + 1})

    counting = handler("Counts", change_outputs=count("outputs"), batch_end=count("steps"))
    handlers = [MixUp(), LabelSmoothing(0.1), GradientNoise(), counting, WeightAveraging("ema")]
    estimator = make_estimator()
    profile = estimator.profile(batches(), 4, handlers)
    assert {f"handlers/{type(each).__name__}" for each in handlers} < set(names(profile))
    assert profile.ms("handlers/MixUp") > 0 and counts["outputs"] == counts["steps"] + 1 > 1
    fails = handler("Fails", batch_end=lambda estimator: 1 / (estimator.state.step - 3))
    message = r"raised in Fails.batch_end \(.*\) \(profiling, batch 3\)$"
    with pytest.raises(ZeroDivisionError, match=message):
        estimator.profile(batches(), 5, fails)
    assert not estimator._handlers.running


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


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("FullyConnected", "FullyConnected"),
        ("Activation,Pooling,Flatten", "Activation and 2 more in a row"),
        ("[FullyConnected,Activation]", "FullyConnected and 1 more in a row"),
        ("add_n,_backward_pick,_backward_log_softm", "_backward_pick and 2 more in a row"),
    ],
)
def test_operators_that_run_in_a_row_have_a_short_name(name: str, short: str) -> None:
    assert profiler._short_name(name) == short


class Times(list):  # type: ignore[type-arg]
    """Data that can be read so many times, and are empty from then on."""

    times = 1

    def __iter__(self) -> Iterator[Any]:
        self.times -= 1
        return super().__iter__() if self.times >= 0 else iter([])


def test_data_that_cannot_be_used_is_an_error() -> None:
    twice = Times(batches())
    twice.times = 2
    estimator = make_estimator()
    for data, message in (
        ([], "train_data is empty"),
        (iter(batches()), "train_data is a list_iterator, which can be read only once"),
        (twice, "train_data yields no batch in epoch 2, though it did before"),
        ([batches()[0][:2]], "size"),
    ):
        with pytest.raises(DataError, match=message):
            estimator.profile(data, 8)
    with pytest.raises(ValueError, match="profile: batches is 0"):
        estimator.profile(batches(), 0)


# ---- find_learning_rate ------------------------------------------------------------------------------------


def samples(count: int = 4, size: int = 7) -> list[tuple[np.ndarray, np.ndarray]]:
    x = np.random.RandomState(3).randn(count, size, 4).astype("float32")
    return [(each, each[:, :1] - 0.5 * each[:, 1:2]) for each in x]


def searching(trainers: Any = None, net: Any = None) -> MultiEstimator:
    return MultiEstimator(mlp(1, norm=True) if net is None else net, one_loss_spec(L2), trainers)


def test_the_curve_is_the_hand_written_one() -> None:
    data = samples(12)
    search, twin = searching().find_learning_rate(data, 1e-3, 0.05, batches=12), mlp(1, norm=True)
    trainer, losses = mx.gluon.Trainer(twin.collect_params(), "adam"), []
    for (x, y), rate in zip(data, search.rates):
        trainer.set_learning_rate(rate)
        with mx.autograd.record():
            loss = L2(twin(mx.nd.array(x)), mx.nd.array(y))
        losses.append(float(loss.mean().asscalar()))
        loss.backward()
        trainer.step(len(x))
    assert search.rates == pytest.approx(np.geomspace(1e-3, 0.05, 12))
    assert search.losses == pytest.approx(losses, rel=1e-5)


def test_one_trainer_grows_and_the_others_keep_their_rate() -> None:
    def curve(trainer: str | None, rate: float) -> list[float]:
        parts = {"body": "[01].*", "head": "2.*"}
        specs = {name: TrainerSpec(which, "sgd", {"learning_rate": rate}) for name, which in parts.items()}
        return searching(specs).find_learning_rate(samples(), 1e-3, 0.3, 12, trainer).losses

    head, body, both = curve("head", 0.0), curve("body", 0.0), curve(None, 0.0)
    assert len({tuple(each) for each in (head, body, both)}) == 3
    assert curve("head", 0.1) != head and curve(None, 0.1) == both


def test_it_ends_where_the_loss_diverges_or_is_not_finite() -> None:
    search = searching(TrainerSpec(".*", "sgd")).find_learning_rate(samples(size=100), 1e-3, 1e6, 60)
    assert 10 < len(search.rates) == len(search.losses) == len(search.smoothed) < 60
    assert np.isfinite(search.losses).all()
    assert search.smoothed[-2] < 4 * min(search.smoothed) < search.smoothed[-1]
    assert search.suggestion is not None and 1e-3 < search.suggestion < 1
    assert f"rates 0.001 to {search.rates[-1]:.2g}, suggestion {search.suggestion:.2g})" in repr(search)
    infinite = np.ones((7, 4), "float32"), np.full((7, 1), 3e38, "float32")  # its square
    data = [*samples(11), infinite]
    assert len(searching().find_learning_rate(data, batches=40).rates) == 11
    with pytest.raises(ValueError, match="the first batch's loss is not finite"):
        searching().find_learning_rate(data[::-1])


def test_it_reads_the_data_again_unless_it_can_be_read_only_once() -> None:
    lengths = [
        len(searching().find_learning_rate(data, batches=15).rates)
        for data in (samples(), iter(samples()), Times(samples()))
    ]
    assert lengths == [15, 4, 4]


def test_a_net_that_fails_is_named_with_its_batch() -> None:
    """The check of the first batch calls it too."""
    net, calls = nn.Dense(1, in_units=4), []
    net.initialize()
    net.register_forward_hook(lambda *args: calls.append(1) if len(calls) < 5 else 1 / 0)
    with pytest.raises(ZeroDivisionError, match=r"in the net.*\(finding the learning rate, batch 5\)$"):
        searching(net=net).find_learning_rate(samples(), end=10.0)


def test_where_the_loss_does_not_fall_nothing_is_suggested() -> None:
    noise = np.random.RandomState(0)
    rates = list(np.geomspace(1e-6, 1, 100))
    flat = [RateSearch(rates, list(1 + 0.1 * noise.randn(100))) for _ in range(50)]
    assert sum(search.suggestion is not None for search in flat) <= 2
    assert RateSearch(rates[:2], [1.0, 2.0]).suggestion is None
    assert (
        repr(RateSearch(rates[:1], [1.0])) == "RateSearch(1 batches, rates 1e-06 to 1e-06, suggestion none)"
    )


def test_a_valley_is_found_through_the_noise() -> None:
    noise, rates = np.random.RandomState(0), np.geomspace(1e-6, 1, 100)
    distance = np.log10(rates / 1e-2)
    for _ in range(20):
        losses = np.where(distance < 0, 1 / (1 + np.exp(2 + 2 * distance)), 3 * distance**2)
        search = RateSearch(list(rates), list(losses + 0.02 * noise.randn(100)))
        assert search.suggestion is not None and 3e-4 < search.suggestion < 6e-3


def test_table() -> None:
    search = RateSearch(list(np.geomspace(1e-3, 1, 4)), [2.0, 1.0, 0.5, 1e5])
    rate, *lines = (line.split() for line in search.table().splitlines())
    assert rate == ["rate", "loss", "smoothed"] and len(lines) == 5
    assert [line[:2] for line in lines[1:]] == [
        ["1.00e-03", "2"], ["1.00e-02", "1"], ["1.00e-01", "0.5"], ["1.00e+00", "1e+05"]
    ]  # fmt: skip
    assert len(search.table(2).splitlines()) == 4


def test_plot() -> None:
    fall = [*np.linspace(3.0, 1.0, 15), 2.0, 5.0, 100.0]
    search = RateSearch(list(np.geomspace(1e-3, 1, 18)), fall)
    (axes,) = search.plot().axes
    drawn = {line.get_label(): tuple(map(list, line.get_data())) for line in axes.lines}
    assert axes.get_xscale() == "log" and axes.get_ylim()[1] < 5
    assert drawn["loss"] == (search.rates, fall) and drawn["smoothed"] == (search.rates, search.smoothed)
    assert search.suggestion is not None
    assert drawn[f"suggestion: {search.suggestion:.2g}"][0] == [search.suggestion] * 2
    file = io.BytesIO()
    search.plot().savefig(file, format="png", dpi=20)
    assert file.getvalue().startswith(b"\x89PNG")
    (axes,) = RateSearch([0.1], [1.0]).plot().axes
    assert [line.get_label() for line in axes.lines] == ["loss", "smoothed"]


MIXED = {"body": TrainerSpec("[01].*", "adadelta"), "head": TrainerSpec("2.*", "sgd")}
REFUSED: dict[str, tuple[dict[str, Any], type, str]] = {
    "start": ({"start": 0}, ValueError, "start is 0; valid is a finite number above 0"),
    "end": ({"start": 1.0, "end": 0.1}, ValueError, "start is 1.0 and end is 0.1; start must be below end"),
    "batches": ({"batches": 5}, ValueError, "batches is 5; valid is a whole number of at least 10"),
    "trainer": ({"trainer": "bdy"}, TrainerError, r"""no trainer 'bdy' \(did you mean "body"\?\); valid are"""
    ),
    "rate": ({}, TrainerError, r'trainers\["body"\].learning_rate: AdaDelta has none'),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_searched_is_refused(case: str) -> None:
    options, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        searching(MIXED).find_learning_rate(samples(), **options)
    assert searching(MIXED).find_learning_rate(samples(), batches=10, trainer="head").rates
