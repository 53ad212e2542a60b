"""Estimators of Gluon nets on PyTorch: what they leave in the net and in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit import CheckpointHandler, Every, LabelSmoothing, MultiEstimator, SpecError, TaskSpec
from multifit.gluon.compat import mx
from multifit.torch.from_gluon.engine import host
from multifit.utils.seeding import seed_everything
from tests.common.nets import sequential
from tests.torch.from_gluon.bridges import assert_same

nn = mx.gluon.nn
R = np.random.RandomState(0)
DATA = [(R.randn(6, 3, 5, 5), R.randint(0, 3, 6)) for _ in range(4)]


class Weighing(mx.gluon.loss.Loss):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__(weight=None, batch_axis=0)
        self.scale = self.params.get("scale", shape=(1,), init=mx.init.One(), dtype="float64")

    def hybrid_forward(self, F: Any, scores: Any, label: Any, scale: Any) -> Any:
        return F.broadcast_mul(-F.pick(F.log_softmax(scores), label), F.exp(scale)) - F.sum(scale) * 0.1


def estimator_of(engine: str = "torch", loss: Any = None, **fields: Any) -> MultiEstimator:
    seed_everything(3)
    net = sequential(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    net.cast("float64")
    net.hybridize()
    losses = {"y": Weighing() if loss is None else loss}
    spec = TaskSpec(inputs=["x"], outputs=["y"], labels=["y"], losses=losses, **fields)
    return MultiEstimator(net, spec, context=mx.cpu(), engine=engine, initializer=mx.init.Xavier())


def of_net(net: Any) -> dict[str, np.ndarray]:
    return {name: each.data().asnumpy() for name, each in net._collect_params_with_prefix().items()}


def test_figures_values_and_predictions_are_those_of_mxnet():
    found = []
    for engine in ("mxnet", "torch"):
        estimator = estimator_of(engine)
        history = estimator.fit(DATA, DATA, epochs=3, event_handlers=[])
        assert isinstance(estimator.net, mx.gluon.Block)
        values = {name: each for name, each in estimator.values().items() if "0.bias" not in name}
        own = of_net(estimator.net)
        assert_same({n: own[n] for n in own}, {n: estimator.values()[n] for n in own}, 0)
        losses = {name: np.array(history[name]) for name in ("train_loss", "val_loss", "train_y")}
        found.append((losses, values, estimator.predict(DATA)))
    # a bias before BatchNorm has no gradient but rounding, which Adam makes a step
    for one, other in zip(*found):
        for name in one:
            tolerance = 1e-2 if "running_mean" in name else 1e-7
            np.testing.assert_allclose(other[name], one[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_the_net_has_the_values_between_sessions_and_within(tmp_path: Path):
    estimator = estimator_of()
    seen = []

    class Looks:
        def epoch_end(self, estimator: Any) -> None:
            seen.append(estimator.net[3].weight.data().asnumpy())
            np.testing.assert_array_equal(seen[-1], estimator.values()["3.weight"])

    estimator.fit(DATA, epochs=2, event_handlers=[Looks()])
    assert (seen[0] != seen[1]).any()
    estimator.save(tmp_path)
    other = estimator_of()
    other.load(tmp_path)
    assert_same(other.predict(DATA), estimator.predict(DATA), 1e-12)
    other.net.load_parameters(str(tmp_path / "final.params"))
    other.net[3].bias.set_data(mx.nd.ones((3,), dtype="float64"))
    assert estimator.predict(DATA)["y"] + 0 is not None
    assert (other.predict(DATA)["y"] != estimator.predict(DATA)["y"]).any()
    fresh = estimator_of()
    with pytest.raises(ValueError, match="has no values yet: initialise the net, or fit or check"):
        fresh.save(tmp_path / "fresh")
    odd = MultiEstimator(nn.Dense(2), mx.gluon.loss.L2Loss(), engine="torch")
    with pytest.raises(SpecError, match="does not fit the net"):
        odd.load(tmp_path)


def test_a_run_resumes_bit_for_bit_and_its_checkpoints_load(tmp_path: Path):
    def run(folder: str, **limits: Any) -> MultiEstimator:
        estimator = estimator_of()
        saving = CheckpointHandler(tmp_path / folder, Every(1, "batch"), seed=7)
        estimator.fit(DATA, event_handlers=[saving], **limits)
        return estimator

    whole = run("whole", epochs=3)
    run("parts", batches=5)
    resumed = run("parts", epochs=3, resume=tmp_path / "parts")
    assert_same(resumed.values(), whole.values(), 0)
    loaded = estimator_of()
    loaded.load(tmp_path / "whole")
    assert_same(of_net(loaded.net), of_net(whole.net), 0)


@pytest.mark.parametrize("format", ["torch", "pt2", "gluon"])
def test_exports(format: str, tmp_path: Path):
    estimator = estimator_of(loss=mx.gluon.loss.SoftmaxCELoss())
    with pytest.raises(
        ValueError, match=r'the shapes of the inputs "x" are not known; fit, check or evaluate'
    ):
        estimator.export(tmp_path, format=format)
    paths = estimator.export(tmp_path, DATA, format=format)
    assert all(path.exists() for path in paths)
    expected = estimator.predict(DATA)["y"]
    if format == "pt2":
        module = torch.export.load(paths[0]).module()
        np.testing.assert_allclose(module(torch.from_numpy(DATA[0][0]))[0].detach(), expected[:6], atol=1e-6)
    estimator.fit(DATA, epochs=1, event_handlers=[])
    estimator.export(tmp_path / "trained", format=format)


def by_numbers(net: Any, slots: Any) -> Any:
    outputs = net(slots["x"])
    return outputs if outputs.asnumpy().size else None


def test_forward_on_the_host_sees_the_values_of_the_running_fit():
    evaluate = TaskSpec(inputs=["x"], outputs=["y"], forward=by_numbers, unused=["y"])
    estimator = estimator_of(loss=mx.gluon.loss.SoftmaxCELoss(), evaluate=evaluate)
    found = []

    class Predicts:
        def epoch_end(self, estimator: Any) -> None:
            found.append(estimator.predict([DATA[0][0]])["y"])
            expected = estimator.net(mx.nd.array(DATA[0][0], dtype="float64")).asnumpy()
            np.testing.assert_allclose(found[-1], expected, atol=1e-12)

    estimator.fit(DATA, epochs=2, event_handlers=[Predicts()])
    assert (found[0] != found[1]).any()
    assert len([line for line in estimator._log_once if "runs with MXNet on the CPU" in line]) == 1


def test_handlers_know_the_losses_and_metrics():
    found = []
    for engine in ("mxnet", "torch"):
        estimator = estimator_of(engine, mx.gluon.loss.SoftmaxCELoss())
        history = estimator.fit(DATA, epochs=2, event_handlers=[LabelSmoothing(0.2)])
        found.append((history["train_loss"], estimator.interpret(DATA).confusion["y"]))
        before = estimator.values()
        estimator.find_learning_rate(DATA, 1e-4, 1e-2, batches=10)
        assert_same(estimator.values(), before, 0)
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6)
    np.testing.assert_array_equal(found[1][1], found[0][1])
    assert host("cpu") == [mx.cpu()]


def test_a_tool_trains_a_fork():
    estimator = estimator_of()
    before = estimator.fit(DATA, epochs=1, event_handlers=[]) and estimator.values()
    plan = estimator.check(DATA)
    assert plan.devices == ("cpu (torch)",)
    assert_same(estimator.values(), before, 0)
    assert "Dense" not in repr(estimator) and "HybridSequential" in repr(estimator)
    with pytest.raises(ValueError, match="several|is not a PyTorch device|context"):
        MultiEstimator(nn.Dense(1), mx.gluon.loss.L2Loss(), engine="torch", context="tpu")
