"""evaluate(): figures, other specs and forms of calling the net; metrics and the names of their figures."""

from functools import partial
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from tests.common.compare import assert_unchanged, snapshot
from tests.common.grids import ONE, TWO, plain_or_hybrid
from tests.common.handlers import handler
from tests.common.nets import hybridized, two_heads
from tests.common.specs import CE, L2, two_head_spec


def test_the_figures_are_means_over_samples(arrays: Any, batches: Any) -> None:
    net = two_heads()
    found = MultiEstimator(net, two_head_spec()).evaluate(batches)
    digit, size = net(mx.nd.array(arrays["image"]))
    cross = CE(digit, mx.nd.array(arrays["digit"])).mean().asscalar()
    square = L2(size, mx.nd.array(arrays["size"])).mean().asscalar()
    right = (digit.asnumpy().argmax(axis=1) == arrays["digit"]).mean()
    assert found == pytest.approx(
        {"loss": cross + square, "digit": cross, "size": square, "accuracy": right}, rel=1e-5
    )


def test_it_moves_nothing_and_needs_no_trainer(batches: Any) -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), trainers="nonsense")
    first = estimator.evaluate(iter(batches))
    assert len(estimator.net.calls) == 3 + 1  # each batch once, and the check
    before = snapshot(estimator.net)
    assert estimator.evaluate(batches) == first
    assert estimator.state.step == estimator.history.epochs == 0
    assert_unchanged(estimator.net, before)


def share(truth: Any, found: Any) -> float:
    return float((truth == found).mean())


class Detector(gluon.HybridBlock):
    """As SSD: raw outputs in training, another form and number of outputs when evaluating."""

    def __init__(self) -> None:
        super().__init__()
        self.traces = 0
        self.head = nn.Dense(2)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        self.traces += 1
        raw = self.head(image)
        if mx.autograd.is_training():
            return raw, raw * 2
        return F.argmax(raw, axis=1)


@plain_or_hybrid
def test_another_spec_for_evaluating(hybrid: bool, arrays: Any) -> None:
    image, size = arrays["image"], arrays["size"]
    truth = (image[:, 0] > 0).astype("float32")
    evaluate = TaskSpec(
        inputs=["image"], outputs=["id"], labels=["truth", "spare"], unused=["spare"],
        metrics={"hits": MetricSpec(share, "id", "truth", mode="max")},
    )  # fmt: skip
    spec = TaskSpec(
        inputs=["image"], outputs=["raw", "twice"], labels=["target"], unused=["twice"],
        losses={"box": LossSpec(L2, "raw", "target")}, evaluate=evaluate,
    )  # fmt: skip
    net = hybridized(Detector(), hybrid)
    estimator = MultiEstimator(net, spec, TrainerSpec(".*", "adam", {"learning_rate": 0.05}))
    train = [(image, np.concatenate([-image[:, :1], image[:, :1]], axis=1))] * 4
    history = estimator.fit(train, [(image, truth, size)], epochs=10)
    assert list(history) == ["train_loss", "train_box", "lr", "val_hits"]
    assert estimator.evaluate([(image, truth, size)]) == {"hits": history["val_hits"][-1]}
    assert history["val_hits"][-1] > 0.8
    assert estimator.predict(image)["id"].shape == (20,)
    assert estimator.direction("val_hits") == "max"
    if hybrid:  # each mode is traced for its check and for its graph, for all epochs, and once for predicting
        assert net.traces <= 7


def test_losses_and_forward_of_the_evaluating_spec(batches: Any) -> None:
    def nothing(net: Any, slots: Any) -> Any:
        digit, size = net(slots["image"])
        return digit, size * 0

    evaluate = two_head_spec(losses={"size": gluon.loss.L1Loss()}, forward=nothing)
    history = MultiEstimator(two_heads("hybridized"), two_head_spec(evaluate=evaluate)).fit(
        batches, batches, epochs=1
    )
    size = np.abs(np.concatenate([batch[2] for batch in batches])).mean()
    assert history["val_loss"] == history["val_size"] == [pytest.approx(size, rel=1e-5)]
    assert "val_digit" not in history and history["val_size"] != history["train_size"]


