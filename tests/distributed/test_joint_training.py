"""Several ranks train as one process does; the ranks are threads. All cases: nightly/test_distributed.py."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import multifit
from multifit import (
    DataError,
    LabelSpec,
    LogFile,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    Sharded,
    SpecError,
    TaskSpec,
    TrainerSpec,
)
from multifit.distributed import World
from multifit.engines.reader import Reader
from multifit.metrics import BinaryAccuracy
from multifit.sampling import Ratios, RoundRobin
from tests.common import whole_pass
from tests.common.compare import snapshot
from tests.common.data import Limited, Repeating, regression_batches
from tests.common.grids import TWO
from tests.common.joint_training import CASES, ByShape, assert_as_alone, joint_training, normed_heads
from tests.common.nets import Heads
from tests.common.ranks import EngineWorld, ThreadWorld, run_ranks
from tests.common.specs import CE, L2, regression_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

THREADS = [
    "lists", "arrays in memory", "uneven parts", "mixed samples", "a net that branches", "two devices",
    "noise", "missing labels", "balanced classes in another order", "weights of classes and samples",
    "a frozen body", "balance that looks back", "balance that learns", "balance of features that adds up",
    "balance of parameters where labels are missing",
]  # fmt: skip
OWN_ARRAYS = "several at once", "balance of parameters", "balance of a task that is absent, every third batch"


@pytest.mark.parametrize(
    ("case", "kind"),
    [*((case, ThreadWorld) for case in THREADS), *((case, EngineWorld) for case in OWN_ARRAYS)],
)
def test_two_ranks_train_as_one(case, kind):
    assert_as_alone(partial(joint_training, **CASES[case]), kind=kind)


@pytest.mark.parametrize("case", ["plain", "averaged weights"])
def test_ranks_end_with_the_same_running_statistics(case):
    one, other = run_ranks(2, partial(joint_training, **{**CASES[case], "net": normed_heads}))
    assert any(name.endswith("running_mean") for name in one)
    np.testing.assert_equal(other, one)


FROZEN = TrainerSpec(".*", "sgd", {"learning_rate": 1e-9})


def estimator_of(
    world: World, spec: TaskSpec, trainer: Any = None, net: Any = None, context: Any = None
) -> MultiEstimator:
    """Return an estimator of a net, by default a linear one of six inputs; each rank initialises its own."""
    net = gluon.nn.Dense(2, in_units=6) if net is None else net
    net.initialize(ByShape(world.rank), ctx=context)
    return MultiEstimator(net, spec, trainer, context, world=world)


DATA = regression_batches([5, 4], outputs=(2,))


def regression(world: World, metric: Any = None, context: Any = None) -> MultiEstimator:
    """Return an estimator for `DATA`, with one metric if it is given."""
    metrics = {} if metric is None else {"m": MetricSpec(metric, "y", "y")}
    return estimator_of(world, regression_spec(metrics), context=context)


def parts_spec(names: Any, **changes: Any) -> TaskSpec:
    """Return a spec of outputs, each with a label of its name and the squared error."""
    losses = {name: LossSpec(L2, name, name) for name in names}
    declared = {"inputs": ["x"], "outputs": list(names), "labels": list(names), "losses": losses}
    return TaskSpec(**{**declared, **changes})


# ---- the data ----------------------------------------------------------------------------------------------


def test_ranks_divide_the_order_in_which_the_first_one_shuffles_arrays():
    def read(world):
        data = multifit.batches(np.arange(11), np.arange(11) * 2, batch_size=4, shuffle=True)
        return [None if batch is None else batch[1].tolist() for batch in Reader(world).iterate(data)]

    one, other, last = run_ranks(3, read)
    whole = [[*a, *b, *(c or [])] for a, b, c in zip(one, other, last)]
    assert [len(batch) for batch in whole] == [4, 4, 3] and [len(batch) for batch in one] == [2, 2, 1]
    assert sorted(sum(whole, [])) == [2 * i for i in range(11)] != sum(whole, [])


@pytest.mark.parametrize(("kind", "steps"), [(Repeating, 10), (Limited, 3)])
def test_a_loader_that_iterates_in_its_own_way_is_read_as_by_one_process(kind, steps):
    def train(world):
        estimator, [data] = regression(world), regression_batches([9], outputs=(2,))
        estimator.fit(kind(gluon.data.ArrayDataset(*data), 2), epochs=1)
        return {"steps": estimator.state.step, **snapshot(estimator.net)}

    assert assert_as_alone(train)["steps"] == steps


def test_parts_of_unequal_length_take_turns_with_other_loaders():
    """Of the loader "a", the second rank has samples of the first batch alone."""
    whole = {"a": regression_batches([5, 4, 3]), "b": regression_batches([4, 4], seed=6)}
    (x, y), *later = whole["a"]
    parts = [[(x[:3], y[:3]), *later], [(x[3:], y[3:])]]

    def train(world):
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
        estimator = estimator_of(world, parts_spec(whole), trainer, Heads(a=4, b=4))
        data = {**whole, "a": Sharded(whole["a"] if world.alone else parts[world.rank])}
        history = estimator.fit(data, data, epochs=2, sampling=Ratios(a=1, b=3))
        return {**snapshot(estimator.net), **history}

    assert_as_alone(train)
    assert list(Sharded(parts[1])) == parts[1]


def test_each_rank_of_several_devices_gets_a_sample_before_any_gets_two():
    data = regression_batches([3, 8, 5, 1], outputs=(2,))

    def train(world):
        estimator = regression(world, context=TWO)
        return {**estimator.fit(data, epochs=2), **estimator.predict(data)}

    assert_as_alone(train, 3)


def test_each_rank_may_keep_its_predictions():
    def predict(world):
        estimator = regression(world)
        mine = estimator.predict(DATA, gather=False)["y"]
        return mine, estimator.predict(DATA)["y"], estimator.predict(DATA[0])["y"]

    (first, whole, batch), (second, other, _) = run_ranks(2, predict)
    assert [len(first), len(second), len(whole), len(batch)] == [5, 4, 9, 5]
    np.testing.assert_array_equal(whole, other)
    np.testing.assert_array_equal(whole, np.concatenate([first[:3], second[:2], first[3:], second[2:]]))


# ---- figures -----------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_whole_pass():
    """Of stock metrics and functions, in training and evaluation; a batch has no samples for all ranks."""

    def train(world):
        estimator, data = whole_pass.estimator(world=world), whole_pass.cut([8, 8, 1, 12, 12])
        history = estimator.fit(data, data, epochs=1)
        return history.last, estimator.evaluate(data)

    for last, evaluated in run_ranks(3, train):
        for prefix in ("train_", "val_"):
            figures = {name.removeprefix(prefix): last[name] for name in last if prefix in name}
            whole_pass.assert_whole(figures)
        whole_pass.assert_whole(evaluated)


class First(mx.metric.EvalMetric):
    """Of the first array alone."""

    def update(self, labels, preds):
        self.sum_metric += float((labels[0] * preds[0]).sum().asscalar())
        self.num_inst += len(labels[0])


class Largest(mx.metric.EvalMetric):
    """Of losses alone."""

    def update(self, losses):
        self.sum_metric += max(float(each.max().asscalar()) for each in losses)
        self.num_inst += 1


def weighted(label, pred):
    """Depends on the order of the samples."""
    return float(np.arange(len(label)) @ (label - pred)[:, 0])


OWN = {
    "first array": lambda: MetricSpec(First("f"), "y", "y"),
    "losses": lambda: MetricSpec(Largest("m"), losses="l2"),
    "order": lambda: MetricSpec(weighted, "y", "y"),
}


@pytest.mark.parametrize("name", OWN)
def test_metrics_of_ones_own_get_the_arrays_of_all_ranks(name):
    def train(world):
        estimator = estimator_of(world, regression_spec({"m": OWN[name]()}))
        figures = estimator.evaluate(DATA)
        return {**figures, "train": estimator.fit(DATA, epochs=1)["train_m"] if name == "order" else []}

    assert_as_alone(train, 3)


def test_single_values_that_are_missing_and_one_hot_labels_count_as_in_one_process():
    data = []
    for number, (x, y) in enumerate(DATA):
        lacks = np.random.RandomState(number).rand(*y.shape) < 0.5
        data.append([x, np.where(lacks, np.nan, y), np.eye(2, dtype="float32")[(x[:, 0] > 0).astype(int)]])

    def evaluate(world):
        spec = TaskSpec(
            outputs=["y"], labels=[LabelSpec("y", missing="nan"), "one_hot"],
            losses={"own": LossSpec(lambda output, label: mx.nd.abs(output - label), "y", "y")},
            metrics={
                "binary": MetricSpec(BinaryAccuracy(), "y", "y"),
                "accuracy": MetricSpec(mx.metric.Accuracy(), "y", "one_hot"),
            },
        )  # fmt: skip
        return estimator_of(world, spec).evaluate(data)

    assert_as_alone(evaluate, 3)


def median_error(label: Any, pred: Any) -> float:
    return float(np.median(np.abs(label - pred)))


def test_a_metric_of_a_later_loaders_label_is_exact():
    """The first loader's batches do not show that it is computed on the host."""
    parts = {"a": regression_batches([5, 4]), "b": regression_batches([9])}

    def evaluate(world):
        medians = {f"median {name}": MetricSpec(median_error, name, name) for name in parts}
        return estimator_of(world, parts_spec(parts, metrics=medians), net=Heads(a=4, b=4)).evaluate(parts)

    assert_as_alone(evaluate)


