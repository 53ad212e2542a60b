"""`find_learning_rate` and `profile` train for a while and leave everything as it was."""

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import MetricSpec, MultiEstimator, TrainerSpec
from multifit.gluon.optim.gradients import is_fresh
from multifit.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import ONE, TWO
from tests.common.nets import TWO_HEADS, Heads, hybridized, sequential
from tests.common.specs import two_head_spec

import mxnet as mx  # isort: skip
from mxnet.gluon import Trainer, nn

TOOLS: dict[str, Callable[[Any, Any], Any]] = {
    "find_learning_rate": lambda estimator, data: estimator.find_learning_rate(data, 1e-4, 10.0, 10),
    "profile": lambda estimator, data: estimator.profile(data, 5),
}


def make_net(contexts: Any = None, grad_req: str = "write") -> Any:
    """Return two heads on a body with running statistics, equal each time."""
    seed_everything(1)
    net = Heads(body=sequential(nn.Dense(6), nn.BatchNorm(), nn.Activation("tanh")), **TWO_HEADS)
    net.initialize(ctx=contexts)
    for parameter in net.collect_params("(?!.*running).*").values():
        parameter.grad_req = grad_req
    return hybridized(net)


class Shuffled:
    """Data whose order depends on NumPy's and Python's random state; may fail behind the last batch."""

    def __init__(self, error: str = "") -> None:
        random_state = np.random.get_state()
        np.random.seed(3)
        self.batches = in_batches(two_head_arrays(28).values(), 7)
        np.random.set_state(random_state)
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        batches = list(self.batches)
        np.random.shuffle(batches)
        random.shuffle(batches)
        yield from batches
        if self.error:
            raise OSError(self.error)


def error(labels: Any, outputs: Any) -> float:
    """Return the mean error, on the host."""
    return float(np.abs(labels - outputs).mean())


def several(net: Any) -> dict[str, Any]:
    schedule = mx.lr_scheduler.FactorScheduler(3, 0.7, base_lr=0.02)
    heads = TrainerSpec("(digit|size).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    body = TrainerSpec("body.*", "nadam", lr_scheduler=schedule, clip_norm=1.0)  # keeps a product of its own
    return {"body": body, "heads": heads}


def rhythms(net: Any) -> dict[str, Any]:
    momentum = {"learning_rate": 0.1, "momentum": 0.9}
    heads = TrainerSpec("(digit|size).*", "sgd", momentum, every=3)
    return {"body": TrainerSpec("body.*", "adam", every=2, accumulate=True), "heads": heads}


TRAINERS: dict[str, Callable[[Any], Any]] = {
    "several": several,
    "user's": lambda net: Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, mx.kv.create("local")),
    "rhythms": rhythms,
}
CASES = [("several", TWO, True), ("user's", ONE, True), ("rhythms", TWO, False)]


def make_estimator(kind: str, contexts: Any) -> MultiEstimator:
    net = make_net(contexts, "add" if kind == "several" else "write")
    spec = two_head_spec()
    spec = two_head_spec(metrics={**spec.metrics, "error": MetricSpec(error, "size", "size")})
    return MultiEstimator(net, spec, TRAINERS[kind](net), contexts)


def arrays(estimator: Any) -> list[np.ndarray]:
    """Return parameters, running statistics and gradients, on all devices."""
    parameters = estimator.parameters.values()
    return [array.asnumpy() for p in parameters for array in (*p.list_data(), *(p._grad or ()))]


def observable(estimator: Any) -> dict[str, Any]:
    """Return what can be asked of an estimator that must not change."""
    parameters = estimator.parameters.values()
    return {
        "state": vars(estimator.state).copy(),
        "history": estimator.history.to_json(),
        "plan": str(estimator.plan),
        "figures": dict(estimator.figures()),
        "rates": estimator.learning_rates(),
        "trainers": dict(estimator.trainers),
        "fresh gradients": [is_fresh(d) for p in parameters if p._grad for d in p.list_data()],
        "random": (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]),
    }


@pytest.mark.parametrize(("kind", "contexts", "begun"), CASES)
def test_training_goes_on_as_if_nothing_had_been(kind: str, contexts: Any, begun: bool) -> None:
    """Bit for bit, before a first fit and between two, whether a tool ends well or with an error."""
    results = []
    for look in (False, True):
        estimator = make_estimator(kind, contexts)
        histories = [estimator.fit(Shuffled(), epochs=1, event_handlers=[])] if begun else []
        if not begun:
            estimator.check(Shuffled())  # builds the trainers
        for tool in TOOLS.values() if look else ():
            values, before = arrays(estimator), observable(estimator)
            assert before["figures"] or not begun
            engine = estimator._session
            held = [estimator.history, estimator.plan, engine.stages, engine.signatures]
            tool(estimator, Shuffled())
            with pytest.raises(OSError, match="the disk is gone"):
                tool(estimator, Shuffled("the disk is gone"))
            assert observable(estimator) == before
            np.testing.assert_equal(arrays(estimator), values)
            engine = estimator._session
            now = [estimator.history, estimator.plan, engine.stages, engine.signatures]
            assert all(one is other for one, other in zip(now, held))
        histories.append(estimator.fit(Shuffled(), epochs=2, event_handlers=[]))
        results.append((arrays(estimator), histories, np.random.rand(), random.random()))
    np.testing.assert_equal(results[1][0], results[0][0])
    assert results[1][1:] == results[0][1:]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_called_by_a_handler_is_an_error(tool: str) -> None:
    handler = SimpleNamespace(batch_end=lambda estimator: TOOLS[tool](estimator, Shuffled()))
    with pytest.raises(RuntimeError, match=f"{tool} was called by an event handler, in the middle of a run"):
        make_estimator("several", ONE).fit(Shuffled(), epochs=1, event_handlers=handler)
