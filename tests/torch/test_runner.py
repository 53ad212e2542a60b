"""What a run on torch shares with one on MXNet."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit import MultiEstimator, TaskSpec
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything
from tests.common.data import two_head_arrays
from tests.common.nets import MakesLayer, hybridized
from tests.common.specs import CE, one_loss_spec, two_head_spec
from tests.torch.fits import assert_engines_agree, stages_of
from tests.torch.runs import BATCHES, PAIRS, assert_equal, assert_resumes, estimator_of, values


@pytest.mark.parametrize(("engines", "stop"), [*zip(PAIRS, (5, 3, 3))])
def test_a_run_resumes_on_either_engine(engines: tuple[str, str], stop: int, tmp_path: Path) -> None:
    assert_resumes(partial(estimator_of, "float64"), tmp_path, engines, stop)


def test_dropout_resumes_exactly(tmp_path: Path) -> None:
    assert_resumes(partial(estimator_of, "dropout"), tmp_path, stop=3)


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    def fit(seed: int) -> dict[str, np.ndarray]:
        estimator = estimator_of("dropout")
        seed_everything(seed)
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
        return values(estimator)

    one, again, other = fit(1), fit(1), fit(2)
    assert_equal(one, again)
    assert any((one[name] != other[name]).any() for name in one)


def test_predictions_share_no_memory() -> None:
    class Net(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.bias = self.params.get("bias", shape=(1, 6), init="ones")

        def hybrid_forward(self, F: Any, x: Any, bias: Any) -> Any:
            return F.broadcast_add(x, bias), F.reshape(x, (0, 2, 3)), bias

    net, x = Net(), mx.nd.ones((4, 6))
    net.hybridize()
    names = ["sum", "patches", "bias"]
    spec = TaskSpec(outputs=names, labels=[], losses={}, inputs=["x"], unused=names)
    estimator = MultiEstimator(net, spec, engine="torch", context="cpu")
    for arrays in estimator.predict(x).values():
        for array in arrays:  # the parameter has no axis of samples, so it is a list
            array[:] = 7
    assert x.asnumpy().max() == net.bias.data().asnumpy().max() == 1
    assert estimator.predict(x)["sum"].max() == 2


def test_a_fit_within_inference_mode_trains() -> None:
    one, other = estimator_of(), estimator_of()
    one.fit(BATCHES, epochs=2, event_handlers=[])
    with torch.inference_mode():
        other.fit(BATCHES, epochs=1, event_handlers=[])
        other.evaluate(BATCHES)
        other.fit(BATCHES, epochs=1, event_handlers=[])
    assert_equal(values(one), values(other))


@pytest.mark.parametrize("fitted", [False, True], ids=["from the start", "after a fit"])
def test_a_loop_of_ones_own_trains_the_net_itself(fitted: bool, tmp_path: Path) -> None:
    def loop(engine: str) -> list[Any]:
        estimator = estimator_of("float64", engine)
        net, states, seen = estimator.net, str(tmp_path / engine), []

        def look() -> None:
            seen.append({name: p.data().asnumpy() for name, p in net.collect_params().items()})

        if fitted:
            estimator.fit(BATCHES, epochs=1, event_handlers=[])
        for batch in BATCHES[:3]:
            estimator.fit_batch(batch)
            look()
        estimator.trainers["trainer"].save_states(states)
        estimator.fit_batch(BATCHES[3])
        estimator.trainers["trainer"].load_states(states)
        for parameter in net.collect_params().values():
            parameter.set_data(parameter.data() / 2)
        for _ in range(2):
            seen.append(estimator.predict(BATCHES))
            losses = estimator.evaluate_batch(BATCHES[0]).views()["loss"]
            seen.append({name: loss[0].asnumpy() for name, loss in losses.items()})
            estimator.fit_batch(BATCHES[1])
            look()
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
        look()
        return seen

    for one, other in zip(loop("mxnet"), loop("torch")):
        assert_equal(dict(enumerate(one.values())), dict(enumerate(other.values())), 1e-10)


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


def test_inputs_that_the_net_does_not_take_are_named() -> None:
    estimator, image = estimator_of(), np.zeros((4, 3), "float32")
    estimator.predict(BATCHES)  # the first batch is checked with MXNet
    with pytest.raises(RuntimeError, match=r"the graph of the net on torch.*called with image \(4, \d\)"):
        estimator.predict(image)


def test_a_net_that_is_no_graph_predicts_with_mxnet(caplog: Any) -> None:
    one, other = (estimator_of("plain", engine) for engine in ("mxnet", "torch"))
    for estimator in (one, other):
        estimator.net.initialize(mx.init.One())
    assert_equal(one.predict(BATCHES), other.predict(BATCHES))
    assert "evaluating runs with MXNet on the CPU" in caplog.text and "call net.hybridize()" in caplog.text


def test_layers_made_in_the_first_forward_pass_are_evaluated_with_mxnet(caplog: Any) -> None:
    figures, predictions = {}, {}
    for engine in ("mxnet", "torch"):
        mx.random.seed(1)
        net = hybridized(MakesLayer())
        net.initialize(mx.init.Xavier())
        estimator = MultiEstimator(net, one_loss_spec(CE), engine=engine)
        predictions[engine] = estimator.predict([batch[0] for batch in BATCHES])["out"]
        figures[engine] = estimator.evaluate([batch[:2] for batch in BATCHES])
    assert figures["torch"] == figures["mxnet"]
    np.testing.assert_array_equal(predictions["torch"], predictions["mxnet"])
    assert 'its forward pass has made "made.weight", "made.bias"' in caplog.text


def test_programs_and_constants_that_are_discarded_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("program.MAX_PROGRAMS", "stage.MAX_CONSTANTS"):
        monkeypatch.setattr(f"multifit.torch.traced.{limit}", 1)
    image, digit, size = two_head_arrays(18).values()
    parts = [slice(0, 8), slice(8, 9), slice(9, 17), slice(17, 18)]  # a batch of one sample has its own graph
    data = [(image[part], digit[part], size[part]) for part in parts]

    def fit(engine: str) -> Any:
        estimator = estimator_of("float64", engine)
        history = estimator.fit(data, data, epochs=2, event_handlers=[])
        if engine == "torch":
            stages = stages_of(estimator)
            assert {(len(stage._programs), len(stage._constants)) for stage in stages} == {(1, 1)}
        return dict(history), values(estimator)

    assert_engines_agree(fit)
