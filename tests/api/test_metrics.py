"""The arguments of metrics, and the names of their figures."""

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from tests.common.grids import ONE, TWO
from tests.common.nets import two_heads
from tests.common.specs import CE, L2, two_head_spec

GIVEN = mx.gluon.nn.HybridLambda("BlockGrad")  # a net whose output is its input
BOTH = pytest.mark.parametrize("devices", [ONE, TWO], ids=["one device", "two devices"])


def evaluated(batches: Any, devices: Any = ONE, **metrics: Any) -> dict[str, float]:
    """Return the figures of a net on the first batch, without those of losses."""
    estimator = MultiEstimator(two_heads(), two_head_spec(metrics=metrics), context=devices)
    figures = estimator.evaluate(batches[:1])
    return {name: value for name, value in figures.items() if name not in ("loss", "digit", "size")}


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
    seen = []

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
    estimator = MultiEstimator(two_heads(), two_head_spec(metrics=metrics), context=devices)
    figures = estimator.evaluate(batches[:2])
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

    class Looks:
        def batch_end(self, estimator: MultiEstimator) -> None:
            seen.append(estimator.figures()["train_many"])

    seen: list[float] = []
    spec = two_head_spec(metrics={"many": MetricSpec(of_many, "size", "size")})
    estimator = MultiEstimator(two_heads(), spec)
    history = estimator.fit(batches[:3], epochs=1, event_handlers=[Looks()])
    np.testing.assert_equal(seen, [np.nan, np.nan, 20.0])
    assert history["train_many"] == [20.0]
    warning = 'metrics["many"] cannot be computed from the batches so far (needs 20 samples); it is computed '
    assert sum(line.startswith(warning) for line in log()) == 1
    with pytest.raises(ValueError, match=r'raised in metrics\["many"\].update'):
        estimator.evaluate(batches[:2])


@pytest.mark.parametrize("metric", [lambda label, output: 0.5, mx.metric.PearsonCorrelation()])
def test_arrays_of_a_pass_that_cannot_be_joined(metric: Any) -> None:
    """Sentences of another length."""

    def evaluate(**options: Any) -> float:
        spec = TaskSpec(outputs=["y"], labels=["y"], metrics={"m": MetricSpec(metric, "y", "y", **options)})
        return MultiEstimator(GIVEN, spec).evaluate(data)["m"]

    random = np.random.RandomState(0)
    data = [(random.rand(4, length).astype("float32"),) * 2 for length in (5, 5, 6)]
    with pytest.raises(SpecError) as raised:
        evaluate()
    for text in ('metrics["m"]', "batch 3 has (4, 6) float32", "and batch 1 (4, 5)", "let transform="):
        assert text in str(raised.value)
    flat = evaluate(transform=lambda out, label: (label.reshape((-1,)), out.reshape((-1,))))
    assert flat == pytest.approx(1.0 if isinstance(metric, mx.metric.EvalMetric) else 0.5)


def test_lists_of_another_length_cannot_be_joined() -> None:
    def grown(output: Any, label: Any) -> Any:
        return [label] * len(label), output

    metric = MetricSpec(lambda labels, output: 0.0, "y", "y", transform=grown)
    data = [(np.zeros((size, 2), "float32"), np.zeros(size, "float32")) for size in (2, 3)]
    with pytest.raises(SpecError, match="batch 2 has"):
        MultiEstimator(GIVEN, TaskSpec(outputs=["y"], labels=["y"], metrics={"m": metric})).evaluate(data)


def test_batches_of_which_only_some_can_be_summed(batches: Any) -> None:
    def odd(output: Any, label: Any) -> Any:
        return label, output if len(label) == 8 else output[:, :1, None]

    metric = MetricSpec(mx.metric.MAE(), "size", "size", transform=odd)
    data = [batches[0], [slot[:7] for slot in batches[1]]]
    with pytest.raises(SpecError, match=r'metrics\["odd"\]: arrays of some batches can be summed'):
        MultiEstimator(two_heads(), two_head_spec(metrics={"odd": metric})).evaluate(data)


@BOTH
def test_lists_stay_one_argument(devices: list, batches: Any) -> None:
    """As gluoncv's RPNAccMetric takes them: lists of what belongs together, device by device."""

    class Weighted(mx.metric.EvalMetric):
        def update(self, labels: Any, preds: Any) -> None:
            (label, weight), (size,) = labels, preds
            self.sum_metric += float(((label + size * 0) * weight).sum().asscalar())
            self.num_inst += float(weight.sum().asscalar())

    def grouped(size: Any, label: Any) -> Any:
        return [label, label > 0], [size]

    def both(labels: list, output: np.ndarray) -> float:
        assert [array.shape for array in (*labels, output)] == [(8, 1)] * 3
        return float(labels[0][labels[1] > 0].mean())

    metrics = {
        "update": MetricSpec(Weighted("x"), "size", "size", transform=grouped),
        "function": MetricSpec(both, "size", "size", transform=grouped),
    }
    mean = batches[0][2][batches[0][2] > 0].mean()
    assert evaluated(batches, devices, **metrics) == pytest.approx({"update": mean, "function": mean})