@pytest.mark.parametrize("lengths", [([1, 3], [1]), ([1, 1], [3])])
def test_sequences_that_one_rank_alone_counts_on_the_host_are_all_counted(lengths):
    """Labels of one step are counted as samples, and those of several steps one by one."""
    random = np.random.RandomState(0)
    parts = [[random.normal(size=(2, length, 3)).astype("float32") for length in own] for own in lengths]
    batches = [[(x, np.abs(x).argmax(-1).astype("float32")) for x in own] for own in parts]

    def train(world):
        metrics = {"m": MetricSpec(mx.metric.Accuracy(axis=-1), "y", "y")}
        spec = parts_spec("y", losses={"ce": LossSpec(CE, "y", "y")}, metrics=metrics)
        estimator = estimator_of(world, spec, FROZEN, gluon.nn.Dense(3, in_units=3, flatten=False))
        data = sum(batches, []) if world.alone else Sharded(batches[world.rank])
        history = estimator.fit(data, data, epochs=2)
        return {**{name: history[name] for name in ("train_m", "val_m")}, "m": estimator.evaluate(data)["m"]}

    assert_as_alone(train)


def test_ranks_with_sentences_of_another_length_cannot_be_joined():
    def train(world):
        spec = TaskSpec(outputs="y", labels="y", metrics={"m": MetricSpec(median_error, "y", "y")})
        array = np.zeros((2, 3 + world.rank), "float32")
        estimator = MultiEstimator(gluon.nn.HybridLambda("BlockGrad"), spec, world=world)
        with pytest.raises(SpecError, match=r"batch 1 has \(2, 4\) float32, .* and batch 1 \(2, 3\)"):
            estimator.evaluate(Sharded([(array, array)]))

    run_ranks(2, train)