def test_the_users_metric_objects_are_not_mixed(batches: Any) -> None:
    metric = mx.metric.Accuracy()
    spec = two_head_spec(metrics={"accuracy": MetricSpec(metric, "digit", "digit")})
    estimator = MultiEstimator(two_heads(), spec)
    history = estimator.fit(batches, batches[:1], epochs=1)
    estimator.evaluate(batches[1:2])
    assert metric.get() == ("accuracy", history["train_accuracy"][0])


def test_figures_of_an_unknown_stage_are_an_error() -> None:
    with pytest.raises(ValueError, match="""figures: stage is 'val'; valid is "train" or "evaluate\""""):
        MultiEstimator(two_heads(), two_head_spec()).figures("val")


GIVEN = mx.gluon.nn.HybridLambda("BlockGrad")  # a net whose output is its input
BOTH = pytest.mark.parametrize("devices", [ONE, TWO], ids=["one device", "two devices"])


def estimator_of(devices: Any = ONE, **metrics: Any) -> MultiEstimator:
    return MultiEstimator(two_heads(), two_head_spec(metrics=metrics), context=devices)


def evaluated(batches: Any, devices: Any = ONE, **metrics: Any) -> dict[str, float]:
    """Return the figures of a net on the first batch, without those of losses."""
    figures = estimator_of(devices, **metrics).evaluate(batches[:1])
    return {name: value for name, value in figures.items() if name not in ("loss", "digit", "size")}


def of_given(metric: Any, data: Any, **options: Any) -> float:
    """Return the figure of a net that returns its input."""
    spec = TaskSpec(outputs=["y"], labels=["y"], metrics={"m": MetricSpec(metric, "y", "y", **options)})
    return MultiEstimator(GIVEN, spec).evaluate(data)["m"]


class Summed(mx.metric.EvalMetric):
    """A metric with an update of its own: the mean of what a function returns for the arrays of a batch."""

    def __init__(self, function: Any) -> None:
        super().__init__("x")
        self.function = function

    def update(self, *arrays: Any) -> None:
        value, count = self.function(*arrays)
        self.sum_metric, self.num_inst = self.sum_metric + value, self.num_inst + count


class Own:
    """A metric with an update of its own: outputs, then labels, lists per device."""

    def __init__(self, figures: Any = ("own", 0.5)) -> None:
        self.figures = figures
        self.calls: list[Any] = []

    def reset(self) -> None:
        self.calls.clear()

    def update(self, size: Any, digit: Any, label: Any) -> None:
        self.calls.append(
            [sum(len(part) for part in parts) for parts in (size, digit, label)] + [label[0].shape[1:]]
        )

    def get(self) -> Any:
        return self.figures


@BOTH
def test_a_function_of_labels_and_outputs(devices: list, batches: Any) -> None:
    """A function is called with the whole pass, as NumPy arrays: one each, or lists of several."""
    seen: list[Any] = []

    def share(label: np.ndarray, output: np.ndarray) -> float:
        seen.append((label.shape, output.shape))
        return float(label.mean())

    def both(labels: Any, outputs: Any) -> float:
        seen.append([array.shape for array in (*labels, *outputs)])
        return 1.0

    metrics = {
        "share": MetricSpec(share, "digit", "digit"),
        "both": MetricSpec(both, ["digit", "size"], ["size", "digit"]),
    }
    figures = estimator_of(devices, **metrics).evaluate(batches[:2])
    assert figures["both"] == 1.0
    assert figures["share"] == pytest.approx(np.mean([batch[1] for batch in batches[:2]]))
    first = [((8,), (8, 3)), [(8, 1), (8,), (8, 3), (8, 1)]]  # is checked before the others are read
    assert seen == [*first, ((16,), (16, 3)), [(16, 1), (16,), (16, 3), (16, 1)]]