def test_transforms_for_one_array_and_for_a_function(batches: Any) -> None:
    class Largest(mx.metric.EvalMetric):
        def update(self, sizes: Any) -> None:
            self.sum_metric += max(float(part.max().asscalar()) for part in sizes)
            self.num_inst += 1

    def mean(label: np.ndarray, output: np.ndarray) -> float:
        assert label.shape == output.shape == (8,)
        return float(np.abs(label - output).mean())

    metrics = {
        "largest": MetricSpec(Largest("x"), "size", transform=lambda size: size * 0 + 7),
        "error": MetricSpec(mean, "size", "size", transform=lambda s, y: (y[:, 0], s[:, 0] * 0)),
    }
    error = pytest.approx(np.abs(batches[0][2]).mean(), rel=1e-5)
    assert evaluated(batches, TWO, **metrics) == {"largest": 7.0, "error": error}


def test_arguments_in_another_order(batches: Any) -> None:
    metric = Own()
    order = ["labels.size", "outputs.size", "outputs.digit"]
    spec = two_head_spec(metrics={"own": MetricSpec(metric, arguments=order, stage="train", mode="min")})
    estimator = MultiEstimator(two_heads(), spec, context=TWO)
    history = estimator.fit(batches[:1], batches[:1], epochs=1)
    assert metric.calls == [[8, 8, 8, (3,)]]
    assert history["train_own"] == [0.5]
    assert "val_own" not in history


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
    ("got", "names", "message"),
    [
        ((0.25, 0.5), None, r"Own returns 2 figures; give names=\[...\], one for each"),
        ((["a", "b"], [0.25, 0.5]), ["x"], "Own returns 2 figures; names= gives 1"),
        ((["a", "a"], [0.25, 0.5]), None, r'Own returns two figures named "a"; give names=\[...\], one for'),
        ((["a", "b"], [0.25, 0.5]), None, r'figure "own.a" is produced by metrics\["own"\] and metrics\["ow'),
    ],
)  # fmt: skip
def test_figures_without_names_of_their_own(got: Any, names: Any, message: str, batches: Any) -> None:
    own = MetricSpec(Own(got), ["size", "digit"], "digit", names=names)
    other = MetricSpec(mx.metric.Accuracy(), "digit", "digit")
    spec = two_head_spec(metrics={"own": own, "own.a": other})
    with pytest.raises(SpecError, match=message):
        MultiEstimator(two_heads(), spec).fit(batches, epochs=1)
    with pytest.raises(SpecError, match=message):
        MultiEstimator(two_heads(), spec).evaluate(batches)


def test_the_direction_is_that_of_the_longest_name() -> None:
    stock = {"a": mx.metric.Accuracy(), "a.b": mx.metric.CrossEntropy()}
    metrics = {name: MetricSpec(metric, "digit", "digit") for name, metric in stock.items()}
    losses = {"a.loss": LossSpec(CE, "digit", "digit"), "size": L2}
    estimator = MultiEstimator(two_heads(), two_head_spec(metrics=metrics, losses=losses))
    expected = dict.fromkeys(["a", "a.x"], "max") | dict.fromkeys(["a.b", "a.b.x", "a.loss", "loss"], "min")
    expected["ab"] = None
    assert {name: estimator.direction(f"val_{name}") for name in expected} == expected
    assert estimator.direction("a") is estimator.direction("lr") is None


def test_a_metric_may_serve_alone_and_within_another(batches: Any) -> None:
    def figures(alone: Any, within: Any) -> dict[str, float]:
        both = mx.metric.CompositeEvalMetric([within, mx.metric.MAE()])
        metrics = {"alone": MetricSpec(alone, "size", "size"), "within": MetricSpec(both, "size", "size")}
        mx.random.seed(2)
        return MultiEstimator(two_heads(), two_head_spec(metrics=metrics)).evaluate(batches)

    one = mx.metric.RMSE()
    assert figures(one, one) == figures(mx.metric.RMSE(), mx.metric.RMSE())


def test_metrics_of_losses(batches: Any) -> None:
    class Of(mx.metric.EvalMetric):
        def update(self, losses: Any) -> None:
            self.sum_metric += sum(float(part.sum().asscalar()) for part in losses)
            self.num_inst += sum(len(part) for part in losses)

    def doubled(label: Any, loss: Any) -> Any:
        return label, loss * 2

    metrics = {
        "own": MetricSpec(Of("x"), losses="size"),
        "stock": MetricSpec(mx.metric.Loss(), losses="size"),
        "twice": MetricSpec(mx.metric.Loss(), labels="size", losses="size", transform=doubled),
    }
    figures = MultiEstimator(two_heads(), two_head_spec(metrics=metrics)).evaluate(batches)
    size = figures["size"]
    assert [figures[name] for name in metrics] == pytest.approx([size, size, 2 * size], rel=1e-6)
