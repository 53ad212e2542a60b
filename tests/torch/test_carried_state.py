"""State that is carried from batch to batch: torch trains a language model as MXNet does, in float64."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.balance import FAMO, UPGrad
from multifit.distributed import ALONE, World
from multifit.gluon.compat import mx
from tests.common.compare import assert_unchanged, snapshot
from tests.common.language import BATCHES, KEPT, STATE, UNITS, Keeps, LanguageModel, make_net, make_spec
from tests.common.ranks import run_ranks
from tests.torch.fits import assert_close, assert_engines_agree

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
    return dict(history), figures, outputs, estimator.values()


@pytest.mark.parametrize("name", CASES)
def test_a_language_model_is_that_of_mxnet(name: str) -> None:
    assert_engines_agree(partial(fit, **CASES[name]))


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
        return dict(estimator.fit(InPlace(), epochs=2, **ALONG)), estimator.values()

    assert_engines_agree(trained)


def test_two_processes_carry_the_state_of_their_own_samples() -> None:
    def trained(world: World) -> Any:
        estimator = estimator_of("torch", world=world)
        estimator.fit(BATCHES, epochs=2, **ALONG)
        return {**estimator.values(), **estimator.evaluate(BATCHES, **ALONG)}

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
