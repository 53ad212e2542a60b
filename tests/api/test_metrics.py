"""What metrics are fed, and what their figures are called."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError

DEVICES = [[mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]]


@pytest.fixture(params=DEVICES, ids=["one device", "two devices"])
def evaluated(request: Any, make_net: Any, make_spec: Any, batches: Any) -> Any:
    """Return ``evaluated(**metrics)``: the figures of a net on the first batch, without those of losses."""

    def evaluate(**metrics: Any) -> dict[str, float]:
        spec = make_spec(metrics=metrics)
        figures = MultiEstimator(make_net(), spec, context=request.param).evaluate(batches[:1])
        return {name: value for name, value in figures.items() if name not in ("loss", "digit", "size")}

    return evaluate


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


def test_a_function_of_labels_and_outputs(evaluated: Any, batches: Any) -> None:
    seen = []

    def share(label: np.ndarray, output: np.ndarray) -> float:
        seen.append((label.shape, output.shape))
        return float(label.mean())

    assert evaluated(share=MetricSpec(share, "digit", "digit")) == {
        "share": pytest.approx(batches[0][1].mean())
    }
    assert seen == [((8,), (8, 3))]


def test_a_function_of_several(evaluated: Any) -> None:
    seen = []

    def both(labels: Any, outputs: Any) -> float:
        seen.append([array.shape for array in (*labels, *outputs)])
        return 1.0

    assert evaluated(both=MetricSpec(both, ["digit", "size"], ["size", "digit"])) == {"both": 1.0}
    assert seen == [[(8, 1), (8,), (8, 3), (8, 1)]]


def test_a_function_of_transformed_slots(evaluated: Any, batches: Any) -> None:
    def mean(label: np.ndarray, output: np.ndarray) -> float:
        assert label.shape == output.shape == (8,)
        return float(np.abs(label - output).mean())

    def flat(size: Any, label: Any) -> Any:
        return label.reshape((-1,)), size.reshape((-1,)) * 0

    figures = evaluated(error=MetricSpec(mean, "size", "size", transform=flat))
    assert figures == {"error": pytest.approx(np.abs(batches[0][2]).mean(), rel=1e-5)}


def test_a_transformed_stock_metric(evaluated: Any, batches: Any) -> None:
    def positive(size: Any, label: Any) -> Any:
        return [label > 0], [mx.nd.concat(size * 0 + 1, size * 0, dim=1)]  # always says class 0

    def unpacked(size: Any, label: Any) -> Any:
        return tuple(part[0] for part in positive(size, label))

    figures = evaluated(zero=MetricSpec(mx.metric.Accuracy(), "size", "size", transform=unpacked))
    assert figures == {"zero": (batches[0][2] <= 0).mean()}


def test_a_transform_that_returns_one_array(evaluated: Any) -> None:
    class Largest(mx.metric.EvalMetric):
        def update(self, sizes: Any) -> None:
            self.sum_metric += max(float(part.max().asscalar()) for part in sizes)
            self.num_inst += 1

    figures = evaluated(largest=MetricSpec(Largest("x"), "size", transform=lambda size: size * 0 + 7))
    assert figures == {"largest": 7.0}


def test_an_update_of_its_own(evaluated: Any) -> None:
    metric = Own()
    spec = MetricSpec(metric, ["size", "digit"], "digit")
    assert evaluated(own=spec) == {"own": 0.5}


def test_arguments_in_another_order(make_net: Any, make_spec: Any, batches: Any) -> None:
    metric = Own()
    order = ["labels.size", "outputs.size", "outputs.digit"]
    spec = make_spec(metrics={"own": MetricSpec(metric, arguments=order, stage="train", mode="min")})
    estimator = MultiEstimator(make_net(), spec, context=[mx.cpu(0), mx.cpu(1)])
    history = estimator.fit(batches[:1], batches[:1], epochs=1)
    assert metric.calls == [[8, 8, 8, (3,)]]
    assert history["train_own"] == [0.5]
    assert "val_own" not in history


@pytest.mark.parametrize(
    ("got", "names", "figures"),
    [
        (("mAP", 0.5), None, {"own": 0.5}),
        (0.5, None, {"own": 0.5}),
        (np.float32(0.5), None, {"own": 0.5}),
        ((["cat", "mAP"], [0.25, 0.5]), None, {"own.cat": 0.25, "own.mAP": 0.5}),
        ((("cat", "mAP"), np.array([0.25, 0.5])), None, {"own.cat": 0.25, "own.mAP": 0.5}),
        ((0.25, 0.5), ["pixel", "mean"], {"own.pixel": 0.25, "own.mean": 0.5}),
        ((["a", "b"], [0.25, 0.5]), ["x", "y"], {"own.x": 0.25, "own.y": 0.5}),
        ((["a"], [0.25]), ["x"], {"own.x": 0.25}),
    ],
)
def test_the_names_of_figures(evaluated: Any, got: Any, names: Any, figures: dict[str, float]) -> None:
    assert evaluated(own=MetricSpec(Own(got), ["size", "digit"], "digit", names=names)) == figures


@pytest.mark.parametrize(
    ("got", "names", "message"),
    [
        ((0.25, 0.5), None, r"Own returns 2 figures; give names=\[...\], one for each"),
        ((["a", "b"], [0.25, 0.5]), ["x"], "Own returns 2 figures; names= gives 1"),
    ],
)
def test_figures_without_names(
    got: Any, names: Any, message: str, make_net: Any, make_spec: Any, batches: Any
) -> None:
    spec = make_spec(metrics={"own": MetricSpec(Own(got), ["size", "digit"], "digit", names=names)})
    with pytest.raises(SpecError, match=message):
        MultiEstimator(make_net(), spec).fit(batches, epochs=1)


def test_a_metric_of_losses(evaluated: Any, make_net: Any, make_spec: Any, batches: Any) -> None:
    class Of(mx.metric.EvalMetric):
        def update(self, losses: Any) -> None:
            self.sum_metric += sum(float(part.sum().asscalar()) for part in losses)
            self.num_inst += sum(len(part) for part in losses)

    spec = make_spec(
        metrics={
            "own": MetricSpec(Of("x"), losses="size"),
            "stock": MetricSpec(mx.metric.Loss(), losses="size"),
        }
    )
    figures = MultiEstimator(make_net(), spec).evaluate(batches)
    assert figures["own"] == pytest.approx(figures["size"], rel=1e-6)
    assert figures["stock"] == pytest.approx(figures["size"], rel=1e-6)


def test_a_transform_of_losses(make_net: Any, make_spec: Any, batches: Any) -> None:
    def doubled(label: Any, loss: Any) -> Any:
        return label, loss * 2

    loss = MetricSpec(mx.metric.Loss(), labels="size", losses="size", transform=doubled)
    figures = MultiEstimator(make_net(), make_spec(metrics={"twice": loss})).evaluate(batches)
    assert figures["twice"] == pytest.approx(2 * figures["size"], rel=1e-6)


def test_a_figure_that_was_not_measured_is_nan(make_net: Any, make_spec: Any, batches: Any) -> None:
    spec = make_spec(
        losses={"digit": mx.gluon.loss.SoftmaxCrossEntropyLoss(), "size": LossSpec(mx.gluon.loss.L2Loss())},
        metrics={"own": MetricSpec(Own(), ["size", "digit"], "digit", names=["a", "b"])},
    )
    estimator = MultiEstimator(make_net(), spec)
    names, values = estimator.train_metrics[0].get()
    assert names == "train_own"
    assert np.isnan(values)