def test_a_function_that_needs_more_than_the_first_batch(batches: Any, log: Any) -> None:
    """Within a pass, the figure is NaN; at its end, the error is raised."""

    def of_many(label: np.ndarray, output: np.ndarray) -> float:
        if len(label) < 20:
            raise ValueError("needs 20 samples")
        return float(len(label))

    seen: list[float] = []
    looks = handler(batch_end=lambda estimator: seen.append(estimator.figures()["train_many"]))
    estimator = estimator_of(many=MetricSpec(of_many, "size", "size"))
    history = estimator.fit(batches[:3], epochs=1, event_handlers=[looks])
    np.testing.assert_equal(seen, [np.nan, np.nan, 20.0])
    assert history["train_many"] == [20.0]
    warning = 'metrics["many"] cannot be computed from the batches so far (needs 20 samples); it is computed '
    assert sum(line.startswith(warning) for line in log()) == 1
    with pytest.raises(ValueError, match=r'raised in metrics\["many"\].update'):
        estimator.evaluate(batches[:2])


@pytest.mark.parametrize(
    ("metric", "value"), [(lambda y, x: 0.5, 0.5), (mx.metric.PearsonCorrelation(), 1.0)]
)
def test_arrays_of_a_pass_that_cannot_be_joined(metric: Any, value: float) -> None:
    """Sentences of another length."""
    random = np.random.RandomState(0)
    data = [(random.rand(4, length).astype("float32"),) * 2 for length in (5, 5, 6)]
    with pytest.raises(SpecError) as raised:
        of_given(metric, data)
    for text in ('metrics["m"]', "batch 3 has (4, 6) float32", "and batch 1 (4, 5)", "let transform="):
        assert text in str(raised.value)
    flat = of_given(metric, data, transform=lambda out, y: (y.reshape((-1,)), out.reshape((-1,))))
    assert flat == pytest.approx(value)


def test_arrays_of_some_batches_that_are_unlike_those_of_others() -> None:
    data = [(np.zeros((size, 2), "float32"), np.zeros(size, "float32")) for size in (2, 3)]
    with pytest.raises(SpecError, match="batch 2 has"):  # lists of another length
        of_given(lambda labels, output: 0.0, data, transform=lambda out, label: ([label] * len(label), out))
    odd = {"transform": lambda out, label: (label, out[:, 0] if len(label) == 2 else out[:, :1, None])}
    with pytest.raises(SpecError, match=r'metrics\["m"\]: arrays of some batches can be summed'):
        of_given(mx.metric.MAE(), data, **odd)