def of_several_metrics() -> MetricSpec:
    """Return a metric of several, which knows their names once it has measured something."""
    each = [mx.metric.Accuracy(), mx.metric.TopKAccuracy(2)]
    return MetricSpec(mx.metric.CompositeEvalMetric(each), "a", "y")


LACKING = [LabelSpec("y", missing=-1), "z"]


def test_a_rank_that_measured_nothing_adds_no_figure_of_its_own():
    def train(world):
        losses = {"l": LossSpec(CE, "a", "y")}
        spec = TaskSpec(outputs="a", labels=LACKING[:1], losses=losses, metrics={"m": of_several_metrics()})
        batch = np.zeros((4, 3), "float32"), np.array([0, 1, -1, -1], "float32")
        history = estimator_of(world, spec, net=gluon.nn.Dense(2, in_units=3)).fit([batch], epochs=1)
        return [name for name in history if "_m" in name]

    assert run_ranks(2, train) == [["train_m.accuracy", "train_m.top_k_accuracy_2"]] * 2


def test_what_a_metric_counts_weighs_it_where_labels_lack_and_loaders_take_turns():
    x = np.random.RandomState(0).normal(size=(24, 3)).astype("float32")
    y = np.array([0, 2, 1, -1, 2, 1, -1, -1, 2, 0, -1, -1], "float32")  # the last rank has the fewest
    arrays = {"a": (x[:12], y), "b": (x[12:], x[12:, :2])}
    data = {name: gluon.data.DataLoader(gluon.data.ArrayDataset(*each), 4) for name, each in arrays.items()}

    def train(world):
        losses = {"a": LossSpec(CE, "a", "y"), "b": LossSpec(L2, "b", "z")}
        spec = parts_spec("ab", labels=LACKING, losses=losses, metrics={"m": of_several_metrics()})
        net = Heads(a=3, b=2)
        net.hybridize()
        history = estimator_of(world, spec, FROZEN, net).fit(data, epochs=1, sampling=RoundRobin())
        return {figure: history[figure] for figure in history if figure.startswith("train_m")}

    assert all(np.isfinite(values).all() for values in assert_as_alone(train).values())


