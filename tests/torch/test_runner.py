"""What a run on torch shares with one on MXNet, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit import (
    CheckpointHandler,
    DataError,
    EarlyStoppingHandler,
    Every,
    GradientNoise,
    LabelSpec,
    LossSpec,
    MultiEstimator,
    SkipNonFinite,
    SpecError,
    TaskSpec,
    TerminateOnNaN,
    TrainerError,
    TrainerSpec,
    WeightAveraging,
)
from multifit.gluon.compat import mx
from multifit.gluon.data.seeding import seed_everything
from multifit.torch.engine import runner
from tests.common.compare import snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import TWO_HEADS, Heads, normed_heads, sequential, two_heads
from tests.common.specs import L2, one_loss_spec, two_head_spec

ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02})
BATCHES = in_batches(two_head_arrays(40).values())


PAIRS = [("torch", "torch"), ("mxnet", "torch"), ("torch", "mxnet")]


def net_of(kind: str = "hybridized") -> Any:
    seed_everything(3)
    net = normed_heads() if kind == "dropout" else two_heads("hybrid" if kind == "float64" else kind)
    if kind == "float64":
        net.cast("float64")
    if kind != "plain":
        net.hybridize()
        net.initialize(mx.init.Xavier())
        net(mx.nd.zeros((2, 6), dtype="float64" if kind == "float64" else "float32"))
    return net


def estimator_of(kind: str = "hybridized", engine: str = "torch", **options: Any) -> MultiEstimator:
    options = {"spec": two_head_spec(), "trainers": ADAM, "context": None, **options}
    return MultiEstimator(net_of(kind), engine=engine, **options)


def values(estimator: MultiEstimator) -> dict[str, np.ndarray]:
    return {name: parameter.data().asnumpy() for name, parameter in estimator.parameters.items()}


def assert_equal(one: dict[str, Any], other: dict[str, Any], tolerance: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=tolerance, atol=tolerance, err_msg=name)


# ---- what it shares ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engines", PAIRS, ids="-".join)
@pytest.mark.parametrize("stop", [3, 5])
def test_a_run_resumes_on_either_engine(engines: tuple[str, str], stop: int, tmp_path: Path) -> None:
    first, second = engines
    whole = estimator_of("float64", second)
    expected = whole.fit(BATCHES, epochs=3, event_handlers=[])
    saving = CheckpointHandler(tmp_path, every=Every(1, "batch"))
    estimator_of("float64", first).fit(BATCHES, batches=stop, event_handlers=[saving])
    resumed = estimator_of("float64", second)
    history = resumed.fit(BATCHES, epochs=3, resume=tmp_path, event_handlers=[])
    assert_equal(dict(expected), dict(history), 1e-10)
    assert_equal(values(whole), values(resumed), 1e-10)


def test_dropout_resumes_exactly(tmp_path: Path) -> None:
    """Torch's generator is seeded wherever MXNet's is."""

    def fit(folder: Path, **options: Any) -> MultiEstimator:
        estimator = estimator_of("dropout")
        saving = CheckpointHandler(folder, every=Every(1, "batch"))
        estimator.fit(BATCHES, event_handlers=[saving], **options)
        return estimator

    whole = fit(tmp_path / "whole", batches=8)
    fit(tmp_path / "parts", batches=3)
    resumed = fit(tmp_path / "parts", batches=8, resume=tmp_path / "parts")
    assert_equal(values(whole), values(resumed))


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    def fit(seed: int) -> dict[str, np.ndarray]:
        estimator = estimator_of("dropout")
        seed_everything(seed)
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
        return values(estimator)

    one, again, other = fit(1), fit(1), fit(2)
    assert_equal(one, again)
    assert any((one[name] != other[name]).any() for name in one)


def test_a_second_fit_goes_on_from_what_the_net_has_become() -> None:
    estimator = estimator_of()
    estimator.fit(BATCHES, epochs=1, event_handlers=[])
    for parameter in estimator.parameters.values():
        parameter.set_data(mx.nd.zeros(parameter.shape))
    assert not estimator.predict(BATCHES)["digit"].any()
    estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert estimator.predict(BATCHES)["digit"].any()


def test_handlers_see_the_values_of_the_running_batch() -> None:
    seen: list[Any] = []

    class Watch:
        def batch_end(self, estimator: Any, pred: Any, label: Any, loss: Any) -> None:
            weights = estimator.parameters["body.weight"].data().asnumpy()
            seen.append((weights, pred["digit"][0].shape, loss["digit"][0].asnumpy().sum()))
            assert estimator.gradients() == {"trainer": {}}  # used up

    estimator = estimator_of()
    estimator.fit(BATCHES, epochs=1, event_handlers=[Watch()])
    assert len(seen) == 5 and all(shape == (8, 3) for _, shape, _ in seen)
    assert (seen[0][0] != seen[1][0]).any() and seen[0][2] > 0


def test_what_a_handler_sets_at_the_end_of_an_epoch_counts() -> None:
    class Reset:
        def epoch_end(self, estimator: Any) -> None:
            for parameter in estimator.parameters.values():
                parameter.set_data(mx.nd.zeros(parameter.shape))

    estimator = estimator_of(trainers=TrainerSpec(".*", "sgd", {"learning_rate": 0.0}))
    history = estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[Reset()])
    assert history["train_digit"][1] == pytest.approx(np.log(3))


def test_validation_and_early_stopping() -> None:
    estimator = estimator_of()
    stopping = EarlyStoppingHandler("val_loss", patience=1, restore_best=True)
    history = estimator.fit(BATCHES, BATCHES, epochs=4, event_handlers=[stopping])
    assert min(history["val_loss"]) == pytest.approx(estimator.evaluate(BATCHES)["loss"], rel=1e-6)


def test_validation_in_the_middle_of_an_epoch() -> None:
    seen = []

    class Compare:
        def batch_end(self, estimator: Any) -> None:
            seen.append(estimator.evaluate(BATCHES, event_handlers=[])["loss"])

    estimator_of().fit(BATCHES, batches=3, event_handlers=[Compare()])
    assert seen[0] > seen[1] > seen[2]


def test_momentum_that_is_raised_from_0() -> None:
    def fit(engine: str) -> dict[str, np.ndarray]:
        estimator = estimator_of("float64", engine, trainers=TrainerSpec(".*", "sgd", {"learning_rate": 0.1}))

        class Raise:
            def batch_end(self, estimator: Any) -> None:
                estimator.trainers["trainer"].momentum = 0.9
                estimator.trainers["trainer"].learning_rate = 0.05

        estimator.fit(BATCHES, epochs=2, event_handlers=[Every(2, "batch", Raise())])
        return values(estimator)

    assert_equal(fit("mxnet"), fit("torch"), 1e-10)


def test_an_evaluation_that_is_no_graph_runs_with_mxnet(caplog: Any) -> None:
    def spec() -> TaskSpec:
        def forward(net: Any, slots: Any) -> Any:
            return net(slots["image"] * 1)

        return two_head_spec(evaluate=two_head_spec(forward=forward))

    one, other = (estimator_of("float64", engine, spec=spec()) for engine in ("mxnet", "torch"))
    histories = [dict(e.fit(BATCHES, BATCHES, epochs=2, event_handlers=[])) for e in (one, other)]
    assert_equal(*histories, 1e-10)
    assert_equal(one.predict(BATCHES), other.predict(BATCHES), 1e-10)
    assert "evaluating runs with MXNet on the CPU" in caplog.text


def test_a_net_that_was_never_trained_predicts_and_evaluates() -> None:
    one, other = (estimator_of("float64", engine) for engine in ("mxnet", "torch"))
    assert_equal(one.predict(BATCHES), other.predict(BATCHES), 1e-10)
    assert_equal(one.evaluate(BATCHES), estimator_of("float64").evaluate(BATCHES), 1e-10)


def test_a_net_that_is_no_graph_predicts_with_mxnet(caplog: Any) -> None:
    one, other = (estimator_of("plain", engine) for engine in ("mxnet", "torch"))
    for estimator in (one, other):
        estimator.net.initialize(mx.init.One())
    assert_equal(one.predict(BATCHES), other.predict(BATCHES))
    assert "evaluating runs with MXNet on the CPU" in caplog.text and "call net.hybridize()" in caplog.text


def test_programs_and_constants_that_are_discarded_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("program.MAX_PROGRAMS", "stage.MAX_CONSTANTS"):
        monkeypatch.setattr(f"multifit.torch.engine.{limit}", 1)
    image, digit, size = two_head_arrays(18).values()
    parts = [slice(0, 8), slice(8, 9), slice(9, 17), slice(17, 18)]  # a batch of one sample has its own graph
    data = [(image[part], digit[part], size[part]) for part in parts]

    def fit(engine: str) -> Any:
        estimator = estimator_of("float64", engine)
        history = estimator.fit(data, data, epochs=2, event_handlers=[])
        if engine == "torch":
            stages = estimator._runner._stages.values()
            assert {(len(stage._programs), len(stage._constants)) for stage in stages} == {(1, 1)}
        return dict(history), values(estimator)

    for one, other in zip(fit("mxnet"), fit("torch")):
        assert_equal(one, other, 1e-10)


def test_batches_along_another_axis() -> None:
    def fit(engine: str) -> Any:
        net, spec = mx.gluon.nn.HybridSequential(), one_loss_spec(CE_ROWS)
        seed_everything(1)
        net.add(mx.gluon.nn.Dense(3, flatten=False))
        net.cast("float64")
        net.hybridize()
        random = np.random.RandomState(0)
        data = [(random.randn(4, n, 5), random.randint(0, 3, (4, n)).astype("float64")) for n in (6, 6, 3)]
        estimator = MultiEstimator(net, spec, ADAM, engine=engine)
        return dict(estimator.fit(data, epochs=2, event_handlers=[], batch_axis=1)), values(estimator)

    for one, other in zip(fit("mxnet"), fit("torch")):
        assert_equal(one, other, 1e-10)


CE_ROWS = mx.gluon.loss.SoftmaxCrossEntropyLoss(batch_axis=1)


def test_missing_labels() -> None:
    arrays = {name: array.copy() for name, array in two_head_arrays(40).items()}
    arrays["digit"][::3] = np.nan
    data, spec = in_batches(arrays.values()), {"labels": [LabelSpec("digit", missing="nan"), "size"]}

    def fit(engine: str) -> Any:
        estimator = estimator_of("hybridized", engine, spec=two_head_spec(**spec))
        return dict(estimator.fit(data, data, epochs=2, event_handlers=[])), values(estimator)

    for one, other in zip(fit("mxnet"), fit("torch")):
        assert_equal(one, other, 1e-5)


def test_labels_that_are_no_class_are_named_with_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multifit.torch.engine.wrong_labels.HELD", 2)
    arrays = {name: array.copy() for name, array in two_head_arrays(40).items()}
    arrays["digit"][[25, 26, 35]] = 7
    messages = []
    for engine in ("mxnet", "torch"):
        with pytest.raises(DataError, match="batch 4") as caught:
            estimator_of(engine=engine).fit(in_batches(arrays.values()), epochs=1, event_handlers=[])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_the_plan_names_the_device() -> None:
    estimator = estimator_of()
    estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert estimator.plan is not None and estimator.plan.devices == ("cpu (torch)",)


# ---- handlers that change a step ---------------------------------------------------------------------------


class Halve:
    """Halves the inputs, and the gradients of the biases."""

    def change_batch(self, estimator: Any, slots: Any) -> Any:
        return {"image": slots["image"] / 2}

    def change_gradients(self, estimator: Any) -> None:
        for name, (gradient,) in estimator.gradients()["trainer"].items():
            if name.endswith("bias"):
                gradient *= 0.5


class SkipThird:
    """Holds the update back after every third batch."""

    def hold_update(self, estimator: Any, loss: Any) -> bool:
        assert all(array.asnumpy().all() for arrays in loss.values() for array in arrays)
        return estimator.state.step % 3 == 2


CHANGES: dict[str, Any] = {
    "batch and gradients": lambda: [Halve()],
    "noise": lambda: [GradientNoise(0.1)],
    "held": lambda: [SkipThird()],
    "averages of batches": lambda: [WeightAveraging("ema", decay=0.8)],
    "averages of epochs": lambda: [WeightAveraging("swa")],
    "finite": lambda: [SkipNonFinite()],
    "NaN": lambda: [TerminateOnNaN()],
}


@pytest.mark.parametrize("name", CHANGES)
def test_handlers_change_a_step_as_with_mxnet(name: str) -> None:
    def fit(engine: str) -> Any:
        estimator = estimator_of("float64", engine)
        seed_everything(5)
        history = estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=CHANGES[name]())
        return dict(history), values(estimator), estimator.predict(BATCHES)

    for one, other in zip(fit("mxnet"), fit("torch")):
        assert_equal(one, other, 1e-10)


@pytest.mark.parametrize("handler", [SkipNonFinite, TerminateOnNaN])
def test_batches_with_nan(handler: Any) -> None:
    arrays = two_head_arrays(40)
    arrays["image"][20] = np.nan

    def fit(engine: str) -> Any:
        # without relu, which makes 0 of NaN in MXNet's operator for CPUs
        net = Heads(
            body=sequential(mx.gluon.nn.Dense(8, use_bias=False), mx.gluon.nn.BatchNorm()), **TWO_HEADS
        )
        net.hybridize()
        seed_everything(5)
        estimator = MultiEstimator(net, two_head_spec(), ADAM, engine=engine)
        estimator.fit(in_batches(arrays.values()), epochs=1, event_handlers=[handler()])
        return values(estimator), estimator.state.stop_reason

    (one, reason), (other, same) = fit("mxnet"), fit("torch")
    assert_equal(one, other, 1e-4)
    assert reason == same


# ---- what it refuses ---------------------------------------------------------------------------------------


class Mean(mx.gluon.HybridBlock):
    """A loss that is not hybridized."""

    def hybrid_forward(self, F: Any, digit: Any, label: Any) -> Any:
        return F.mean(digit) + 0 * F.mean(label)


FITS: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "the net is not hybridized; call net.hybridize()": (SpecError, {"kind": "plain"}),
    'losses["digit"] cannot be part of the graph': (
        SpecError,
        {"spec": two_head_spec(losses={"digit": LossSpec(Mean(), "digit", "digit")}, unused=["size"])},
    ),
    "forward= is no graph": (
        SpecError,
        {"spec": two_head_spec(forward=lambda net, slots: net(slots["image"]))},
    ),
    "LBSGD has no translation": (TrainerError, {"trainers": TrainerSpec(".*", "lbsgd")}),
}


@pytest.mark.parametrize("message", FITS)
def test_fits_that_are_refused_move_nothing(message: str) -> None:
    error, options = FITS[message]
    estimator = estimator_of(**options)
    with pytest.raises(error) as caught:
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert message in str(caught.value) and 'use engine="mxnet"' in str(caught.value)
    before = snapshot(estimator.net)
    with pytest.raises(error) as again:
        estimator.check(BATCHES)
    assert message in str(again.value)
    with pytest.raises(error):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    for name, value in snapshot(estimator.net).items():
        np.testing.assert_array_equal(value, before[name])


class Untranslated(mx.gluon.HybridBlock):
    """Sorts by an operator that has no translation."""

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        return F.Correlation(image, image, kernel_size=1, max_displacement=1, pad_size=1)


def test_operators_that_have_no_translation_are_refused_by_name() -> None:
    net = Untranslated()
    net.hybridize()
    layers = sequential(mx.gluon.nn.Conv2D(1, 1), net, mx.gluon.nn.Dense(1))
    layers.hybridize()
    data = [(np.ones((2, 3, 4, 4), "float32"), np.ones((2, 1), "float32"))]
    estimator = MultiEstimator(layers, one_loss_spec(L2), ADAM, engine="torch")
    for call in (lambda: estimator.check(data), lambda: estimator.fit(data, epochs=1, event_handlers=[])):
        with pytest.raises(SpecError, match="Correlation.*no translation"):
            call()


def test_tools_are_refused() -> None:
    with pytest.raises(ValueError, match='find_learning_rate does not work with engine="torch"'):
        estimator_of().find_learning_rate(BATCHES)
    with pytest.raises(ValueError, match='profile does not work with engine="torch"'):
        estimator_of().profile(BATCHES)


@pytest.mark.parametrize("context", ["cuda:77", "nonsense", ["cpu", "cpu"], 3.5])
def test_devices_that_do_not_exist(context: Any) -> None:
    with pytest.raises(ValueError, match="context: .*give one device, such as"):
        estimator_of(context=context)


@pytest.mark.parametrize("context", [None, "cpu", mx.cpu(), [mx.cpu(0)], torch.device("cpu")], ids=str)
def test_devices_that_do(context: Any) -> None:
    estimator = estimator_of(context=context)
    assert estimator.context == [mx.cpu(0)]


def test_auto_is_torch_for_its_devices(caplog: Any) -> None:
    runners = estimator_of(engine="auto", context=torch.device("cpu"))._runners
    assert runners.__name__ == "multifit.torch.engine.runner"
    assert 'engine: torch, as context is "cpu"' in caplog.text
    assert estimator_of(engine="auto", context=mx.cpu())._runners.__name__ == "multifit.gluon.steps.runner"
    with pytest.raises(ValueError, match="CUDA"):
        estimator_of(engine="auto", context="cuda:77")


def test_auto_is_mxnet_for_a_gpu_that_torch_lacks_too() -> None:
    """Which then says that there is no such GPU."""
    assert runner.has(mx.cpu()) and not runner.has(mx.gpu(77))
    with pytest.raises(ValueError, match=r"gpu\(77\) does not exist"):
        estimator_of(engine="auto", context=mx.gpu(77))


def test_an_unknown_engine() -> None:
    with pytest.raises(ValueError, match='valid is "auto", "mxnet" or "torch"'):
        estimator_of(engine="keras")


def test_an_error_on_the_device_is_reported_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from multifit import UserCodeError
    from multifit.torch.engine.program import Program

    def fail(self: Any, given: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Program, "__call__", fail)
    with pytest.raises(UserCodeError, match="on torch raised RuntimeError.*out of memory"):
        estimator_of().fit(BATCHES, epochs=1, event_handlers=[])
