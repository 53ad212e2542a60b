"""Estimators of a net with two heads, on either engine, and what they have learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from multifit import CheckpointHandler, Every, MultiEstimator, TrainerSpec
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import normed_heads, two_heads
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_close

ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02})
BATCHES = in_batches(two_head_arrays(40).values())
PAIRS = [("torch", "torch"), ("mxnet", "torch"), ("torch", "mxnet")]


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


def values(estimator: MultiEstimator) -> dict[str, np.ndarray]:
    return estimator.values()


def assert_equal(one: dict[str, Any], other: dict[str, Any], tolerance: float = 0.0) -> None:
    assert_close(one, other, tolerance=tolerance)


def assert_resumes(
    make: Callable[[str], MultiEstimator],
    folder: Path,
    engines: tuple[str, str] = ("torch", "torch"),
    stop: int = 5,
    data: Any = None,
    handlers: Callable[[], list[Any]] = list,
    **fit: Any,
) -> None:
    """Check that a run which goes on after some batches is one without a stop; bit for bit on torch.

    Parameters
    ----------
    make, handlers : callable
        ``make(engine)`` returns a new estimator, and `handlers` what is called in its fit of three epochs.
    engines : tuple
        The engine of the first batches, and that of the others and of the run without a stop.
    """
    data = BATCHES if data is None else data

    def run(name: str, engine: str, **limits: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        estimator, saving = make(engine), CheckpointHandler(folder / name, Every(1, "batch"), seed=7)
        history = estimator.fit(data, event_handlers=[saving, *handlers()], **limits, **fit)
        return dict(history), values(estimator)

    first, second = engines
    whole = run("whole", second, epochs=3)
    run("parts", first, batches=stop)
    for one, other in zip(whole, run("parts", second, epochs=3, resume=folder / "parts")):
        assert_close(one, other)
        if first == second == "torch":
            np.testing.assert_equal(other, one)
