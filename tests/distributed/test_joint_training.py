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
from multifit.distributed import ALONE, World
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
from tests.common.specs import regression_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

THREADS = [
    "lists", "arrays in memory", "uneven parts", "mixed samples", "a net that branches", "two devices",
    "noise", "missing labels", "balanced classes", "balanced classes in another order",
    "weights of classes and samples", "a frozen body", "balance that looks back", "balance that learns",
    "balance of every second batch", "balance of features that adds up",
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


def regression(world: World, metric: Any = None, context: Any = None) -> tuple[MultiEstimator, Any]:
    """Return an estimator of a linear net, with one metric if it is given, and batches."""
    net = gluon.nn.Dense(2, in_units=6)
    net.initialize(ByShape(world.rank), ctx=context)
    metrics = {} if metric is None else {"m": MetricSpec(metric, "y", "y")}
    spec = regression_spec(metrics)
    return MultiEstimator(net, spec, context=context, world=world), regression_batches([5, 4], outputs=(2,))


def test_a_rank_that_measured_nothing_adds_no_figure_of_its_own():
    """A metric of several metrics knows their names once it has measured something."""

    def train(world):
        net = gluon.nn.Dense(2, in_units=3)
        net.initialize(ByShape(world.rank))
        metric = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), mx.metric.TopKAccuracy(2)])
        losses = {"l": LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), "y", "y")}
        labels, metrics = [LabelSpec("y", missing=-1)], {"m": MetricSpec(metric, "y", "y")}
        spec = TaskSpec(outputs="y", labels=labels, losses=losses, metrics=metrics)
        batch = np.zeros((4, 3), "float32"), np.array([0, 1, -1, -1], "float32")
        history = MultiEstimator(net, spec, world=world).fit([batch], epochs=1)
        return [name for name in history if "_m" in name]

    assert run_ranks(2, train) == [["train_m.accuracy", "train_m.top_k_accuracy_2"]] * 2


def test_ranks_divide_the_order_in_which_the_first_one_shuffles_arrays():
    def read(world):
        data = multifit.batches(np.arange(11), np.arange(11) * 2, batch_size=4, shuffle=True)
        return [None if batch is None else batch[1].tolist() for batch in Reader(world).iterate(data)]

    one, other, last = run_ranks(3, read)
    whole = [[*a, *b, *(c or [])] for a, b, c in zip(one, other, last)]
    assert [len(batch) for batch in whole] == [4, 4, 3] and [len(batch) for batch in one] == [2, 2, 1]
    assert sorted(sum(whole, [])) == [2 * i for i in range(11)] != sum(whole, [])


@pytest.mark.parametrize("kind", [Repeating, Limited])
def test_a_loader_that_iterates_in_its_own_way_is_read_as_by_one_process(kind):
    def train(world):
        estimator, [data] = regression(world)[0], regression_batches([9], outputs=(2,))
        estimator.fit(kind(gluon.data.ArrayDataset(*data), 2), epochs=1)
        return {"steps": estimator.state.step, **snapshot(estimator.net)}

    assert assert_as_alone(train)["steps"] == (10 if kind is Repeating else 3)


def test_single_values_that_are_missing_and_one_hot_labels_count_as_in_one_process():
    def evaluate(world):
        net = gluon.nn.Dense(2, in_units=6)
        net.initialize(ByShape(world.rank))
        spec = TaskSpec(
            outputs=["y"], labels=[LabelSpec("y", missing="nan"), "one_hot"],
            losses={"own": LossSpec(lambda output, label: mx.nd.abs(output - label), "y", "y")},
            metrics={
                "binary": MetricSpec(BinaryAccuracy(), "y", "y"),
                "accuracy": MetricSpec(mx.metric.Accuracy(), "y", "one_hot"),
            },
        )  # fmt: skip
        data = []
        for number, (x, y) in enumerate(regression_batches([5, 4], outputs=(2,))):
            y[np.random.RandomState(number).rand(*y.shape) < 0.5] = np.nan
            data.append([x, y, np.eye(2, dtype="float32")[(x[:, 0] > 0).astype(int)]])
        return MultiEstimator(net, spec, world=world).evaluate(data)

    assert_as_alone(evaluate, 3)


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


@pytest.mark.parametrize("name", ["first array", "losses", "order"])
def test_metrics_of_ones_own_get_the_arrays_of_all_ranks(name):
    def train(world):
        metrics = {
            "first array": lambda: MetricSpec(First("f"), "y", "y"),
            "losses": lambda: MetricSpec(Largest("m"), losses="l2"),
            "order": lambda: MetricSpec(weighted, "y", "y"),
        }
        net = gluon.nn.Dense(2, in_units=6)
        net.initialize(ByShape(world.rank))
        estimator = MultiEstimator(net, regression_spec({"m": metrics[name]()}), world=world)
        data = regression_batches([5, 4], outputs=(2,))
        figures = estimator.evaluate(data)
        return {**figures, "train": estimator.fit(data, epochs=1)["train_m"] if name == "order" else []}

    assert_as_alone(train, 3)


def median_error(label: Any, pred: Any) -> float:
    return float(np.median(np.abs(label - pred)))


