"""Handlers that change a step on torch: as with MXNet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    EarlyStoppingHandler,
    GradientNoise,
    LossSpec,
    MultiEstimator,
    SkipNonFinite,
    TaskSpec,
    TerminateOnNaN,
    WeightAveraging,
)
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import TWO_HEADS, Heads, sequential
from tests.common.specs import two_head_spec
from tests.torch.cuda_graphs import counted_replays
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import ADAM, BATCHES, assert_equal, estimator_of, values


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

    assert_engines_agree(fit)


class Scaled(mx.gluon.HybridBlock):
    """A scale for each of three columns, which it also returns: as it is, and as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.params.get("scale", shape=(1, 3), init="ones")

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        return F.broadcast_mul(x, scale), F.identity(scale), F.reshape(scale, (3,))


@pytest.mark.parametrize("how", [False, "cudagraphs"])
def test_an_output_that_is_a_parameter_is_that_of_before_the_update(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(engine: str) -> list[np.ndarray]:
        seen: list[np.ndarray] = []

        class See:
            def batch_end(self, estimator: Any, pred: Any) -> None:
                seen.extend(array.asnumpy() for arrays in pred.values() for array in arrays)

        net = Scaled()
        net.initialize()
        net.hybridize()
        losses = {"y": LossSpec(mx.gluon.loss.L2Loss(), "y", "y")}
        names = ["y", "scale", "flat"]
        spec = TaskSpec(inputs=["x"], outputs=names, labels=["y"], losses=losses, unused=names[1:])
        options = {"engine": engine, "compile": how} if engine == "torch" else {"engine": engine}
        batches = [(np.ones((2, 3), "float32"), np.zeros((2, 3), "float32"))] * 4
        MultiEstimator(net, spec, ADAM, **options).fit(batches, epochs=1, event_handlers=[See()])
        return seen

    expected = fit("mxnet")
    counted_replays(monkeypatch)
    for one, other in zip(expected, fit("torch")):
        np.testing.assert_allclose(other, one, rtol=1e-5)


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


def test_a_checkpoint_and_the_restored_net_have_the_averages(tmp_path: Path) -> None:
    estimator = estimator_of("float64", "torch")
    handlers = [
        WeightAveraging("ema", decay=0.8),
        CheckpointHandler(tmp_path, monitor="val_loss"),
        EarlyStoppingHandler("val_loss", patience=9, restore_best=True),
    ]
    history = estimator.fit(BATCHES, BATCHES, epochs=3, event_handlers=handlers)
    best = min(history["val_loss"])
    np.testing.assert_allclose(estimator.evaluate(BATCHES, event_handlers=[])["loss"], best, rtol=1e-10)
    (folder,) = (tmp_path / "checkpoints").glob(f"epoch-{1 + history['val_loss'].index(best):04}-*")
    other = estimator_of("float64", "torch")
    other.net.load_parameters(str(folder / "net.params"))
    np.testing.assert_allclose(other.evaluate(BATCHES, event_handlers=[])["loss"], best, rtol=1e-10)
    assert (folder / "trained.params").exists()
