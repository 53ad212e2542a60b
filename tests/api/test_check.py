"""check() and the first step of fit(): everything is checked, nothing moves, nothing runs twice."""

import random
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import multifit
from multifit import LossSpec, MetricSpec, MultiEstimator, TrainerSpec
from tests.common.compare import assert_unchanged, snapshot
from tests.common.grids import two_settings
from tests.common.nets import hybridized, normed_heads, two_heads
from tests.common.specs import CE, two_head_spec


def loader(arrays: dict[str, np.ndarray]) -> Any:
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays.values()), batch_size=8, shuffle=True)


def gradients(net: Any) -> list[np.ndarray]:
    return [g.asnumpy() for p in net.collect_params().values() if p.grad_req != "null" for g in p.list_grad()]


TRAINERS = {"body": TrainerSpec("body.*", "sgd"), "heads": TrainerSpec("(?!body).*", "sgd")}


@two_settings
def test_check_moves_nothing(devices: list, hybrid: bool, arrays: Any) -> None:
    trainers = TRAINERS if hybrid else None
    net = hybridized(normed_heads(), hybrid)
    estimator = MultiEstimator(net, two_head_spec(), trainers, context=devices)
    estimator.fit(loader(arrays), loader(arrays), epochs=1)
    parameters, grads = snapshot(net), gradients(net)
    figures = estimator.figures(), estimator.figures("evaluate")
    random.seed(3), np.random.seed(3)
    estimator.check(loader(arrays), loader(arrays))
    after = random.random(), np.random.rand()
    random.seed(3), np.random.seed(3)
    assert after == (random.random(), np.random.rand())
    assert_unchanged(net, parameters)
    assert all(figures) and (estimator.figures(), estimator.figures("evaluate")) == figures
    for gradient, before in zip(gradients(net), grads):
        np.testing.assert_array_equal(gradient, before)


def test_training_after_a_check_is_as_without(batches: Any) -> None:
    runs = []
    for checked in (False, True):
        mx.random.seed(1)
        net = two_heads("hybridized")
        net.initialize()
        net(mx.nd.array(batches[0][0]))  # shapes are known: a check draws no random numbers for weights
        estimator = MultiEstimator(net, two_head_spec())
        if checked:
            estimator.check(batches, batches)
        runs.append((dict(estimator.fit(batches, batches, epochs=2)), net))
    assert runs[0][0] == runs[1][0]
    assert_unchanged(runs[1][1], snapshot(runs[0][1]))


def test_a_loader_that_fails_is_named(batches: Any) -> None:
    def broken() -> Iterator[Any]:
        raise OSError("the disk is gone")
        yield

    with pytest.raises(OSError, match="the disk is gone") as raised:
        MultiEstimator(two_heads(), two_head_spec()).check(broken())
    assert raised.value.__notes__ == ["raised in data"]


def test_check_leaves_no_figures_behind_and_returns_the_plan(batches: Any) -> None:
    metric = mx.metric.CustomMetric(lambda label, pred: 1.0)
    estimator = MultiEstimator(
        two_heads(), two_head_spec(metrics={"one": MetricSpec(metric, "digit", "digit")})
    )
    assert estimator.plan is None
    plan = estimator.check(batches, batches)
    assert plan is estimator.plan and isinstance(plan, multifit.Plan)
    assert metric.num_inst == 0
    assert estimator.figures("train") == estimator.figures("evaluate") == {}
    assert (estimator.state.step, estimator.state.samples, estimator.history.epochs) == (0, 0, 0)


def test_the_plan_shows_everything(batches: Any) -> None:
    def two(size: Any, label: Any) -> Any:
        loss = (size - label) ** 2
        return loss, loss * 2

    spread = LossSpec(two, "size", "size", weight=0.5, returns=["a", "b"], minimize="b")
    trainers = {
        "body": TrainerSpec("body.*", "sgd", {"learning_rate": 0.1}, clip_norm=2.0),
        "heads": TrainerSpec("(digit|size).*"),
    }
    spec = two_head_spec(losses={"digit": CE, "spread": spread})
    estimator = MultiEstimator(two_heads("hybridized"), spec, trainers, frozen=["size.bias"])
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
        "trainer body 2 parameters, 56 numbers SGD, learning rate 0.1, gradients clipped to norm 2: "
        "body.weight, body.bias",
        "trainer heads 3 parameters, 35 numbers Adam, learning rate 0.001: "
        "digit.weight, digit.bias, size.weight",
        "frozen 1 parameter size.bias",
        "evaluating and predicting",
    ]:
        assert line in shown, f"{line}\n\n{shown}"


def test_a_batch_is_read_once_and_run_once_more_for_the_check(batches: Any) -> None:
    read = []

    class Loader:
        def __iter__(self) -> Any:
            for i, batch in enumerate(batches):
                read.append(i)
                yield batch

    net = two_heads()
    estimator = MultiEstimator(net, two_head_spec())
    estimator.fit(Loader(), epochs=2)
    assert read == [0, 1, 2] * 2
    assert net.calls == [(8, 6), *[(8, 6), (8, 6), (4, 6)] * 2]
    estimator.fit(batches, batches, epochs=2)
    assert len(net.calls) == 1 + 2 * 3 + 2 + 4 * 3
