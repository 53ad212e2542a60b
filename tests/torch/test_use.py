"""Using what was trained, with torch as engine: load, activations, predictions in files, runs in folders."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.compat import mx
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import Heads, hybridized
from tests.common.specs import two_head_spec
from tests.torch import runs
from tests.torch.fits import assert_close

BATCHES = in_batches(two_head_arrays().values())


def make(engine: str = "torch") -> MultiEstimator:
    net = hybridized(Heads(digit=3, size=1))
    context = "cpu" if engine == "torch" else mx.cpu()
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.2})
    return MultiEstimator(net, two_head_spec(), trainer, context=context, engine=engine)


def test_what_was_trained_is_used(tmp_path: Path) -> None:
    folder, made = tmp_path / "run", make()
    saving = CheckpointHandler(folder, every=1, monitor="val_loss")
    made.fit(BATCHES, BATCHES, epochs=3, event_handlers=saving, output=folder, seed=1)
    record = json.loads((folder / "settings.json").read_text())
    assert record["engine"] == "torch" and "torch" in record["versions"]
    other = make()
    other.predict(BATCHES)  # which has taken the values that load replaces
    assert made.best_checkpoint is not None
    for which in ("best", "last"):
        other.load(folder, which)
        expected, figures = made.predict(BATCHES), made.evaluate(BATCHES, event_handlers=[])
        assert other.evaluate(BATCHES, event_handlers=[]) == pytest.approx(figures, rel=1e-5)
        outputs = other.predict(BATCHES, activation={"digit": "softmax"}, output=tmp_path / which)
        np.testing.assert_allclose(outputs["size"], expected["size"], rtol=1e-5, atol=1e-6)
        powers = np.exp(expected["digit"])
        np.testing.assert_allclose(outputs["digit"], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    assert sorted(os.listdir(tmp_path / "last")) == ["digit.npy", "size.npy"]
    of_mxnet = make("mxnet")
    of_mxnet.net.load_parameters(str(made.save(tmp_path / "saved")))
    assert of_mxnet.evaluate(BATCHES, event_handlers=[]) == pytest.approx(figures, rel=1e-5)
    other.fit(BATCHES, epochs=1)
    assert other.evaluate(BATCHES, event_handlers=[])["loss"] < figures["loss"]


def test_two_fits_with_a_seed_are_equal() -> None:
    def run(seed: int) -> Any:
        made = make()
        history = made.fit(BATCHES, epochs=2, seed=seed)
        return dict(history), {name: each.tobytes() for name, each in made.values().items()}

    assert run(1) == run(1) != run(2)


def test_predictions_share_no_memory() -> None:
    class Net(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.bias = self.params.get("bias", shape=(1, 6), init="ones")

        def hybrid_forward(self, F: Any, x: Any, bias: Any) -> Any:
            return F.broadcast_add(x, bias), F.reshape(x, (0, 2, 3)), bias

    net, x = Net(), mx.nd.ones((4, 6))
    names = ["sum", "patches", "bias"]
    spec = TaskSpec(outputs=names, labels=[], losses={}, inputs=["x"], unused=names)
    estimator = MultiEstimator(net, spec, engine="torch", context="cpu")
    for arrays in estimator.predict(x).values():
        for array in arrays:  # the parameter has no axis of samples, so it is a list
            array[:] = 7
    assert x.asnumpy().max() == net.bias.data().asnumpy().max() == 1
    assert estimator.predict(x)["sum"].max() == 2


@pytest.mark.parametrize("fitted", [False, True], ids=["from the start", "after a fit"])
def test_a_loop_of_ones_own_trains_the_net_itself(fitted: bool, tmp_path: Path) -> None:
    """The Gluon net has the values after each step; what it is given counts from the next one on."""

    def loop(engine: str) -> list[Any]:
        estimator = runs.estimator_of("float64", engine)
        net, states, seen = estimator.net, str(tmp_path / engine), []

        def look() -> None:
            named = net._collect_params_with_prefix()
            seen.append({name: p.data().asnumpy() for name, p in named.items()})

        if fitted:
            estimator.fit(runs.BATCHES, epochs=1, event_handlers=[])
        for batch in runs.BATCHES[:3]:
            estimator.fit_batch(batch)
            look()
        estimator.trainers["trainer"].save_states(states)
        estimator.fit_batch(runs.BATCHES[3])
        estimator.trainers["trainer"].load_states(states)
        for parameter in net.collect_params().values():
            parameter.set_data(parameter.data() / 2)
        for _ in range(2):
            seen.append(estimator.predict(runs.BATCHES))
            losses = estimator.evaluate_batch(runs.BATCHES[0]).views()["loss"]
            seen.append({name: estimator.arrays.numpy(loss[0]) for name, loss in losses.items()})
            estimator.fit_batch(runs.BATCHES[1])
            look()
        estimator.fit(runs.BATCHES, epochs=1, event_handlers=[])
        look()
        return seen

    for one, other in zip(loop("mxnet"), loop("torch"), strict=True):
        assert_close(one, other, tolerance=1e-8)
