"""What each engine makes of a fit, and that the two agree."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from multifit import MultiEstimator, TaskSpec
from multifit.gluon.compat import mx

TOLERANCE = 5e-7


def batches(sizes: Any = (8, 8, 8, 8, 5)) -> list[tuple[np.ndarray, ...]]:
    random, made = np.random.RandomState(1), []
    for size in sizes:
        image = random.randn(size, 6)
        digit, weight = image[:, :3].argmax(axis=1).astype("float64"), random.rand(size)
        made.append((image, digit, image[:, 3:4] * 2, weight))
    return made


def run(
    engine: str,
    net: Any,
    spec: TaskSpec,
    trainers: Any,
    data: Any,
    epochs: int = 4,
    handlers: Any = (),
    **options: Any,
) -> Any:
    """Return what one engine makes of a fit: history, figures, outputs and parameters."""
    context = "cpu" if engine == "torch" else mx.cpu()
    estimator = MultiEstimator(net, spec, trainers, context=context, engine=engine, **options)
    history = estimator.fit(data, data, epochs=epochs, event_handlers=list(handlers))
    values = estimator.values()
    return dict(history), estimator.evaluate(data, event_handlers=[]), estimator.predict(data), values


def assert_close(one: Any, other: Any, where: str = "", tolerance: float = TOLERANCE) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(
            other[name], one[name], rtol=tolerance, atol=tolerance, err_msg=f"{where}{name}"
        )


def assert_engines_agree(fit: Callable[[str], Iterable[Any]], tolerance: float = TOLERANCE) -> None:
    """Check that each of the dicts that ``fit(engine)`` returns is the same with MXNet and on torch."""
    for one, other in zip(fit("mxnet"), fit("torch")):
        assert_close(one, other, tolerance=tolerance)
