"""Losses with weights of classes and samples: a step of the estimator, and the same step by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multifit import LabelSpec, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.losses import SegmentationCELoss, SequenceCELoss

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

SAMPLES, RATE = 7, 0.5
CE, BCE, L2 = gluon.loss.SoftmaxCELoss, gluon.loss.SigmoidBCELoss, gluon.loss.L2Loss
THREE, TWO = (0.5, 3.0, 1.5), (0.25, 2.0)
RNG = np.random.RandomState(4)


class Shaped(gluon.HybridBlock):
    """A layer, whose outputs have a shape."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape, self.layer = shape, gluon.nn.Dense(int(np.prod(shape)), in_units=3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.reshape(self.layer(x), (-1, *self.shape))


def by_value(output: Any, label: Any, axis: int = -1) -> Any:
    """Return the cross entropy of each value of a label."""
    F = mx.nd if isinstance(output, mx.nd.NDArray) else mx.sym
    return -F.pick(F.log_softmax(output, axis=axis), label, axis=axis)


def entropy(label: Any, output: Any, axis: int = -1) -> Any:
    """Return the cross entropy of each value of a label that may be out of range."""
    inside = mx.nd.array(np.clip(label, 0, output.shape[axis] - 1), dtype="float64")
    return by_value(output, inside, axis)


def classes(*shape: int, count: int = 3, least: int = 0) -> np.ndarray:
    return RNG.randint(least, count, (SAMPLES, *shape)).astype("float32")


def weights(*shape: int) -> np.ndarray:
    return RNG.uniform(0.1, 2, (SAMPLES, *shape))


def table(values: Sequence[float], label: np.ndarray) -> np.ndarray:
    return np.array(values)[np.clip(label, 0, len(values) - 1).astype(int)]


@dataclass
class Case:
    """A loss, its slots besides the input, and ``hand(output, slots)``: the weighted loss of each sample."""

    fn: Any
    shape: tuple[int, ...]
    slots: dict[str, np.ndarray]
    hand: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    labels: Sequence[Any] = ("y",)
    divisor: Callable[[dict[str, np.ndarray]], float] = lambda slots: SAMPLES


def _mean(values: Any) -> Any:
    return mx.nd.mean(values, axis=0, exclude=True)


def _masked(values: Any, *factors: np.ndarray) -> Any:
    """Return values times factors, without the values where these are 0."""
    factor = np.prod(np.broadcast_arrays(np.ones(values.shape), *factors), axis=0)
    chosen = mx.nd.where(mx.nd.array(factor != 0, dtype="float64"), values, mx.nd.zeros_like(values))
    return chosen * mx.nd.array(factor, dtype="float64")


LENGTHS = np.array([4, 1, 0, 3, 2, 4, 1], "float64")
IN_SEQUENCE = np.arange(4) < LENGTHS[:, None]


def _classes(output: Any, y: np.ndarray, w: Any = 1.0, cw: Sequence[float] = THREE, axis: int = -1) -> Any:
    w = w.reshape(w.shape + (1,) * (y.ndim - w.ndim)) if np.ndim(w) else w
    return _masked(entropy(y, output, axis), table(cw, y), w)


def _segmentation(output: Any, y: np.ndarray, w: Any = 1.0) -> Any:
    valid = y != -1
    pixels = mx.nd.array(np.maximum(valid.sum((1, 2)), 1), dtype="float64")
    return mx.nd.sum(_masked(entropy(y, output, 1), table(THREE, y), w * valid), axis=(1, 2)) / pixels


def _binary(output: Any, y: np.ndarray) -> Any:
    logit, label = output.reshape((-1,)), mx.nd.array(y, dtype="float64")
    loss = mx.nd.relu(logit) - logit * label + mx.nd.log1p(mx.nd.exp(-mx.nd.abs(logit)))
    return _masked(loss, table(TWO, y))


def _parts(output: Any, label: Any) -> tuple[Any, Any]:
    return by_value(output, label), by_value(output, label) * 2


def _present(y: np.ndarray) -> float:
    return float((y != -9).reshape(SAMPLES, -1).mean(1).sum())


