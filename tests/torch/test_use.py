"""What an estimator on torch leaves in the Gluon net, in files and folders, and what can be done with it."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit import CheckpointHandler, MultiEstimator, SpecError, TaskSpec
from multifit.gluon.compat import mx
from multifit.torch.from_gluon.engine import host
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_close
from tests.torch.runs import BATCHES, Run, assert_equal, estimator_of
from tests.torch.test_handlers import Parameter, columns

IMAGE = BATCHES[0][0]


def values_of(net: Any) -> dict[str, np.ndarray]:
    return {name: each.data().asnumpy() for name, each in net._collect_params_with_prefix().items()}


def test_what_was_trained_is_used(tmp_path: Path) -> None:
    folder, made, other = tmp_path / "run", estimator_of(), estimator_of()
    saving = CheckpointHandler(folder, every=1, monitor="val_loss")
    made.fit(BATCHES, BATCHES, epochs=3, event_handlers=saving, output=folder, seed=1)
    record = json.loads((folder / "settings.json").read_text())
    assert record["engine"] == "torch" and "torch" in record["versions"]
    other.predict(BATCHES)  # which has taken the values that load replaces
    for which in ("best", "last"):
        other.load(folder, which)
        expected, figures = made.predict(BATCHES), made.evaluate(BATCHES, event_handlers=[])
        assert other.evaluate(BATCHES, event_handlers=[]) == pytest.approx(figures, rel=1e-5)
        outputs = other.predict(BATCHES, activation={"digit": "softmax"}, output=tmp_path / which)
        np.testing.assert_allclose(outputs["size"], expected["size"], rtol=1e-5, atol=1e-6)
        powers = np.exp(expected["digit"])
        np.testing.assert_allclose(outputs["digit"], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    assert sorted(os.listdir(tmp_path / "last")) == ["digit.npy", "size.npy"]
    of_mxnet = estimator_of(engine="mxnet")
    of_mxnet.net.load_parameters(str(made.save(tmp_path / "saved")))
    assert of_mxnet.evaluate(BATCHES, event_handlers=[]) == pytest.approx(figures, rel=1e-5)
    other.fit(BATCHES, epochs=1)
    assert other.evaluate(BATCHES, event_handlers=[])["loss"] < figures["loss"]


def test_the_net_has_the_values_between_sessions_and_within(tmp_path: Path) -> None:
    estimator, other, seen = estimator_of(), estimator_of(), []

    class Looks:
        def epoch_end(self, estimator: Any) -> None:
            seen.append(values_of(estimator.net))
            np.testing.assert_equal(seen[-1], estimator.values())
            estimator.net.size.bias.set_data(mx.nd.ones((1,)))  # which does not count while it trains
            np.testing.assert_equal(values_of(estimator.net), seen[-1])

    estimator.fit(BATCHES, epochs=2, event_handlers=[Looks()])
    assert (seen[0]["body.weight"] != seen[1]["body.weight"]).any()
    estimator.save(tmp_path)
    other.load(tmp_path)
    np.testing.assert_equal(other.predict(BATCHES), estimator.predict(BATCHES))
    other.net.load_parameters(str(tmp_path / "final.params"))
    other.net.size.bias.set_data(mx.nd.ones((1,)))
    assert (other.predict(BATCHES)["size"] != estimator.predict(BATCHES)["size"]).any()
    odd = MultiEstimator(mx.gluon.nn.Dense(2), mx.gluon.loss.L2Loss(), engine="torch")
    with pytest.raises(ValueError, match="has no values yet: initialise the net, or fit or check"):
        odd.save(tmp_path / "fresh")
    with pytest.raises(SpecError, match="does not fit the net"):
        odd.load(tmp_path)


def test_what_changes_in_the_net_counts() -> None:
    """Which are the values and requests of its parameters, but no new parameters; trainers are left alone."""
    estimator = estimator_of()
    net, trainer = estimator.net, mx.gluon.Trainer(estimator.net.collect_params(), "adam")
    net.size.bias.grad_req = "null"
    other = MultiEstimator(net, two_head_spec(), trainer, engine="torch")
    before = values_of(net)
    for each in (estimator, other):
        each.fit(BATCHES, epochs=1, event_handlers=[])
    changed = {name for name, value in values_of(net).items() if (value != before[name]).any()}
    assert changed == set(before) - {"size.bias"} and trainer.optimizer.num_update == 0
    net.more = mx.gluon.nn.Dense(2)
    with pytest.raises(SpecError, match="it has other parameters than when the estimator was made; added"):
        estimator.predict(BATCHES)


def test_two_fits_with_a_seed_are_equal() -> None:
    def run(seed: int) -> Any:
        made = estimator_of("dropout")
        history = made.fit(BATCHES, epochs=2, seed=seed)
        return dict(history), {name: each.tobytes() for name, each in made.values().items()}

    assert run(1) == run(1) != run(2)


def test_a_tool_trains_a_fork() -> None:
    estimator = estimator_of(context="cpu")
    estimator.fit(BATCHES, epochs=1, event_handlers=[])
    before = estimator.values()
    assert estimator.check(BATCHES).devices == ("cpu (torch)",)
    estimator.find_learning_rate(BATCHES, 1e-4, 1e-2, batches=10)
    assert_equal(estimator.values(), before)
    assert "Heads" in repr(estimator) and host("cpu") == [mx.cpu()]


@pytest.mark.parametrize("format", ["torch", "pt2", "gluon"])
def test_exports(format: str, tmp_path: Path) -> None:
    estimator = estimator_of()
    with pytest.raises(ValueError, match='the shapes of the inputs "image" are not known; fit, check or'):
        estimator.export(tmp_path, format=format)
    paths = estimator.export(tmp_path, BATCHES, format=format)
    assert all(path.exists() for path in paths)
    if format == "pt2":
        found = torch.export.load(paths[0]).module()(torch.from_numpy(IMAGE))
        np.testing.assert_allclose(found[0].detach(), estimator.predict(IMAGE)["digit"], atol=1e-6)
    estimator.fit(BATCHES, epochs=1, event_handlers=[])
    estimator.export(tmp_path / "trained", format=format)


def by_numbers(net: Any, slots: Any) -> Any:
    outputs = net(slots["image"])
    return outputs if outputs[0].asnumpy().size else None


def test_forward_on_the_host_sees_the_values_of_the_running_fit() -> None:
    outputs = ["digit", "size"]
    evaluate = TaskSpec(inputs=["image"], outputs=outputs, forward=by_numbers, unused=outputs)
    estimator, found = estimator_of(spec=two_head_spec(evaluate=evaluate)), []

    class Predicts:
        def batch_end(self, estimator: Any) -> None:
            found.append(estimator.predict([IMAGE])["digit"])
            np.testing.assert_allclose(found[-1], estimator.net(mx.nd.array(IMAGE))[0].asnumpy(), atol=1e-6)

    estimator.fit(BATCHES, epochs=1, event_handlers=[Predicts()])
    assert (found[0] != found[1]).any()
    assert len([line for line in estimator._log_once if "runs with MXNet on the CPU" in line]) == 1


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16"])
def test_whole_numbers_are_predicted_after_real_ones(dtype: str) -> None:
    estimator, whole = estimator_of(), np.abs(IMAGE * 3).astype("uint8")
    expected = estimator.predict(whole.astype("float32"))
    found = estimator.predict(whole.astype(dtype))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


def test_predictions_share_no_memory() -> None:
    """Of a net that returns a parameter, which has no axis of samples, and a view of it."""
    estimator, x = Run(Parameter, columns, dtype="float32").estimator(), mx.nd.ones((4, 3))
    for arrays in estimator.predict(x).values():
        for array in arrays:
            array[:] = 7
    assert x.asnumpy().max() == estimator.values()["scale"].max() == estimator.predict(x)["y"].max() == 1


@pytest.mark.parametrize("fitted", [False, True], ids=["from the start", "after a fit"])
def test_a_loop_of_ones_own_trains_the_net_itself(fitted: bool, tmp_path: Path) -> None:
    """The Gluon net has the values after each step; what it is given counts from the next one on."""

    def loop(engine: str) -> list[Any]:
        estimator = estimator_of("float64", engine)
        net, states, seen = estimator.net, str(tmp_path / engine), []
        if fitted:
            estimator.fit(BATCHES, epochs=1, event_handlers=[])
        for batch in BATCHES[:3]:
            estimator.fit_batch(batch)
            seen.append(values_of(net))
        estimator.trainers["trainer"].save_states(states)
        estimator.fit_batch(BATCHES[3])
        estimator.trainers["trainer"].load_states(states)
        for parameter in net.collect_params().values():
            parameter.set_data(parameter.data() / 2)
        for _ in range(2):
            seen.append(estimator.predict(BATCHES))
            losses = estimator.evaluate_batch(BATCHES[0]).views()["loss"]
            seen.append({name: estimator.arrays.numpy(loss[0]) for name, loss in losses.items()})
            estimator.fit_batch(BATCHES[1])
            seen.append(values_of(net))
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
        return [*seen, values_of(net)]

    for one, other in zip(loop("mxnet"), loop("torch"), strict=True):
        assert_close(one, other, tolerance=1e-8)
