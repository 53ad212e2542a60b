"""WeightAveraging."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, EarlyStoppingHandler, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.distributed import ALONE
from multifit.gluon.handler_arrays import GluonArrays
from multifit.handlers import WeightAveraging
from tests.common.compare import snapshot
from tests.common.grids import ONE, TWO
from tests.common.handlers import Freezes
from tests.common.nets import mlp
from tests.common.specs import CE

import mxnet as mx  # isort: skip

from .training import DATA, On, assert_close, assert_equal, fit, values


class Trace:
    """Copies the parameters after each batch, and those that an evaluation sees."""

    def __init__(self) -> None:
        self.after: list[list[np.ndarray]] = []
        self.evaluated: list[list[np.ndarray]] = []

    def batch_end(self, estimator: Any) -> None:
        self.after.append(values(estimator))

    def evaluate_begin(self, estimator: Any) -> None:
        arrays = snapshot(estimator.net)
        for name, array in arrays.items():  # the same on all devices
            np.testing.assert_array_equal(array, arrays[name.partition("@")[0] + "@cpu(0)"])
        self.evaluated.append(values(estimator))


def ema(steps: Any, decay: float) -> list[np.ndarray]:
    averages = [array.astype("float64") for array in steps[0]]
    for arrays in steps[1:]:
        averages = [decay * average + (1 - decay) * array for average, array in zip(averages, arrays)]
    return averages


@pytest.mark.parametrize(("kind", "start", "devices"), [("ema", 1, TWO), ("swa", 0, ONE)])
def test_averages(kind: str, start: int, devices: Any) -> None:
    options = {"devices": devices, "norm": devices == ONE, "epochs": 3}
    trace, plain = Trace(), Trace()
    ours = fit([WeightAveraging(kind, decay=0.9, start=start), trace], val_data=DATA, **options)
    fit(plain, **options)
    for one, other in zip(trace.after, plain.after):
        assert_equal(one, other)  # the training is not changed, by evaluating neither
    if kind == "ema":
        expected = [ema(trace.after[4 * start : 4 * epoch], 0.9) for epoch in range(start + 1, 4)]
    else:
        ends = trace.after[3::4][start:]
        expected = [[np.mean(arrays, axis=0) for arrays in zip(*ends[:n])] for n in range(1, len(ends) + 1)]
        statistics = [i for i, name in enumerate(ours.net.collect_params()) if "running" in name]
        for means, end in zip(expected, ends):
            for i in statistics:
                means[i] = end[i]  # they stay as the training made them
    assert len(trace.evaluated) == 3
    for evaluated, means in zip(trace.evaluated[start:], expected):
        assert_close(evaluated, means)
    if start:
        assert_equal(trace.evaluated[0], trace.after[3])  # nothing is averaged yet
    assert_close(ours, expected[-1])


def test_a_fit_that_ends_before_averaging_begins(caplog: pytest.LogCaptureFixture) -> None:
    message = "WeightAveraging averaged nothing: the fit had 2 epochs, averaging begins after start=2"
    averaged = fit(WeightAveraging("swa", start=2))
    assert caplog.messages.count(message) == 1
    assert_equal(averaged, fit(WeightAveraging("swa", start=0, apply=False)))
    assert caplog.messages.count(message) == 1


def of_two(accumulate: bool) -> dict[str, TrainerSpec]:
    return {
        "first": TrainerSpec("0.*", "sgd", every=2, accumulate=accumulate),
        "last": TrainerSpec("1.*", "sgd", every=3, accumulate=accumulate),
    }


# Arguments, options of the fit, other handlers, and the batches that count, of two epochs of four: those
# after which a trainer moved. Accumulated batches that an epoch leaves over are an update.
COUNTED: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any], list[int]]] = {
    "every third update": ({"every": 3}, {}, [], [1, 4, 7]),
    "accumulated batches": ({}, {"accumulate": 4}, [], [4, 8]),
    "trainers that wait": ({}, {"trainers": of_two(False)}, [], [2, 3, 4, 6, 8]),
    "trainers that accumulate": ({}, {"trainers": of_two(True)}, [], [2, 3, 4, 6, 7, 8]),
    "what a handler freezes": ({}, {}, [Freezes({5: "0.*"})], [1, 2, 3, 4, 5, 6, 7, 8]),
}


@pytest.mark.parametrize(("arguments", "options", "others", "counted"), COUNTED.values(), ids=COUNTED)
def test_which_updates_count(arguments: Any, options: Any, others: list[Any], counted: list[int]) -> None:
    trace = Trace()
    ours = fit([WeightAveraging(decay=0.5, **arguments), *others, trace], **options)
    assert_close(ours, ema([trace.after[number - 1] for number in counted], 0.5))
    if others:
        assert_equal(trace.after[-1][:2], trace.after[4][:2])


def test_a_constant_parameter_is_its_own_average() -> None:
    net = mlp(3, norm=True)
    net[0].collect_params().setattr("grad_req", "null")
    net[2].weight.lr_mult = 0.0
    before = values(net)
    handler = WeightAveraging(decay=0.7)
    fit(handler, net=net)
    assert_equal([*values(net)[:2], values(net)[6]], [*before[:2], before[6]])
    assert not {"0.weight", "0.bias"} & set(handler.evaluated_parameters)
    assert {"1.running_mean", "2.weight"} <= set(handler.evaluated_parameters)


def test_a_failing_evaluation_restores_the_parameters() -> None:
    def fail(estimator: Any) -> None:
        raise RuntimeError("no")

    trace, net = Trace(), mlp(3)
    with pytest.raises(RuntimeError):
        fit([WeightAveraging(decay=0.5, apply=False), trace, On(evaluate_end=fail)], net=net, val_data=DATA)
    assert (trace.evaluated[0][0] != trace.after[-1][0]).any()
    assert_equal(net, trace.after[-1])


def test_a_second_fit_starts_from_scratch_and_states_are_copies() -> None:
    handler, other, trace = WeightAveraging(decay=0.5), WeightAveraging(decay=0.5), Trace()
    fit(handler)
    other.load_state_dict(handler.state_dict())
    first = handler.evaluated_parameters["0.weight"].asnumpy()
    other.evaluated_parameters["0.weight"] += 1
    np.testing.assert_array_equal(handler.evaluated_parameters["0.weight"].asnumpy(), first)
    assert_close(fit([handler, trace]), ema(trace.after, 0.5))


def test_parameters_of_several_types_and_one_that_no_batch_reached() -> None:
    dtypes = ["float16" if i % 5 == 0 else "float32" for i in range(12)]
    parameters = {str(i): mx.gluon.Parameter(str(i), shape=(3,), dtype=d) for i, d in enumerate(dtypes)}
    for i, parameter in enumerate(parameters.values()):
        parameter.initialize(mx.init.Constant(i % 7))
    reached = list(parameters.values())
    parameters["not reached"] = mx.gluon.Parameter("not reached", shape=(2,))
    handler = WeightAveraging("swa")
    for number in (0, 2):
        for parameter in reached:
            parameter.set_data(parameter.data() + number)
        handler.epoch_end(SimpleNamespace(arrays=GluonArrays(parameters, ALONE)))
    for i, average in enumerate(handler.evaluated_parameters.values()):
        np.testing.assert_allclose(average.asnumpy(), i % 7 + 1, rtol=1e-3)
        assert np.dtype(average.dtype) == dtypes[i]


def validated(tmp_path: Path, *handlers: Any, devices: Any = ONE) -> Any:
    """Train with a rate at which the averages of an early epoch are the best."""
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 1.5})
    saving = CheckpointHandler(tmp_path, every=1, monitor="val_loss", keep_last=1, seed=1)
    options = {"trainers": trainer, "val_data": DATA[:1], "epochs": 5, "norm": devices == ONE}
    return fit([*handlers, saving], devices=devices, data=DATA[1:], **options)


def loss_of(net: Any) -> float:
    losses = {"ce": LossSpec(CE, "y", "label")}
    spec = TaskSpec(outputs=["y"], labels=["label"], losses=losses)
    return MultiEstimator(net, spec).evaluate(DATA[:1], event_handlers=[])["loss"]


@pytest.mark.parametrize(("kind", "devices"), [("ema", TWO), ("swa", ONE)])
def test_a_checkpoint_holds_what_its_figure_was_measured_on(kind: str, devices: Any, tmp_path: Path) -> None:
    estimator = validated(tmp_path, WeightAveraging(kind, decay=0.7), devices=devices)
    history = estimator.history["val_loss"]
    best = 1 + int(np.argmin(history))
    assert best < 5
    for epoch in (best, 5):
        folder = tmp_path / "checkpoints" / f"epoch-{epoch:04}-step-{3 * epoch:08}"
        net = mlp(3, norm=devices == ONE)
        net.load_parameters(str(folder / "net.params"))
        np.testing.assert_allclose(loss_of(net), history[epoch - 1], rtol=1e-5)
        trained = mx.nd.load(str(folder / "trained.params"))
        assert all(
            (array != net.collect_params()[name]).any() for name, array in trained.items() if name in net
        )
        net.load_parameters(str(folder / "trained.params"), allow_missing=True)
        assert abs(loss_of(net) - history[epoch - 1]) > 1e-3


@pytest.mark.parametrize("figure", ["val_loss", "train_loss"])
def test_the_best_epochs_parameters_are_those_of_its_figure(figure: str, tmp_path: Path) -> None:
    trace = Trace()
    stopping = EarlyStoppingHandler(figure, patience=9, restore_best=True)
    estimator = validated(tmp_path, WeightAveraging("ema", decay=0.7), trace, stopping)
    best = int(np.argmin(estimator.history[figure]))
    expected = trace.evaluated[best] if figure == "val_loss" else trace.after[3 * best + 2]
    assert_equal(estimator, expected)
