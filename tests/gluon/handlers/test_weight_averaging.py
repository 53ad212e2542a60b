"""WeightAveraging."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit.gluon.handlers import GradientAccumulation, WeightAveraging

import mxnet as mx  # isort: skip

from .training import DATA, fit, make_net, values


class Trace:
    """Copies the parameters after each batch, and those that an evaluation sees."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.after: list[list[np.ndarray]] = []
        self.evaluated: list[list[np.ndarray]] = []

    def batch_end(self, estimator: Any) -> None:
        self.after.append(self.values(estimator))

    def evaluate_begin(self, estimator: Any) -> None:
        nets = [[p.list_data()[i].asnumpy() for p in estimator.net.collect_params().values()]
                for i in range(len(estimator.context))]  # fmt: skip
        for other in nets[1:]:
            for one, two in zip(nets[0], other):
                np.testing.assert_array_equal(one, two)
        self.evaluated.append(nets[0])


def assert_near(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


def ema(trace: Any, decay: float) -> list[np.ndarray]:
    averages = [array.astype("float64") for array in trace[0]]
    for arrays in trace[1:]:
        averages = [decay * average + (1 - decay) * array for average, array in zip(averages, arrays)]
    return averages


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["ema", "swa"])
@pytest.mark.parametrize("start", [0, 1])
def test_averages(devices: int, kind: str, start: int) -> None:
    trace = Trace(values)
    handler = WeightAveraging(kind, decay=0.9, start=start)
    ours = fit([handler, trace], devices=devices, norm=devices == 1, epochs=3, val_data=DATA)
    plain = Trace(values)
    fit(plain, devices=devices, norm=devices == 1, epochs=3)
    for one, other in zip(trace.after, plain.after):
        assert_same(one, other)  # the training is not changed, by evaluating neither
    if kind == "ema":
        expected = [ema(trace.after[4 * start : 4 * epoch], 0.9) for epoch in range(start + 1, 4)]
    else:
        ends = trace.after[3::4][start:]
        expected = [[np.mean(own, axis=0) for own in zip(*ends[:n])] for n in range(1, len(ends) + 1)]
        statistics = [i for i, name in enumerate(ours.net.collect_params()) if "running" in name]
        for means, end in zip(expected, ends):
            for i in statistics:
                means[i] = end[i]  # they stay as the training made them
    assert len(trace.evaluated) == 3
    for found, means in zip(trace.evaluated[start:], expected):
        assert_near(found, means)
    if start:
        assert_same(trace.evaluated[0], trace.after[3])  # nothing is averaged yet
    assert_near(values(ours), expected[-1])


def test_the_net_keeps_its_own_parameters_with_apply_false() -> None:
    assert_same(values(fit(WeightAveraging(apply=False), val_data=DATA)), values(fit()))


def test_averaging_every_nth_update() -> None:
    trace = Trace(values)
    ours = fit([WeightAveraging(decay=0.5, every=3), trace])
    assert_near(values(ours), ema(trace.after[0::3], 0.5))


def test_batches_without_an_update_do_not_count() -> None:
    trace = Trace(values)
    ours = fit([WeightAveraging(decay=0.5), GradientAccumulation(4), trace])
    assert_near(values(ours), ema(trace.after[3::4], 0.5))


def test_a_constant_parameter_is_its_own_average() -> None:
    net = make_net(norm=True)
    net[0].collect_params().setattr("grad_req", "null")
    net[2].weight.lr_mult = 0.0
    before = values(net)
    handler = WeightAveraging(decay=0.7)
    fit(handler, net=net, epochs=10)
    assert_same(values(net)[:2], before[:2])
    assert_same([values(net)[6]], [before[6]])
    assert not {"0.weight", "0.bias"} & set(handler.averages)
    assert {"1.running_mean", "2.weight"} <= set(handler.averages)


def test_a_parameter_that_no_batch_reached_has_no_average() -> None:
    class Standing:
        parameters = {name: mx.gluon.Parameter(name, shape=(2,)) for name in ("reached", "not_reached")}

    Standing.parameters["reached"].initialize()
    handler = WeightAveraging("swa")
    handler.epoch_end(Standing)
    assert set(handler.averages) == {"reached"}


def test_a_failing_evaluation_restores_the_parameters() -> None:
    class Fails:
        def evaluate_end(self, estimator: Any) -> None:
            raise RuntimeError("no")

    trace = Trace(values)
    net = fit(epochs=1).net
    with pytest.raises(RuntimeError):
        fit([WeightAveraging(decay=0.5, apply=False), trace, Fails()], net=net, val_data=DATA)
    assert (trace.evaluated[0][0] != trace.after[-1][0]).any()
    assert_same(values(net), trace.after[-1])


def test_a_second_fit_starts_from_scratch_but_a_checkpoint_is_continued() -> None:
    handler, other = WeightAveraging(decay=0.5), WeightAveraging(decay=0.5)
    fit(handler)
    state = handler.state_dict()
    other.load_state_dict(state)
    first = mx.nd.array(state["averages"]["0.weight"])
    other._average_if_due(type("Standing", (), {"parameters": {}}))
    assert (other._elapsed, other._count, other._epochs) == (9, 9, 2)
    other.averages["0.weight"] += 1  # a copy of its own
    np.testing.assert_array_equal(handler.averages["0.weight"].asnumpy(), first.asnumpy())
    trace = Trace(values)
    ours = fit([handler, trace])
    assert_near(values(ours), ema(trace.after, 0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "sva"}, 'kind is "sva" .did you mean "swa"..; valid are "ema", "swa"'),
        ({"decay": 1}, "decay is 1; valid is a finite number of at least 0 and below 1"),
        ({"start": -1}, "start is -1; valid is a whole number of at least 0"),
        ({"every": 0}, "every is 0; valid is a whole number of at least 1"),
    ],
)
def test_invalid_arguments_are_errors(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"WeightAveraging: {message}"):
        WeightAveraging(**arguments)


def test_parameters_of_several_types() -> None:
    class Standing:
        parameters = {
            str(i): mx.gluon.Parameter(str(i), shape=(3,), dtype="float16" if i % 5 == 0 else "float32")
            for i in range(12)
        }

    parameters = Standing.parameters.values()
    for i, parameter in enumerate(parameters):
        parameter.initialize(mx.init.Constant(i % 7))
    handler = WeightAveraging("swa")
    handler.epoch_end(Standing)
    for parameter in parameters:
        parameter.set_data(parameter.data() + 2)
    handler.epoch_end(Standing)
    for i, average in enumerate(handler.averages.values()):
        np.testing.assert_allclose(average.asnumpy(), i % 7 + 1, rtol=1e-3)
        assert np.dtype(average.dtype) == ("float16" if i % 5 == 0 else "float32")
