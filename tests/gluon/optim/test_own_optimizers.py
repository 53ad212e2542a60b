"""AdamW, RAdam and Lion equal their papers' formulas, computed by NumPy in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.grids import ONE, TWO
from tests.common.hand_loop import SILENT

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip

BATCHES = 12
SPEC = TaskSpec(  # the gradient of the weight is the mean input, that of the bias is 1
    inputs=["x"], outputs=["y"], labels=["z"], losses={"y": LossSpec(lambda y, z: y, "y", "z")}
)


def means(g: Any, m: Any, v: Any) -> Any:
    return 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2


def adamw(w: Any, g: Any, m: Any, v: Any, t: int, rate: float, decay: float) -> Any:
    m, v = means(g, m, v)
    step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w - rate * (decay * w + step), m, v


def radam(w: Any, g: Any, m: Any, v: Any, t: int, rate: float, decay: float) -> Any:
    m, v = means(g + decay * w, m, v)
    last = 2 / 0.001 - 1
    length, step = last - 2 * t * 0.999**t / (1 - 0.999**t), m / (1 - 0.9**t)
    if length > 5:
        ratio = (length - 4) * (length - 2) * last / ((last - 4) * (last - 2) * length)
        step = step * np.sqrt(ratio * (1 - 0.999**t)) / (np.sqrt(v) + 1e-8)
    return w - rate * step, m, v


def lion(w: Any, g: Any, m: Any, v: Any, t: int, rate: float, decay: float) -> Any:
    return w - rate * (np.sign(0.9 * m + 0.1 * g) + decay * w), 0.99 * m + 0.01 * g, v


def batches(dtype: str = "float32") -> list[Any]:
    random = np.random.RandomState(0)
    return [(random.randn(4, 3).astype(dtype), np.zeros((4, 1), dtype)) for _ in range(BATCHES)]


def estimator_of(trainer: TrainerSpec, dtype: str = "float32", devices: Any = ONE) -> MultiEstimator:
    net = nn.Dense(1, in_units=3)
    mx.random.seed(1)
    net.initialize(mx.init.Normal(0.5), ctx=devices)
    net.cast(dtype)
    net.hybridize()
    return MultiEstimator(net, SPEC, trainer, devices)


@pytest.mark.parametrize(("devices", "dtype"), [(ONE, "float64"), (TWO, "float32")])
@pytest.mark.parametrize(("name", "decay"), [("adamw", None), ("adamw", 0.0), ("radam", 0.1), ("lion", 0.1)])
def test_numbers_are_the_papers(name: str, decay: float | None, dtype: str, devices: Any) -> None:
    """Also while a schedule halves the rate; AdamW's own weight decay is PyTorch's, 0.01."""
    data, options = batches(dtype), {} if decay is None else {"weight_decay": decay}
    schedule = mx.lr_scheduler.FactorScheduler(4, 0.5)
    trainer = TrainerSpec(".*", name, {"lr": 0.02, **options}, lr_scheduler=schedule)
    estimator = estimator_of(trainer, dtype, devices)
    expected = {n: p.list_data()[0].asnumpy().astype("float64") for n, p in estimator.parameters.items()}
    memory = dict.fromkeys(expected, (0.0, 0.0))
    for t, (x, _) in enumerate(data, 1):
        rate = 0.02 * 0.5 ** ((t - 1) // 4)
        for each, gradient in {"weight": x.astype("float64").mean(0), "bias": np.ones(1)}.items():
            arguments = gradient, *memory[each], t, rate, 0.01 if decay is None else decay
            expected[each], *memory[each] = globals()[name](expected[each], *arguments)
    estimator.fit(data, epochs=1, event_handlers=SILENT)
    tolerance = 1e-7 if dtype == "float64" else 1e-5
    for each, value in expected.items():
        for array in estimator.parameters[each].list_data():
            np.testing.assert_allclose(array.asnumpy(), value, rtol=tolerance, atol=tolerance, err_msg=each)


@pytest.mark.parametrize("name", ["adamw", "radam", "lion"])
def test_gradients_are_clipped_and_rescaled(name: str) -> None:
    ends = []
    for scale, clip in ((1.0, 0.25), (0.5, None)):  # of the bias's gradient, 1
        own = mx.optimizer.create(name, learning_rate=0.1, clip_gradient=clip, rescale_grad=scale)
        weight, gradient = mx.nd.ones((3,)), mx.nd.array([0.2, -0.3, 1.0]) / scale
        state = own.create_state(0, weight)
        own.update(0, weight, gradient, state)
        mean = (state[0] if isinstance(state, tuple) else -state) / (1 - (0.99 if name == "lion" else 0.9))
        ends.append(mean.asnumpy())
    np.testing.assert_allclose(ends, [[0.2, -0.25, 0.25], [0.2, -0.3, 1.0]], rtol=1e-5)


def test_names_of_pytorch_are_aliases_for_every_optimizer(tmp_path: Path) -> None:
    """A run resumes under the other names."""
    aliases = {"lr": 0.05, "wd": 0.1}, {"learning_rate": 0.05, "weight_decay": 0.1}
    for epochs, options in enumerate(aliases, 1):
        (handle,) = estimator_of(TrainerSpec(".*", "sgd", options)).trainers.values()
        assert (handle.learning_rate, handle.weight_decay) == (0.05, 0.1)
        estimator = estimator_of(TrainerSpec(".*", "adamw", options))
        handlers = [*SILENT, CheckpointHandler(tmp_path)]
        resume = tmp_path if epochs == 2 else None
        estimator.fit(batches(), epochs=epochs, event_handlers=handlers, resume=resume)
        assert estimator.state.epoch == epochs