THREE_W = {"class_weights": THREE, "sample_weight": "w"}
CASES = {
    "classes": Case(CE(), (3,), {"y": classes()}, _classes, {"class_weights": list(THREE)}),
    "some classes": Case(
        CE(), (3,), {"y": classes()}, lambda o, y: _classes(o, y, cw=(1, 4, 1)), {"class_weights": {1: 4}}
    ),
    "samples": Case(
        CE(), (3,), {"y": classes(), "w": weights()}, lambda o, y, w: _classes(o, y, w, (1, 1, 1)),
        {"sample_weight": "w"}, ("y", "w"),
    ),
    "whole numbers": Case(
        CE(), (3,), {"y": classes(), "w": np.arange(SAMPLES)}, _classes, THREE_W, ("y", "w")
    ),
    "mean of the weights": Case(
        CE(), (3,), {"y": classes(), "w": weights()}, _classes,
        {**THREE_W, "normalize_by": lambda slots: slots["weight.l"]}, ("y", "w"),
        lambda slots: float((table(THREE, slots["y"]) * slots["w"]).sum()),
    ),
    "tokens": Case(
        CE(), (4, 3), {"y": classes(4), "w": weights()}, lambda o, y, w: _mean(_classes(o, y, w)),
        THREE_W, ("y", "w"),
    ),
    "single tokens": Case(
        CE(), (4, 3), {"y": classes(4), "w": weights(4)}, lambda o, y, w: _mean(_classes(o, y, w)),
        THREE_W, ("y", "w"),
    ),
    "pixels": Case(
        CE(axis=1), (3, 4, 5), {"y": classes(4, 5)}, lambda o, y: _mean(_classes(o, y, axis=1)),
        {"class_weights": THREE},
    ),
    "sequences": Case(
        SequenceCELoss(), (4, 3), {"y": classes(4), "w": weights(), "n": LENGTHS},
        lambda o, y, w, n: mx.nd.sum(_masked(_classes(o, y, w), IN_SEQUENCE), axis=1),
        {**THREE_W, "labels": ["y", "n"], "normalize_by": "n"}, ("y", "w", "n"),
        lambda slots: slots["n"].sum(),
    ),
    "segmentation": Case(
        SegmentationCELoss(), (3, 4, 5), {"y": classes(4, 5, least=-1), "w": weights(4, 5)},
        _segmentation, THREE_W, ("y", "w"),
    ),
    "segmentation of bytes": Case(
        SegmentationCELoss(ignore_label=255), (3, 4, 5),
        {"y": np.where(classes(4, 5) == 2, 255, classes(4, 5, count=2)).astype("uint8")},
        lambda o, y: _segmentation(o, np.where(y == 255, -1.0, y)), {"class_weights": THREE},
    ),
    "binary": Case(BCE(), (1,), {"y": classes(count=2)}, _binary, {"class_weights": TWO}),
    "regression": Case(
        L2(), (2,), {"y": RNG.randn(SAMPLES, 2), "w": weights()},
        lambda o, y, w: _mean(_masked(mx.nd.square(o - mx.nd.array(y, dtype="float64")) / 2, w[:, None])),
        {"sample_weight": "w"}, ("y", "w"),
    ),
    "one-hot": Case(
        CE(sparse_label=False), (3,), {"y": np.eye(3)[classes().astype(int)], "w": weights()},
        lambda o, y, w: _classes(o, y.argmax(1), w, (1, 1, 1)), {"sample_weight": "w"}, ("y", "w"),
    ),
    "a function of values": Case(
        by_value, (4, 3), {"y": classes(4), "w": weights()},
        lambda o, y, w: mx.nd.sum(_classes(o, y, w), axis=1), THREE_W, ("y", "w"),
    ),
    "a function of samples": Case(
        lambda o, label: by_value(o, label).sum(axis=1), (4, 3), {"y": classes(4), "w": weights()},
        lambda o, y, w: mx.nd.sum(_classes(o, y, w, (1, 1, 1)), axis=1), {"sample_weight": "w"}, ("y", "w"),
    ),
    "parts": Case(
        _parts, (3,), {"y": classes()}, _classes, {"class_weights": THREE, "returns": ["one", "two"]}
    ),
    "the net's own loss": Case(
        None, (), {"w": weights()}, lambda o, w: _masked(o, w), {"sample_weight": "w"}, ("w",)
    ),
    "with the loss's own weights": Case(
        CE(), (3,), {"y": classes(), "v": weights(1), "w": weights()},
        lambda o, y, v, w: _classes(o, y, v[:, 0] * w), {**THREE_W, "labels": ["y", "v"]}, ("y", "v", "w"),
    ),
    "missing": Case(
        CE(), (3,), {"y": np.where(weights() > 1, -9, classes())},
        lambda o, y: _masked(_classes(o, y), y != -9), {"class_weights": THREE},
        [LabelSpec("y", missing=-9)], lambda slots: _present(slots["y"]),
    ),
    "missing tokens": Case(
        CE(), (4, 3), {"y": np.where(weights(4) > 1, -9, classes(4)), "w": weights(4)},
        lambda o, y, w: _mean(_masked(_classes(o, y, w), y != -9)), THREE_W,
        [LabelSpec("y", missing=-9), "w"], lambda slots: _present(slots["y"]),
    ),
    "missing values of a function": Case(
        by_value, (4, 3), {"y": np.where(weights(4) > 1, -9, classes(4))},
        lambda o, y: mx.nd.sum(_masked(_classes(o, y), y != -9), axis=1), {"class_weights": THREE},
        [LabelSpec("y", missing=-9)], lambda slots: _present(slots["y"]),
    ),
    "ignored where the weight is 0": Case(
        CE(), (4, 3), {"y": np.where(IN_SEQUENCE, classes(4), -1), "w": IN_SEQUENCE.astype("float64")},
        lambda o, y, w: _mean(_classes(o, y, w)), THREE_W, [LabelSpec("y", ignore=-1), "w"],
    ),
}  # fmt: skip


