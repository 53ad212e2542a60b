"""check() and the first step of fit(): everything is proved, nothing moves, nothing runs twice."""

from __future__ import annotations

import random
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import multifit
from multifit import DataError, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec


class Normed(gluon.HybridBlock):
    """Has running statistics, dropout, and a head for each name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Dense(8), nn.BatchNorm(), nn.Dropout(0.5))
        self.digit = nn.Dense(3)
        self.size = nn.Dense(1)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.body(image)
        return self.digit(features), self.size(features)


def loader(arrays: dict[str, np.ndarray]) -> Any:
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays.values()), batch_size=8, shuffle=True)


def gradients(net: Any) -> list[np.ndarray]:
    return [g.asnumpy() for p in net.collect_params().values() if p.grad_req != "null" for g in p.list_grad()]


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_check_moves_nothing(
    hybridize: bool, devices: int, arrays: Any, make_spec: Any, snapshot: Any
) -> None:
    net = Normed()
    if hybridize:
        net.hybridize()
    estimator = MultiEstimator(net, make_spec(), context=[mx.cpu(i) for i in range(devices)])
    estimator.fit(loader(arrays), epochs=1)
    parameters, grads = snapshot(net), gradients(net)
    random.seed(3), np.random.seed(3)
    estimator.check(loader(arrays), loader(arrays))
    after = random.random(), np.random.rand()
    random.seed(3), np.random.seed(3)
    assert after == (random.random(), np.random.rand())
    for name, value in snapshot(net).items():
        np.testing.assert_array_equal(value, parameters[name], err_msg=name)
    for found, before in zip(gradients(net), grads):
        np.testing.assert_array_equal(found, before)


def test_training_after_a_check_is_as_without(
    batches: Any, make_net: Any, make_spec: Any, snapshot: Any
) -> None:
    found = []
    for checked in (False, True):
        mx.random.seed(1)
        net = make_net("hybridized")
        net.initialize()
        net(mx.nd.array(batches[0][0]))  # shapes are known: a check draws no random numbers for weights
        estimator = MultiEstimator(net, make_spec())
        if checked:
            estimator.check(batches, batches)
        history = estimator.fit(batches, batches, epochs=2)
        found.append((dict(history), snapshot(net)))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        np.testing.assert_array_equal(value, found[1][1][name], err_msg=name)


def test_check_leaves_no_figures_behind(batches: Any, make_net: Any, make_spec: Any) -> None:
    metric = mx.metric.CustomMetric(lambda label, pred: 1.0)
    spec = make_spec(metrics={"one": MetricSpec(metric, "digit", "digit")})
    estimator = MultiEstimator(make_net(), spec)
    estimator.check(batches, batches)
    assert metric.num_inst == 0
    assert estimator.figures("train") == estimator.figures("evaluate") == {}
    assert (estimator.state.step, estimator.state.samples, estimator.history.epochs) == (0, 0, 0)


def test_check_returns_the_plan(batches: Any, make_net: Any, make_spec: Any) -> None:
    estimator = MultiEstimator(make_net(), make_spec())
    assert estimator.plan is None
    plan = estimator.check(batches, batches)
    assert plan is estimator.plan
    assert isinstance(plan, multifit.Plan)


def test_check_without_validation_data_plans_no_evaluation(
    batches: Any, make_net: Any, make_spec: Any
) -> None:
    plan = MultiEstimator(make_net(), make_spec()).check(batches)
    assert plan.evaluate is None
    assert "evaluating" not in str(plan)


def test_the_plan_shows_everything(batches: Any, make_net: Any, make_spec: Any) -> None:
    def two(size: Any, label: Any) -> Any:
        loss = (size - label) ** 2
        return loss, loss * 2

    spec = make_spec(
        losses={
            "digit": gluon.loss.SoftmaxCrossEntropyLoss(),
            "spread": LossSpec(two, "size", "size", weight=0.5, returns=["a", "b"], minimize="b"),
        }
    )
    trainers = {
        "body": TrainerSpec("body.*", "sgd", {"learning_rate": 0.1}, clip_norm=2.0),
        "heads": TrainerSpec("(digit|size).*"),
    }
    estimator = MultiEstimator(make_net("hybridized"), spec, trainers, frozen=["size.bias"])
    shown = " ".join(str(estimator.check(batches, batches)).split())  # the columns' widths are not the point
    for line in [
        "batches of 8 on cpu(0)",
        "input image (8, 6) float32 net",
        "output digit (8, 3) float32 digit, accuracy",
        "output size (8, 1) float32 spread",
        "label digit (8,) float32 digit, accuracy",
        "loss digit (8,) float32 1 x SoftmaxCrossEntropyLoss(outputs.digit, labels.digit) / samples",
        "loss spread (8, 1) float32 0.5 x two(outputs.size, labels.size) / samples",
        "part spread.a (8, 1) float32 measured",
        "part spread.b (8, 1) float32 minimized",
        "metric accuracy a number Accuracy(outputs.digit, labels.digit)",
        "trainer body 2 parameters, 56 numbers SGD, learning rate 0.1, gradients clipped to norm 2, "
        "in 1 call: body.weight, body.bias",
        "trainer heads 3 parameters, 35 numbers Adam, learning rate 0.001, in 1 call: "
        "digit.weight, digit.bias, size.weight",
        "frozen 1 parameter size.bias",
        "evaluating and predicting",
    ]:
        assert line in shown, f"{line}\n\n{shown}"


def test_the_plan_names_what_normalizes(make_net: Any, make_spec: Any, batches: Any) -> None:
    spec = make_spec(
        labels=["digit", "size", "count"],
        losses={
            "digit": gluon.loss.SoftmaxCrossEntropyLoss(),
            "size": LossSpec(gluon.loss.L2Loss(), normalize_by="count"),
        },
        unused=["outputs.digit"],
    )
    extended = [(*batch, np.ones(len(batch[0]), "float32")) for batch in batches]
    shown = str(MultiEstimator(make_net(), spec).check(extended))
    assert "normalizes size" in shown
    assert "L2Loss(outputs.size, labels.size) / count" in shown


def test_the_plan_of_a_loss_on_all_devices(make_net: Any, make_spec: Any, batches: Any) -> None:
    def joint(sizes: Any, labels: Any) -> Any:
        return [((size - label) ** 2).mean() for size, label in zip(sizes, labels)]

    loss = LossSpec(joint, "size", "size", scope="batch")
    spec = make_spec(losses={"digit": gluon.loss.SoftmaxCrossEntropyLoss(), "size": loss})
    shown = str(MultiEstimator(make_net(), spec).check(batches))
    assert "1 x joint(outputs.size, labels.size) / the batch" in shown
    assert "losses of scope batch run on all devices at once" in shown


def test_fit_calls_the_net_once_for_each_batch(batches: Any, make_net: Any, make_spec: Any) -> None:
    net = make_net("plain")
    MultiEstimator(net, make_spec()).fit(batches, epochs=2)
    assert net.calls == [(8, 6), (8, 6), (4, 6)] * 2


def test_the_first_batch_is_trained_on(batches: Any, make_net: Any, make_spec: Any, snapshot: Any) -> None:
    net = make_net()
    net.initialize()
    net(mx.nd.array(batches[0][0]))
    before = snapshot(net)
    estimator = MultiEstimator(net, make_spec(), TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))
    history = estimator.fit(batches[:1], epochs=1)
    assert estimator.state.step == 1
    assert history["train_loss"][0] > 0
    assert all((value != before[name]).any() for name, value in snapshot(net).items())


def test_fit_reads_each_batch_once(batches: Any, make_net: Any, make_spec: Any) -> None:
    read = []

    class Loader:
        def __iter__(self) -> Any:
            for i, batch in enumerate(batches):
                read.append(i)
                yield batch

    MultiEstimator(make_net(), make_spec()).fit(Loader(), epochs=2)
    assert read == [0, 1, 2] * 2


def test_validation_costs_one_batch_more(batches: Any, make_net: Any, make_spec: Any) -> None:
    net = make_net()
    MultiEstimator(net, make_spec()).fit(batches, batches, epochs=2)
    assert len(net.calls) == 2 * 3 + 2 * 3 + 1  # the check of the evaluating form, before anything moves


def test_an_uninitialised_net_is_initialised(batches: Any, make_net: Any, make_spec: Any) -> None:
    net = make_net()
    MultiEstimator(net, make_spec()).check(batches)
    assert net.body.weight.data().shape == (8, 6)


def test_a_refused_fit_can_be_mended(batches: Any, make_net: Any, make_spec: Any) -> None:
    estimator = MultiEstimator(make_net(), make_spec())
    with pytest.raises(DataError):
        estimator.fit([batch[:2] for batch in batches], epochs=1)
    assert estimator.state.step == 0
    assert estimator.fit(batches, epochs=1).epochs == 1


def test_empty_val_data_is_refused_before_anything_moves(
    batches: Any, make_net: Any, make_spec: Any, snapshot: Any
) -> None:
    net = make_net()
    estimator = MultiEstimator(net, make_spec())
    estimator.check(batches)
    before = snapshot(net)
    with pytest.raises(DataError, match="val_data is empty"):
        estimator.fit(
            batches, mx.io.NDArrayIter(np.zeros((1, 6)), batch_size=2, last_batch_handle="discard"), epochs=1
        )
    for name, value in snapshot(net).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_the_bindings_of_outputs(batches: Any) -> None:
    """Tuples, lists, nests, dicts and single arrays are bound to the names."""
    forms: list[tuple[Callable[[Any, Any], Any], Any]] = [
        (lambda a, b: (a, b), ["digit", "size"]),
        (lambda a, b: [a, b], ["digit", "size"]),
        (lambda a, b: (a, (b, a)), ["digit", ["size", "again"]]),
        (lambda a, b: {"size": b, "digit": a}, ["digit", "size"]),
        (lambda a, b: (a, b, a, b), ["digit", "size", ...]),
    ]
    found = []
    for form, outputs in forms:
        mx.random.seed(0)
        net = Formed(form)
        spec = TaskSpec(
            inputs=["image"], outputs=outputs, labels=["digit", "size"],
            unused=["again"] if "again" in str(outputs) else [],
            losses={"digit": gluon.loss.SoftmaxCrossEntropyLoss(), "size": gluon.loss.L2Loss()},
        )  # fmt: skip
        found.append(dict(MultiEstimator(net, spec).fit(batches, epochs=1)))
    assert all(figures == found[0] for figures in found)


class Formed(gluon.Block):
    def __init__(self, form: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.digit = nn.Dense(3)
        self.size = nn.Dense(1)
        self.form = form

    def forward(self, image: Any) -> Any:
        return self.form(self.digit(image), self.size(image))