def test_a_metric_of_a_later_loaders_label_is_exact():
    """The first loader's batches do not show that it is computed on the host."""
    parts = {"a": regression_batches([5, 4]), "b": regression_batches([9])}

    def evaluate(world):
        net = Heads(a=4, b=4)
        net.initialize(mx.init.One())
        losses = {name: LossSpec(gluon.loss.L2Loss(), name, name) for name in parts}
        medians = {f"median {name}": MetricSpec(median_error, name, name) for name in parts}
        spec = TaskSpec(outputs=list(parts), labels=list(parts), losses=losses, metrics=medians, inputs=["x"])
        return MultiEstimator(net, spec, world=world).evaluate(parts)

    assert_as_alone(evaluate)


@pytest.mark.parametrize("lengths", [([1, 3], [1]), ([1, 1], [3])])
def test_sequences_that_one_rank_alone_counts_on_the_host_are_all_counted(lengths):
    """Labels of one step are counted as samples, and those of several steps one by one."""
    random = np.random.RandomState(0)
    parts = [[random.normal(size=(2, length, 3)).astype("float32") for length in own] for own in lengths]
    batches = [[(x, np.abs(x).argmax(-1).astype("float32")) for x in own] for own in parts]

    def train(world):
        net = gluon.nn.Dense(3, in_units=3, flatten=False)
        net.initialize(ByShape(0))
        metrics = {"m": MetricSpec(mx.metric.Accuracy(axis=-1), "y", "y")}
        losses = {"ce": LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), "y", "y")}
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 1e-9})
        spec = TaskSpec(outputs="y", labels="y", losses=losses, metrics=metrics, inputs=["x"])
        estimator = MultiEstimator(net, spec, trainer, world=world)
        data = sum(batches, []) if world.alone else Sharded(batches[world.rank])
        history = estimator.fit(data, data, epochs=2)
        return {**{name: history[name] for name in ("train_m", "val_m")}, "m": estimator.evaluate(data)["m"]}

    assert_as_alone(train)


def test_figures_are_those_of_the_whole_pass():
    """Of stock metrics and functions, in training and evaluation; a batch has no samples for all ranks."""

    def train(world):
        estimator, data = whole_pass.estimator(world=world), whole_pass.cut([8, 8, 1, 12, 12])
        history = estimator.fit(data, data, epochs=1)
        return history.last, estimator.evaluate(data)

    for last, evaluated in run_ranks(3, train):
        for prefix in ("train_", "val_"):
            whole_pass.assert_whole(
                {name.removeprefix(prefix): last[name] for name in last if prefix in name}
            )
        whole_pass.assert_whole(evaluated)


def test_ranks_with_sentences_of_another_length_cannot_be_joined():
    def train(world):
        net = gluon.nn.HybridLambda("BlockGrad")
        spec = TaskSpec(outputs="y", labels="y", metrics={"m": MetricSpec(median_error, "y", "y")})
        array = np.zeros((2, 3 + world.rank), "float32")
        with pytest.raises(SpecError, match=r"batch 1 has \(2, 4\) float32, .* and batch 1 \(2, 3\)"):
            MultiEstimator(net, spec, world=world).evaluate(Sharded([(array, array)]))

    run_ranks(2, train)


def test_a_metric_of_each_ranks_own_is_their_mean_while_training():
    class Extreme(mx.metric.EvalMetric):
        def __init__(self, world):
            super().__init__("extreme")
            self.world = world

        def update(self, labels, preds):
            is_nan = self.world.size == 3 and self.world.rank == 2
            self.sum_metric += float("nan") if is_nan else float(self.world.rank + len(labels[0]))
            self.num_inst += 1

    def train(world):
        metric = mx.metric.CompositeEvalMetric([Extreme(world)]) if world.size == 3 else Extreme(world)
        estimator, data = regression(world, metric)
        return estimator.fit(data, data, epochs=1)

    # in each batch, of 5 and 4 samples, a rank measures its number and how many samples it has
    means = [
        np.mean([rank + n for rank, sizes in enumerate(ranks) for n in sizes])
        for ranks in ([(3, 2), (2, 2)], [(2, 2), (2, 1)])
    ]
    two, three = (run_ranks(size, train) for size in (2, 3))
    assert [history["train_m"] for history in two] == [[means[0]]] * 2
    assert [history["train_m"] for history in three] == [[means[1]]] * 3
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
        estimator, data = regression(world, CountsInItsOwnWay(world.rank))
        return estimator.fit(data, epochs=1)["train_m"]

    assert run_ranks(2, train) == [[4 / 9]] * 2  # of 5 + 4 samples, each batch gives rank 1 two


