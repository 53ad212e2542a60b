"""Trainings of small nets on either engine, and what they consist of."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, Every, MultiEstimator, TrainerSpec
from multifit.gluon.compat import mx
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.handlers import CutsPower, PowerCut
from tests.common.nets import normed_heads, two_heads
from tests.common.specs import two_head_spec
from tests.torch.fits import TOLERANCE, assert_close, assert_engines_agree

ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02})
RHYTHMS = {
    "body": TrainerSpec("body.*", "sgd", {"momentum": 0.9}, every=3, accumulate=True, clip_norm=0.2),
    "digit": TrainerSpec("digit.*", "adam", {"learning_rate": 0.02}, every=2),
    "size": TrainerSpec("size.*", "adam"),
}
ARRAYS = two_head_arrays(40)
BATCHES = in_batches(ARRAYS.values())


def net_of(kind: str = "hybridized") -> Any:
    """Return a net with two heads: "hybridized" in float32, in "float64", or with "dropout"."""
    seed_everything(3)
    net = normed_heads() if kind == "dropout" else two_heads("hybrid")
    dtype = "float64" if kind == "float64" else "float32"
    net.cast(dtype)
    net.hybridize()
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((2, 6), dtype=dtype))
    return net


def estimator_of(kind: str = "hybridized", engine: str = "torch", **options: Any) -> MultiEstimator:
    options = {"spec": two_head_spec(), "trainers": ADAM, "context": None, **options}
    return MultiEstimator(net_of(kind), engine=engine, **options)


@dataclass
class Run:
    """A training: a net in `dtype`, its spec and trainers, and what `fit` gets.

    The trainers may be a function of the net. By default, the data are also those that it is validated with
    and predicts.
    """

    net: Callable[[], Any] = lambda: net_of("float64")
    spec: Callable[[], Any] = two_head_spec
    trainers: Any = ADAM
    data: Any = field(default_factory=lambda: BATCHES)
    handlers: Callable[[Path], list[Any]] = lambda folder: []
    options: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    val_data: Any = None
    inputs: Any = None
    dtype: str = "float64"

    def estimator(self, engine: str = "torch") -> MultiEstimator:
        seed_everything(3)
        net = self.net()
        net.cast(self.dtype)
        net.hybridize()
        trainers = self.trainers(net) if callable(self.trainers) else deepcopy(self.trainers)
        return MultiEstimator(net, self.spec(), trainers, engine=engine, **self.options)

    def results(self, engine: str, folder: Path) -> tuple[dict[str, Any], ...]:
        """Return history, figures, predictions and parameters, and what handlers have `seen`."""
        estimator, axis = self.estimator(engine), {"batch_axis": self.fit.get("batch_axis", 0)}
        seed_everything(5)
        handlers = self.handlers(folder)
        val_data = self.data if self.val_data is None else self.val_data
        history = estimator.fit(self.data, val_data, epochs=3, event_handlers=handlers, **self.fit)
        for _ in range(2):  # a state that is carried begins with zeros each time
            figures = estimator.evaluate(self.data, event_handlers=[], **axis)
        predicted = estimator.predict(self.data if self.inputs is None else self.inputs, **axis)
        seen = [each for handler in handlers for each in getattr(handler, "seen", ())]
        return dict(history), figures, predicted, estimator.values(), *seen


def handled(*handlers: Any, of: Run | None = None, **fields: Any) -> Run:
    """Return a run, by default of a plain net, with new handlers."""
    return replace(of or Run(), handlers=lambda folder: [each() for each in handlers], **fields)


def assert_is_mxnets(run: Run, folder: Path) -> None:
    tolerance = 1e-5 if run.dtype == "float32" else TOLERANCE
    assert_engines_agree(lambda engine: run.results(engine, folder), tolerance)


def assert_equal(one: dict[str, Any], other: dict[str, Any], tolerance: float = 0.0) -> None:
    assert_close(one, other, tolerance=tolerance)


def assert_resumes(run: Run, stop: int, folder: Path) -> None:
    """Check that a run of three epochs that goes on after a power cut is one without a stop, bit for bit."""

    def train(name: str, *others: Any, **options: Any) -> Any:
        estimator, saving = run.estimator(), CheckpointHandler(folder / name, Every(1, "batch"), seed=7)
        handlers = [saving, *run.handlers(folder), *others]
        history = estimator.fit(run.data, epochs=3, event_handlers=handlers, **options, **run.fit)
        return dict(history), estimator.values()

    whole = train("whole")
    with pytest.raises(PowerCut):
        train("parts", CutsPower(stop))
    np.testing.assert_equal(train("parts", resume=folder / "parts"), whole)
