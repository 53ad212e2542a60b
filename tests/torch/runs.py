"""Estimators of a net with two heads, on either engine, and what they have learned."""

from collections.abc import Callable
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
from tests.torch.fits import assert_close

ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02})
RHYTHMS = {
    "body": TrainerSpec("body.*", "sgd", {"momentum": 0.9}, every=3, accumulate=True, clip_norm=0.2),
    "digit": TrainerSpec("digit.*", "adam", {"learning_rate": 0.02}, every=2),
    "size": TrainerSpec("size.*", "adam"),
}
BATCHES = in_batches(two_head_arrays(40).values())


def net_of(kind: str = "hybridized") -> Any:
    seed_everything(3)
    net = normed_heads() if kind == "dropout" else two_heads("hybrid" if kind == "float64" else kind)
    if kind == "float64":
        net.cast("float64")
    if kind != "plain":
        net.hybridize()
        net.initialize(mx.init.Xavier())
        net(mx.nd.zeros((2, 6), dtype="float64" if kind == "float64" else "float32"))
    return net


def estimator_of(kind: str = "hybridized", engine: str = "torch", **options: Any) -> MultiEstimator:
    options = {"spec": two_head_spec(), "trainers": ADAM, "context": None, **options}
    return MultiEstimator(net_of(kind), engine=engine, **options)


def assert_equal(one: dict[str, Any], other: dict[str, Any], tolerance: float = 0.0) -> None:
    assert_close(one, other, tolerance=tolerance)


def assert_resumes(
    make: Callable[[], MultiEstimator],
    folder: Path,
    stop: int = 5,
    data: Any = None,
    handlers: Callable[[], list[Any]] = list,
    **fit: Any,
) -> None:
    """Check that a run of three epochs that goes on after a power cut is one without a stop, bit for bit."""
    data = BATCHES if data is None else data

    def run(name: str, *others: Any, **options: Any) -> Any:
        estimator, saving = make(), CheckpointHandler(folder / name, Every(1, "batch"), seed=7)
        history = estimator.fit(
            data, epochs=3, event_handlers=[saving, *handlers(), *others], **options, **fit
        )
        return dict(history), estimator.values()

    whole = run("whole")
    with pytest.raises(PowerCut):
        run("parts", CutsPower(stop))
    np.testing.assert_equal(run("parts", resume=folder / "parts"), whole)