def test_what_a_metric_counts_weighs_it_where_labels_lack_and_loaders_take_turns():
    random = np.random.RandomState(0)
    x = random.normal(size=(24, 3)).astype("float32")
    y = np.array([0, 2, 1, -1, 2, 1, -1, -1, 2, 0, -1, -1], "float32")  # the last rank has the fewest

    def train(world):
        metric = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), mx.metric.TopKAccuracy(2)])
        losses = {
            "a": LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), "a", "y"),
            "b": LossSpec(gluon.loss.L2Loss(), "b", "z"),
        }
        labels, metrics = [LabelSpec("y", missing=-1), "z"], {"m": MetricSpec(metric, "a", "y")}
        spec = TaskSpec(outputs=["a", "b"], labels=labels, losses=losses, metrics=metrics, inputs=["image"])
        net = Heads(a=3, b=2)
        net.initialize(ByShape(world.rank))
        net.hybridize()
        parts = {"a": (x[:12], y), "b": (x[12:], x[12:, :2])}
        data = {
            task: gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays), 4) for task, arrays in parts.items()
        }
        estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", {"learning_rate": 1e-9}), world=world)
        history = estimator.fit(data, epochs=1, sampling=RoundRobin())
        return {figure: history[figure] for figure in history if figure.startswith("train_m")}

    assert all(np.isfinite(values).all() for values in assert_as_alone(train).values())


def test_labels_that_break_a_rule_on_one_rank_are_an_error_on_all():
    def train(world):
        net = gluon.nn.Dense(3, in_units=6)
        net.initialize(ByShape(world.rank))
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        spec = TaskSpec(outputs=["y"], labels=["y"], losses={"ce": LossSpec(loss, "y", "y")}, inputs=["x"])
        labels = [0] * 4, [0, 1, 2, 9], [7] * 4
        data = [(np.ones((4, 6), "float32"), np.array(each, "float32")) for each in labels]
        return MultiEstimator(net, spec, world=world).fit(data, epochs=1)

    for error in run_ranks(2, train):
        with pytest.raises(DataError, match="held 5 values not among"):
            raise error


def test_each_rank_of_several_devices_gets_a_sample_before_any_gets_two():
    data = regression_batches([3, 8, 5, 1], outputs=(2,))

    def train(world):
        estimator, _ = regression(world, context=TWO)
        return {**estimator.fit(data, epochs=2), **estimator.predict(data)}

    assert_as_alone(train, 3)


def test_each_rank_may_keep_its_predictions():
    def predict(world):
        estimator, data = regression(world)
        mine = estimator.predict(data, gather=False)["y"]
        return mine, estimator.predict(data)["y"], estimator.predict(data[0])["y"]

    (first, whole, batch), (second, other, _) = run_ranks(2, predict)
    assert [len(first), len(second), len(whole), len(batch)] == [5, 4, 9, 5]
    np.testing.assert_array_equal(whole, other)
    np.testing.assert_array_equal(whole, np.concatenate([first[:3], second[:2], first[3:], second[2:]]))


def test_parts_of_unequal_length_take_turns_with_other_loaders():
    """Of the loader "a", the second rank has samples of the first batch alone."""
    whole = {"a": regression_batches([5, 4, 3]), "b": regression_batches([4, 4], seed=6)}
    (x, y), *later = whole["a"]
    parts = [[(x[:3], y[:3]), *later], [(x[3:], y[3:])]]

    def train(world):
        net = Heads(a=4, b=4)
        net.initialize(ByShape(0))
        losses = {name: LossSpec(gluon.loss.L2Loss(), name, name) for name in whole}
        spec = TaskSpec(outputs=list(whole), labels=list(whole), losses=losses, inputs=["x"])
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
        estimator = MultiEstimator(net, spec, trainer, world=world)
        data = {**whole, "a": Sharded(whole["a"] if world.alone else parts[world.rank])}
        history = estimator.fit(data, data, epochs=2, sampling=Ratios(a=1, b=3))
        return {**snapshot(net), **history}

    assert_as_alone(train)


def test_a_divided_loader_is_the_loader_itself_alone():
    estimator, data = regression(ALONE)
    estimator.fit(Sharded(data), Sharded(data), epochs=1)
    assert estimator.state.samples == 9
    assert list(Sharded(data)) == data


def test_handlers_that_show_act_on_the_first_rank(tmp_path):
    class Writing:
        first_rank_only = True

        def __init__(self, calls):
            self.calls = calls

        def epoch_end(self, estimator, **arguments):
            self.calls.append(arguments)

    def train(world):
        estimator, data = regression(world)
        folder, calls = tmp_path / str(world.rank), []
        own = [Writing(calls), LogFile(folder / "log.txt"), SimpleNamespace(batch_end=lambda estimator: None)]
        estimator.fit(data, epochs=1, event_handlers=own)
        return len(calls), folder.exists(), estimator.logger.name

    assert run_ranks(2, train) == [(1, True, "multifit"), (0, False, "multifit.rank-1")]


def test_the_first_ranks_trainers_count():
    def train(world):
        estimator, data = regression(world)
        net = estimator.net
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        for _ in range(2 - world.rank):
            with mx.autograd.record():
                loss = net(mx.nd.ones((1, 6))).sum() * (1 + world.rank)
            loss.backward()
            trainer.step(1)
        MultiEstimator(net, estimator.spec, trainer, world=world).fit(data, epochs=1)
        return {"updates": trainer.optimizer.num_update, **snapshot(net)}

    assert assert_as_alone(train)["updates"] == 4
