"""Whole numbers where net or losses need real ones, and numbers that are not finite, on torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.compat import mx
from tests.numerics.test_casts import Words, convolution, numbers
from tests.torch.fits import assert_engines_agree, run

NETS: dict[str, tuple[Callable[[], Any], list[np.ndarray]]] = {
    "images": (convolution, [numbers(21, 3, 8, 8, top=2).astype("uint8")]),
    "words and features": (Words, [numbers(21, 4, top=9), numbers(21, 6), numbers(21, 1)]),
}


def batches_of(*arrays: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    return [tuple(array[rows] for array in arrays) for rows in (slice(8), slice(8, 16), slice(16, 21))]


@pytest.mark.parametrize("name", NETS)
def test_both_engines_cast_alike(name: str) -> None:
    make, inputs = NETS[name]
    names = ["x", "w", "s"][: len(inputs)]
    loss = mx.gluon.loss.SigmoidBCELoss()
    spec = TaskSpec(outputs="y", labels=["t"], losses={"l": LossSpec(loss, "y", "t")}, inputs=names)

    def fit(engine: str) -> Any:
        mx.random.seed(3)
        net = make()
        net.initialize(mx.init.Xavier())
        net.hybridize()
        data = batches_of(*inputs, numbers(21, 1, top=2))
        return run(engine, net, spec, TrainerSpec(".*", "sgd", {"learning_rate": 0.01}), data)

    assert_engines_agree(fit, 1e-5)


def estimator_of_images() -> MultiEstimator:
    loss = LossSpec(mx.gluon.loss.L2Loss(), "y", "t")
    net, spec = convolution(), TaskSpec(outputs="y", labels=["t"], losses={"l": loss}, inputs=["x"])
    net.initialize()
    net.hybridize()
    return MultiEstimator(net, spec, engine="torch", context="cpu")


def test_numbers_that_are_not_finite_are_named() -> None:
    images, labels = numbers(21, 3, 8, 8).astype("float32"), numbers(21, 1).astype("float32")
    images[17, 1, 2, 3], images[19] = np.nan, -np.inf
    data = batches_of(images, labels)
    later = r"NaN or infinity in 2 rows, in \w+;"
    for way, message in ((1, later), (-1, "in samples 1, 3")):
        estimator = estimator_of_images()
        with pytest.raises(DataError, match=message):
            estimator.fit(data[::way], epochs=1, event_handlers=[])
        with pytest.raises(DataError, match=message):
            estimator.evaluate(data[::way], event_handlers=[])


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16"])
def test_predicting_after_real_numbers(dtype: str) -> None:
    images = numbers(21, 3, 8, 8)
    floats = images.astype("float32")
    estimator = estimator_of_images()
    estimator.evaluate(batches_of(floats, numbers(21, 1).astype("float32")), event_handlers=[])
    predicted = estimator.predict(images.astype(dtype))["y"]
    np.testing.assert_allclose(predicted, estimator.predict(floats)["y"], rtol=1e-5)
