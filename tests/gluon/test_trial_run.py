"""`find_learning_rate` and `profile` train for a while and leave everything as it was."""

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import MetricSpec, MultiEstimator, TrainerSpec
from multifit.gluon.optim.gradients import is_fresh
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import ONE, TWO
from tests.common.nets import TWO_HEADS, Heads, hybridized, sequential
from tests.common.specs import two_head_spec

import mxnet as mx  # isort: skip
from mxnet.gluon import Trainer, nn

TOOLS: dict[str, Callable[[Any, Any], Any]] = {
    "find_learning_rate": lambda estimator, data: estimator.find_learning_rate(data, 1e-4, 10.0, 10),
    "profile": lambda estimator, data: estimator.profile(data, 3),
}


class Shuffled:
    """Data whose order depends on NumPy's and Python's random state; may fail behind the last batch."""

    def __init__(self, error: str = "") -> None:
        random_state = np.random.get_state()
        np.random.seed(3)
        self.batches, self.error = in_batches(two_head_arrays(28).values(), 7), error
        np.random.set_state(random_state)

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


SGD = {"learning_rate": 0.1, "momentum": 0.9}
HEADS = "(digit|size).*"
TRAINERS: dict[str, Callable[[Any], Any]] = {
    "several": lambda net: {
        "body": TrainerSpec(
            "body.*", "nadam",  # keeps a product of its own
            lr_scheduler=mx.lr_scheduler.FactorScheduler(3, 0.7, base_lr=0.02), clip_norm=1.0,
        ),
        "heads": TrainerSpec(HEADS, "sgd", SGD),
    },
    "user's": lambda net: Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, mx.kv.create("local")),
    "rhythms": lambda net: {
        "body": TrainerSpec("body.*", "adam", every=2, accumulate=True),
        "heads": TrainerSpec(HEADS, "sgd", SGD, every=3),
    },
}  # fmt: skip


def make_estimator(kind: str, contexts: Any) -> MultiEstimator:
    """Return one of two heads on a body with running statistics, with equal values each time."""
    seed_everything(1)
    net = Heads(body=sequential(nn.Dense(6), nn.BatchNorm(), nn.Activation("tanh")), **TWO_HEADS)
    net.initialize(ctx=contexts)
    for parameter in net.collect_params("(?!.*running).*").values():
        parameter.grad_req = "add" if kind == "several" else "write"
    metrics = {**two_head_spec().metrics, "error": MetricSpec(error, "size", "size")}
    return MultiEstimator(hybridized(net), two_head_spec(metrics=metrics), TRAINERS[kind](net), contexts)


def arrays(estimator: Any) -> list[np.ndarray]:
    """Return parameters, running statistics and gradients, on all devices."""
    parameters = estimator.parameters.values()
    return [array.asnumpy() for p in parameters for array in (*p.list_data(), *(p._grad or ()))]


def observable(estimator: Any) -> dict[str, Any]:
    """Return what can be asked of an estimator that must not change."""
    parameters, session = estimator.parameters.values(), estimator._session
    return {
        "state": vars(estimator.state).copy(),
        "history": (estimator.history, estimator.history.to_json()),
        "plan": (estimator.plan, str(estimator.plan)),
        "figures": dict(estimator.figures()),
        "rates": estimator.learning_rates(),
        "trainers": dict(estimator.trainers),
        "fresh gradients": [is_fresh(d) for p in parameters if p._grad for d in p.list_data()],
        "random": (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]),
        "objects": list(map(id, [estimator.history, estimator.plan, session.stages, session.signatures])),
    }


@pytest.mark.parametrize(
    ("kind", "contexts", "begun"), [("several", ONE, True), ("user's", TWO, True), ("rhythms", TWO, False)]
)
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
            tool(estimator, Shuffled())
            with pytest.raises(OSError, match="the disk is gone"):
                tool(estimator, Shuffled("the disk is gone"))
            assert observable(estimator) == before
            np.testing.assert_equal(arrays(estimator), values)
        histories.append(estimator.fit(Shuffled(), epochs=1, event_handlers=[]))
        results.append((arrays(estimator), histories, np.random.rand(), random.random()))
    np.testing.assert_equal(results[1][0], results[0][0])
    assert results[1][1:] == results[0][1:]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_called_by_a_handler_is_an_error(tool: str) -> None:
    handler = SimpleNamespace(batch_end=lambda estimator: TOOLS[tool](estimator, Shuffled()))
    with pytest.raises(RuntimeError, match=f"{tool} was called by an event handler, in the middle of a run"):
        make_estimator("several", ONE).fit(Shuffled(), epochs=1, event_handlers=handler)
