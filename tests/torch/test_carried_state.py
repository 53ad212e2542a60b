"""State that is carried from batch to batch: torch trains a language model as MXNet does, in float64."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.balance import FAMO, UPGrad
from multifit.distributed import ALONE, World
from multifit.errors import Problem
from multifit.gluon.compat import mx
from multifit.torch.traced.computation import WholeComputation
from tests.common.compare import assert_unchanged, snapshot
from tests.common.language import BATCHES, KEPT, STATE, UNITS, Keeps, LanguageModel, make_net, make_spec
from tests.common.ranks import run_ranks
from tests.torch.cuda_graphs import counted_replays
from tests.torch.fits import assert_close, assert_engines_agree
from tests.torch.runs import PAIRS, assert_resumes, values

ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02}, clip_norm=0.5)
ALONG: Any = {"batch_axis": 1, "event_handlers": []}


def two_losses() -> TaskSpec:
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss(batch_axis=1)
    small = LossSpec(mx.gluon.loss.L2Loss(batch_axis=1), "hidden", "hidden", weight=0.3)
    return make_spec(losses={"next": LossSpec(cross_entropy, "logits", "next"), "small": small})


class Doubles:
    """Doubles the logits, and the state that the next batch begins with; adds what the batch began with."""

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        return {"logits": outputs["logits"] * 2, "hidden": outputs["hidden"] * 2 + slots["hidden"]}


def moved(label: Any, pred: Any) -> float:
    """Return by how much the state has changed in a batch, computed on the host."""
    return float(np.abs(pred - label).mean())


def host_metric() -> TaskSpec:
    metric = mx.metric.CustomMetric(moved, allow_extra_outputs=True)
    return make_spec(metrics={"moved": MetricSpec(metric, "hidden", "hidden")})


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "losses are computed again": {"spec": two_losses, "balance": FAMO()},
    "gradients of tasks": {"spec": two_losses, "balance": UPGrad(on="parameters")},
    "changed outputs": {"event_handlers": [Doubles()]},
    "a metric on the host": {"spec": host_metric},
}


def estimator_of(engine: str, net: Any = None, spec: Any = make_spec, **options: Any) -> MultiEstimator:
    net = make_net(dtype="float64") if net is None else net
    return MultiEstimator(net, spec(), ADAM, engine=engine, **options)


def fit(engine: str, data: Any = BATCHES, event_handlers: Any = (), **options: Any) -> Any:
    estimator = estimator_of(engine, **options)
    history = estimator.fit(data, data, epochs=3, batch_axis=1, event_handlers=list(event_handlers))
    for _ in range(2):  # each begins with zeros
        figures, outputs = estimator.evaluate(data, **ALONG), estimator.predict(data, batch_axis=1)
    return dict(history), figures, outputs, values(estimator)


@pytest.mark.parametrize("name", CASES)
def test_a_language_model_is_that_of_mxnet(name: str) -> None:
    assert_engines_agree(partial(fit, **CASES[name]))


def test_what_cuda_graphs_return_may_be_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, replays = fit("torch", BATCHES[:3], compile=False), counted_replays(monkeypatch)
    for one, other in zip(plain, fit("torch", BATCHES[:3], compile="cudagraphs")):
        assert_close(one, other)
    assert replays.count


class InPlace:
    """A loader that yields the same arrays again and again, with other values."""

    def __init__(self) -> None:
        self._arrays = [mx.nd.zeros(array.shape, dtype="float64") for array in BATCHES[0]]

    def __iter__(self) -> Iterator[Any]:
        for batch in BATCHES:
            for array, new in zip(self._arrays, batch):
                array[:] = new
            yield tuple(self._arrays)


def test_a_state_keeps_its_values_while_their_source_changes() -> None:
    def trained(engine: str) -> Any:
        estimator = estimator_of(engine, make_net(dtype="float64", kind=Keeps), lambda: make_spec(state=KEPT))
        return dict(estimator.fit(InPlace(), epochs=2, **ALONG)), values(estimator)

    assert_engines_agree(trained)


@pytest.mark.parametrize(("engines", "at"), [(PAIRS[0], 4), (PAIRS[0], 6), (PAIRS[1], 9), (PAIRS[2], 4)])
def test_a_run_resumes_on_either_engine(engines: tuple[str, str], at: int, tmp_path: Path) -> None:
    assert_resumes(estimator_of, tmp_path, engines, at, BATCHES, batch_axis=1)


def test_two_processes_carry_the_state_of_their_own_samples() -> None:
    def trained(world: World) -> Any:
        estimator = estimator_of("torch", world=world)
        estimator.fit(BATCHES, epochs=2, **ALONG)
        return {**values(estimator), **estimator.evaluate(BATCHES, **ALONG)}

    alone = trained(ALONE)
    for joint in run_ranks(2, trained):
        assert_close(alone, joint)


FEWER = [*BATCHES[:3], tuple(array[:, :3] for array in BATCHES[3])]
CALLS: dict[str, Callable[[MultiEstimator, Any], Any]] = {
    "fit": lambda estimator, data: estimator.fit(data, epochs=1, **ALONG),
    "evaluate": lambda estimator, data: estimator.evaluate(data, **ALONG),
    "predict": lambda estimator, data: estimator.predict(data, batch_axis=1),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@every_call
def test_batches_of_other_sizes_are_refused(call: Any) -> None:
    message = "gets 3 samples of a batch, but the state of the previous batch has 4"
    with pytest.raises(DataError, match=message):
        call(estimator_of("torch"), FEWER)


class Reshaped(LanguageModel):
    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Any:
        return super().hybrid_forward(F, words, hidden, F.expand_dims(cell, axis=0))


@every_call
def test_a_state_of_another_shape_is_refused(call: Any) -> None:
    net = Reshaped()
    net.initialize()
    net.hybridize()
    before = snapshot(net)
    estimator = estimator_of("torch", net, lambda: make_spec(state={**STATE, "cell": (0, UNITS)}))
    message = r'state: "cell" is \(4, 5\) float32 as an input, but the output "cell" is \(1, 4, 5\)'
    with pytest.raises(SpecError, match=message):
        call(estimator, BATCHES)
    assert_unchanged(net, before)


def test_an_evaluation_that_mxnet_goes_on_with_keeps_its_state(monkeypatch: Any, caplog: Any) -> None:
    run = WholeComputation.run

    def fails(computation: Any, given: Any) -> Any:
        if len(given["words"]) == 2:
            raise SpecError([Problem("spec", "torch cannot compile")])
        return run(computation, given)

    monkeypatch.setattr(WholeComputation, "run", fails)
    data = [*BATCHES[:3], *[tuple(array[:2] for array in batch) for batch in BATCHES[3:]]]
    assert_close(*(estimator_of(engine).evaluate(data, **ALONG) for engine in ("mxnet", "torch")))
    assert "evaluating runs with MXNet on the CPU" in caplog.text