def new_net(case: Case, hybrid: bool = True, contexts: Any = None) -> Any:
    """Return the net, with the same parameters for each call; its outputs are real numbers of 64 bits."""
    net = Shaped(case.shape)
    net.cast("float64")
    net.initialize(mx.init.Zero(), ctx=contexts)
    random = np.random.RandomState(1)
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.array(random.randn(*parameter.shape), dtype="float64"))
    if hybrid:
        net.hybridize()
    return net


def spec_of(case: Case) -> TaskSpec:
    """Return the case's spec: the loss "l" of the output "o" and the label "y"."""
    loss = LossSpec(case.fn, "o", **{"labels": None if case.fn is None else "y", **case.options})
    return TaskSpec(inputs=["x"], outputs="o", labels=case.labels, losses={"l": loss})


def batch_of(case: Case) -> list[np.ndarray]:
    """Return the case's batch: an input, then the slots."""
    return [np.random.RandomState(2).randn(SAMPLES, 3), *case.slots.values()]


def step(case: Case, hybrid: bool = True, contexts: Any = None, **options: Any) -> tuple[list, dict]:
    """Return the parameters after one step of the estimator, and its figures."""
    net = new_net(case, hybrid, contexts)
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": RATE})
    estimator = MultiEstimator(net, spec_of(case), trainer, **options)
    batches = [batch_of(case)]
    evaluated = estimator.evaluate(batches, event_handlers=[])
    history = estimator.fit(batches, epochs=1, event_handlers=[])
    assert np.isclose(evaluated["loss"], history["train_loss"][0], rtol=1e-9)
    return [p.list_data()[0].asnumpy() for p in net.collect_params().values()], dict(history)


def step_by_hand(case: Case) -> tuple[list, float]:
    """Return the parameters after one step by hand, and the loss before it."""
    net, (x, *_) = new_net(case), batch_of(case)
    with mx.autograd.record():
        losses = case.hand(net(mx.nd.array(x, dtype="float64")), **case.slots)
    losses.backward()
    divisor = case.divisor(case.slots)
    pairs = [(p.data().asnumpy(), p.grad().asnumpy()) for p in net.collect_params().values()]
    return [value - RATE * gradient / divisor for value, gradient in pairs], losses.sum().asscalar() / divisor