@BOTH
def test_arrays_and_losses_that_metrics_get(devices: list, batches: Any) -> None:
    """Lists stay one argument, as gluoncv's RPNAccMetric takes them; one array is passed as it is."""

    def weighted(labels: Any, preds: Any) -> tuple[float, float]:
        (label, weight), (size,) = labels, preds
        return float(((label + size * 0) * weight).sum().asscalar()), float(weight.sum().asscalar())

    def positive(labels: list, output: np.ndarray) -> float:
        assert [array.shape for array in (*labels, output)] == [(8, 1)] * 3
        return float(labels[0][labels[1] > 0].mean())

    def error(label: np.ndarray, output: np.ndarray) -> float:
        assert label.shape == output.shape == (8,)
        return float(np.abs(label - output).mean())

    def total(losses: Any) -> tuple[float, int]:
        return sum(float(part.sum().asscalar()) for part in losses), sum(len(part) for part in losses)

    grouped = {"transform": lambda size, label: ([label, label > 0], [size])}
    largest = Summed(lambda sizes: (max(float(part.max().asscalar()) for part in sizes), 1))
    metrics = {
        "update": MetricSpec(Summed(weighted), "size", "size", **grouped),
        "function": MetricSpec(positive, "size", "size", **grouped),
        "largest": MetricSpec(largest, "size", transform=lambda size: size * 0 + 7),
        "error": MetricSpec(error, "size", "size", transform=lambda s, y: (y[:, 0], s[:, 0] * 0)),
    }
    doubled = {"labels": "size", "transform": lambda label, loss: (label, loss * 2)}
    of_losses = {
        "own": MetricSpec(Summed(total), losses="size"),
        "stock": MetricSpec(mx.metric.Loss(), losses="size"),
        "twice": MetricSpec(mx.metric.Loss(), losses="size", **doubled),
    }
    size = batches[0][2]
    mean = size[size > 0].mean()
    expected = {"update": mean, "function": mean, "largest": 7.0, "error": np.abs(size).mean()}
    figures = estimator_of(devices, **metrics, **of_losses).evaluate(batches[:1])
    assert {name: figures[name] for name in metrics} == pytest.approx(expected, rel=1e-5)
    loss = figures["size"]
    assert [figures[name] for name in of_losses] == pytest.approx([loss, loss, 2 * loss], rel=1e-6)


def test_arguments_in_another_order(batches: Any) -> None:
    metric = Own()
    order = ["labels.size", "outputs.size", "outputs.digit"]
    estimator = estimator_of(TWO, own=MetricSpec(metric, arguments=order, stage="train", mode="min"))
    history = estimator.fit(batches[:1], batches[:1], epochs=1)
    assert metric.calls == [[8, 8, 8, (3,)]]
    assert history["train_own"] == [0.5] and "val_own" not in history


@pytest.mark.parametrize(
    ("got", "names", "figures"),
    [
        (("mAP", 0.5), None, {"own": 0.5}),
        (np.float32(0.5), None, {"own": 0.5}),
        ((("cat", "mAP"), np.array([0.25, 0.5])), None, {"own.cat": 0.25, "own.mAP": 0.5}),
        ((0.25, 0.5), ["pixel", "mean"], {"own.pixel": 0.25, "own.mean": 0.5}),
        ((["a"], [0.25]), ["x"], {"own.x": 0.25}),
    ],
)
def test_the_names_of_figures(batches: Any, got: Any, names: Any, figures: dict[str, float]) -> None:
    assert evaluated(batches, own=MetricSpec(Own(got), ["size", "digit"], "digit", names=names)) == figures


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a"], r'Own returns two figures named "a"; give names=\[...\], one for'),
        (["a", "b"], r'figure "own.a" is produced by metrics\["own"\] and metrics\["ow'),
    ],
)
def test_figures_without_names_of_their_own(names: list[str], message: str, batches: Any) -> None:
    own = MetricSpec(Own((names, [0.25, 0.5])), ["size", "digit"], "digit")
    estimator = estimator_of(**{"own": own, "own.a": MetricSpec(mx.metric.Accuracy(), "digit", "digit")})
    for call in (partial(estimator.fit, epochs=1), estimator.evaluate):
        with pytest.raises(SpecError, match=message):
            call(batches)


def test_the_direction_is_that_of_the_longest_name() -> None:
    stock = {"a": mx.metric.Accuracy(), "a.b": mx.metric.CrossEntropy()}
    metrics = {name: MetricSpec(metric, "digit", "digit") for name, metric in stock.items()}
    losses = {"a.loss": LossSpec(CE, "digit", "digit"), "size": L2}
    estimator = MultiEstimator(two_heads(), two_head_spec(metrics=metrics, losses=losses))
    expected = dict.fromkeys(["a", "a.x"], "max") | dict.fromkeys(["a.b", "a.b.x", "a.loss", "loss"], "min")
    expected["ab"] = None
    assert {name: estimator.direction(f"val_{name}") for name in expected} == expected
    assert estimator.direction("a") is estimator.direction("lr") is None