class Extreme(mx.metric.EvalMetric):
    """Measures in each batch the rank's number and how many samples it has; NaN on the third rank."""

    def __init__(self, rank: int) -> None:
        super().__init__("extreme")
        self.rank = rank

    def update(self, labels, preds):
        self.sum_metric += float("nan") if self.rank == 2 else float(self.rank + len(labels[0]))
        self.num_inst += 1


def test_a_metric_of_each_ranks_own_is_their_mean_while_training():
    """Batches of 5 and 4 samples are divided into 3 and 2, 2 and 2; or 2, 2 and 1, 2, 1 and 1."""

    def train(world):
        metric = Extreme(world.rank)
        metric = mx.metric.CompositeEvalMetric([metric]) if world.size == 3 else metric
        return regression(world, metric).fit(DATA, DATA, epochs=1)

    two, three = (run_ranks(size, train) for size in (2, 3))
    assert [history["train_m"] for history in two] == [[np.mean([3, 2, 3, 3])]] * 2
    assert [history["train_m"] for history in three] == [[np.mean([2, 2, 3, 2])]] * 3
    assert [history["val_m"] for history in two] == [[4.5], [5.5]]  # of all samples


class CountsInItsOwnWay:
    """Has only the methods of a metric: the mean over what its rank has seen is its rank's number."""

    def __init__(self, rank):
        self.rank = rank

    def update(self, labels, preds):
        """See EvalMetric."""

    def reset(self):
        """See EvalMetric."""

    def get(self):
        return "own", float(self.rank)


def test_the_samples_of_each_rank_weigh_a_metric_that_does_not_say_what_it_counts():
    def train(world):
        return regression(world, CountsInItsOwnWay(world.rank)).fit(DATA, epochs=1)["train_m"]

    assert run_ranks(2, train) == [[4 / 9]] * 2  # of 5 + 4 samples, each batch gives rank 1 two


# ---- errors, handlers, trainers ----------------------------------------------------------------------------


def test_labels_that_break_a_rule_on_one_rank_are_an_error_on_all():
    labels = [0] * 4, [0, 1, 2, 9], [7] * 4
    data = [(np.ones((4, 6), "float32"), np.array(each, "float32")) for each in labels]

    def train(world):
        spec = parts_spec("y", losses={"ce": LossSpec(CE, "y", "y")})
        return estimator_of(world, spec, net=gluon.nn.Dense(3, in_units=6)).fit(data, epochs=1)

    for error in run_ranks(2, train):
        with pytest.raises(DataError, match="held 5 values not among"):
            raise error


def test_handlers_that_show_act_on_the_first_rank(tmp_path):
    def train(world):
        estimator = regression(world)
        folder, calls = tmp_path / str(world.rank), []
        shows = SimpleNamespace(epoch_end=lambda estimator: calls.append(1), first_rank_only=True)
        own = [shows, LogFile(folder / "log.txt"), SimpleNamespace(batch_end=lambda estimator: None)]
        estimator.fit(DATA, epochs=1, event_handlers=own)
        return len(calls), folder.exists(), estimator.logger.name

    assert run_ranks(2, train) == [(1, True, "multifit"), (0, False, "multifit.rank-1")]


def test_the_first_ranks_trainers_count():
    def train(world):
        estimator = regression(world)
        net = estimator.net
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        for _ in range(2 - world.rank):
            with mx.autograd.record():
                loss = net(mx.nd.ones((1, 6))).sum() * (1 + world.rank)
            loss.backward()
            trainer.step(1)
        MultiEstimator(net, estimator.spec, trainer, world=world).fit(DATA, epochs=1)
        return {"updates": trainer.optimizer.num_update, **snapshot(net)}

    assert assert_as_alone(train)["updates"] == 4
