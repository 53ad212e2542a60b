"""Losses of every kind, their weights and normalizers enter the objective as in a hand-written loop."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, RunState, SpecError, TaskSpec, TrainerSpec
from multifit.losses import SequenceCELoss
from tests.common.compare import assert_same_parameters, twins
from tests.common.data import digit_batches, regression_batches
from tests.common.grids import in_turn, pairwise, two_settings

from tests.common.hand_loop import SGD, SILENT, SIZES, assert_trains_as_by_hand, train  # isort: skip
from tests.common.hand_loop import train_by_hand, trainer_of  # isort: skip
from tests.common.nets import PARTS, Parts, hybridized, sequential
from tests.common.shared_nets import two_heads
from tests.common.specs import BCE, CE, L2, digit_spec, one_loss_spec

import mxnet as mx  # isort: skip
from gluoncv import loss as toolkit  # isort: skip
from mxnet import autograd, gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


def dense() -> Any:
    return nn.Dense(4)


def tagger() -> Any:
    return nn.Dense(7, flatten=False)


# ---- forms of losses ---------------------------------------------------------------------------------------


def per_sample(out: Any, y: Any) -> Any:
    return nd.mean(nd.square(out - y), axis=0, exclude=True)


def scalar(out: Any, y: Any) -> Any:
    return nd.mean(nd.square(out - y))


def whole(out: Any, y: Any) -> Any:
    return nd.square(out - y)


def mean_of(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss for the samples; the loop divides by their number, by which a mean is divided already."""
    return lambda out, y: loss(out, y) * len(out)


class SquaredError(gluon.HybridBlock):
    """The squared error, of the form that `axes` gives: "none" for (N, T), 0 for (N,), None for a scalar."""

    def __init__(self, axes: Any) -> None:
        super().__init__()
        self.axes = axes

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        loss = F.square(out - y)
        return loss if self.axes == "none" else F.mean(loss, axis=self.axes, exclude=self.axes is not None)


class Annealed(gluon.HybridBlock):
    """A loss whose attribute somebody changes while training."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        return self.factor * F.mean(F.square(out - y), axis=0, exclude=True)


class Container(gluon.HybridBlock):
    """A toolkit's own container around a loss that is not, with ones as label."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.of = [loss]

    def hybrid_forward(self, F: Any, out: Any) -> Any:
        return self.of[0].hybrid_forward(F, out, F.ones_like(out))


def annealed(alone: bool) -> dict[str, Any]:
    """Return a case of a loss that changes while training, and is not frozen by a trace."""
    loss, batches = Annealed(), regression_batches([8] * 6)
    factors = iter([1.0 + 0.1 * i for i in range(6)])

    def stepwise() -> Any:
        for i, batch in enumerate(batches):
            loss.factor = 1.0 + 0.1 * i
            yield batch

    def objective(net: Any, x: Any, y: Any) -> Any:
        return next(factors) * per_sample(net(x), nd.ones_like(y) if alone else y)

    spec = one_loss_spec(loss)
    if alone:
        losses = {"l": LossSpec(sequential(Container(loss)), "out")}
        spec = TaskSpec(outputs="out", labels=["y"], losses=losses, unused=["y"])
    return {"spec": spec, "batches": batches, "objective": objective, "fed": stepwise()}


class Shapely(gluon.HybridBlock):
    """A loss of a toolkit that looks at a shape, and so cannot be traced."""

    __module__ = "gluoncv.loss"

    def hybrid_forward(self, F: Any, out: Any, y: Any) -> Any:
        return F.sum(F.square(out - y), axis=1) / out.shape[1]


def sometimes(out: Any, y: Any) -> Any:
    """Return a loss that is constant in some batches, which have no gradient."""
    return per_sample(out, y) if float(y[0, 0].asscalar()) < 1e5 else nd.zeros(len(y))


SIXES = regression_batches([6] * 8)
FAR = [(x, y if i % 2 == 0 else np.full_like(y, 1e6)) for i, (x, y) in enumerate(SIXES)]
ONE_FIRST = {"batches": regression_batches([1, *SIZES])}  # a first batch of one hides a scalar
PLAIN = {"options": {"learning_rate": 0.1}}


def of_loss(loss: Any, reference: Any, spec: dict[str, Any] | None = None, **more: Any) -> Any:
    def case() -> dict[str, Any]:
        declared = one_loss_spec(loss, **(spec or {}))
        return {"spec": declared, "objective": lambda net, x, y: reference(net(x), y), **more}

    return case


def of_part(part: str, reference: Any) -> Any:
    return of_loss(Parts(), reference, {"returns": list(PARTS), "minimize": part})


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "a function of (N,)": of_loss(per_sample, per_sample),
    "a function of (N, T)": of_loss(whole, whole),
    "a scalar function": of_loss(scalar, mean_of(scalar)),
    "a scalar function, one sample first": of_loss(scalar, mean_of(scalar), **ONE_FIRST),
    "a hybridized block of (N,)": of_loss(hybridized(SquaredError(0)), per_sample),
    "a hybridized scalar block": of_loss(hybridized(SquaredError(None)), mean_of(scalar)),
    "a scalar block, one sample first": of_loss(
        hybridized(SquaredError(None)), mean_of(scalar), **ONE_FIRST
    ),
    "a stock loss": of_loss(L2, lambda out, y: 0.5 * per_sample(out, y)),
    "a scalar of a stock loss": of_loss(
        gluon.loss.L2Loss(batch_axis=None), mean_of(lambda out, y: 0.5 * scalar(out, y))
    ),
    "the first part": of_part("mean", mean_of(scalar)),
    "the second part": of_part("sample", per_sample),
    "the last part": of_part("all", whole),
    "parts of a function": of_loss(
        lambda out, y: Parts().hybrid_forward(nd, out, y), per_sample,
        {"returns": list(PARTS), "minimize": "sample"},
    ),
    "a block that changes": lambda: annealed(alone=False),
    "a block that changes, in a container": lambda: annealed(alone=True),
    "constant in every second batch": of_loss(
        sometimes, per_sample, batches=SIXES[::2], fed=FAR, **PLAIN
    ),
}  # fmt: skip


@pairwise("case", FORMS)
def test_of_every_form(case: str, devices: list, hybrid: bool) -> None:
    row = {"make": dense, "batches": regression_batches(SIZES), **FORMS[case]()}
    assert_trains_as_by_hand(devices=devices, hybrid=hybrid, **row)


@two_settings
def test_a_loss_that_cannot_be_traced_runs_operator_by_operator(devices: list, hybrid: bool) -> None:
    row = of_loss(Shapely(), per_sample, batches=regression_batches(SIZES))()
    estimator = assert_trains_as_by_hand(dense, devices=devices, hybrid=hybrid, **row)
    assert "AttributeError while tracing" in estimator._session.stages["train"].describe()


class OwnLoss(gluon.HybridBlock):
    """A net that takes its label and returns its loss, as YOLOv3 does."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4)

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return F.mean(F.square(self.dense(x) - y), axis=1)


@two_settings
def test_a_loss_may_be_the_nets_own(devices: list, hybrid: bool) -> None:
    spec = TaskSpec(inputs=["x", "y"], outputs=["l"], losses={"l": LossSpec()})
    assert_trains_as_by_hand(
        OwnLoss, spec, regression_batches(SIZES), lambda net, x, y: net(x, y), devices, hybrid, inputs=2
    )


class Uncertain(gluon.HybridBlock):
    """A loss with a parameter of its own: the logarithm of a variance (Kendall, Gal and Cipolla 2018)."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.log_var = self.params.get("log_var", shape=(1,), init="zeros")

    def hybrid_forward(self, F: Any, out: Any, y: Any, log_var: Any) -> Any:
        error = F.mean(F.square(out - y), axis=0, exclude=True)
        return F.broadcast_add(F.broadcast_mul(F.exp(-log_var), error), log_var)


@pairwise("own", ["plain", "hybridized"])
def test_a_loss_may_have_parameters(own: str, devices: list, hybrid: bool) -> None:
    batches = regression_batches(SIZES)
    hand, net = twins(dense, batches[0][0])
    losses = Uncertain(), hybridized(Uncertain(), own == "hybridized")
    losses[0].initialize()
    held = [*hand.collect_params().values(), *losses[0].collect_params().values()]
    train_by_hand(hand, gluon.Trainer(held, "sgd", SGD), batches, lambda net, x, y: losses[0](net(x), y))
    estimator = train(hybridized(net, hybrid), one_loss_spec(losses[1]), batches, devices)
    assert "losses.l.log_var" in estimator.trainers.parameters["trainer"]
    assert_same_parameters(net, hand)
    assert_same_parameters(losses[1], losses[0])


# ---- weights and normalizers, over the whole batch ---------------------------------------------------------


def sequences(empty: bool = False, dtype: str = "float32") -> list[tuple]:
    """Batches (source, target, length, which may be 0) of varying padded length."""
    random = np.random.RandomState(2)
    batches = []
    for i in range(8):
        steps, n = 3 + i % 3 // 2, 9 if i % 5 else 5
        length = random.randint(0 if empty else 1, steps + 1, n)
        if empty and i % 6 == 0:
            length[:] = 0
        target = random.randint(0, 7, (n, steps))
        source = random.randn(n, steps, 4)
        batches.append((source.astype("float32"), target.astype("float32"), length.astype(dtype)))
    return batches


def of_sequences(losses: dict[str, LossSpec], objective: Any, *kind: Any) -> dict[str, Any]:
    spec = TaskSpec(inputs=["x"], outputs=["logits"], labels=["y", "length"], losses=losses)
    return {"make": tagger, "spec": spec, "batches": sequences(*kind), "objective": objective,
            "by": lambda x: 1}  # fmt: skip


MASKED = SequenceCELoss()


def of_tokens(normalizer: Any, *kind: Any) -> Callable[[], dict[str, Any]]:
    """Return a case of a mean over tokens."""

    def objective(net: Any, x: Any, y: Any, length: Any) -> Any:
        valid = length.astype("float32")
        mask = nd.arange(y.shape[1]).reshape((1, -1)) < valid.reshape((-1, 1))
        token = -nd.pick(nd.log_softmax(net(x)), y) * mask
        return token.sum() / nd.maximum(valid.sum(), 1.0)

    losses = {"l": LossSpec(MASKED, "logits", ["y", "length"], normalize_by=normalizer)}
    return lambda: of_sequences(losses, objective, *kind)


def of_two_normalizers() -> dict[str, Any]:
    l1 = gluon.loss.L1Loss()

    def near(out: Any, y: Any) -> Any:
        return l1(out, nd.one_hot(y, 7))

    def objective(net: Any, x: Any, y: Any, length: Any) -> Any:
        logits = net(x)
        return 2 * MASKED(logits, y, length).sum() / length.sum() + 0.3 * near(logits, y).mean()

    losses = {
        "tokens": LossSpec(MASKED, "logits", ["y", "length"], weight=2, normalize_by="length"),
        "near": LossSpec(near, "logits", "y", weight=0.3),
    }
    return of_sequences(losses, objective)


def where_the_normalizer_is_0() -> dict[str, Any]:
    """Return a case in which every second batch teaches nothing."""
    pairs = regression_batches([6] * 8, 4, (1,))
    batches = [(x, y, np.full(6, i % 2, "float32")) for i, (x, y) in enumerate(pairs)]
    losses = {"l": LossSpec(L2, "out", "y", normalize_by="valid")}
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y", "valid"], losses=losses)
    return {"make": lambda: nn.Dense(1), "spec": spec, "batches": batches[1::2], "fed": batches,
            "objective": lambda net, x, y, valid: L2(net(x), y), **PLAIN}  # fmt: skip


def of_constants(digit: float, parity: float) -> Callable[[], dict[str, Any]]:
    def objective(net: Any, x: Any, *labels: Any) -> Any:
        digits, parities = net(x)
        return digit * CE(digits, labels[0]) + parity * BCE(parities, labels[1])

    spec = digit_spec(digit, parity)
    return lambda: {"make": two_heads, "spec": spec, "batches": digit_batches(SIZES), "objective": objective}


def tokens_of(slots: dict[str, Any]) -> float:
    return float(slots["length"].sum().asscalar())


FACTORS: dict[str, Callable[[], dict[str, Any]]] = {
    "a weight of 0": of_constants(0.0, 3.0),
    "weights": of_constants(2, 0.25),
    "a slot of whole numbers": of_tokens("length", False, "int32"),
    "a slot of bytes": of_tokens("length", True, "uint8"),
    "a slot": of_tokens("length", True),
    "a function": of_tokens(lambda slots: slots["length"].sum(), True),
    "a function without a sum": of_tokens(lambda slots: slots["length"].astype("float32"), True),
    "a function to NumPy": of_tokens(lambda slots: slots["length"].asnumpy(), True),
    "a function to either": of_tokens(
        lambda slots: slots["length"] if slots["length"].context == mx.cpu(0) else tokens_of(slots), True
    ),
    "a normalizer for every term": of_two_normalizers,
    "a normalizer of 0": where_the_normalizer_is_0,
}


@in_turn("case", FACTORS)
def test_weights_and_normalizers(case: str, devices: list, hybrid: bool) -> None:
    assert_trains_as_by_hand(devices=devices, hybrid=hybrid, **FACTORS[case]())


@two_settings
def test_weights_that_are_functions_of_the_state(devices: list, hybrid: bool) -> None:
    batches = digit_batches(SIZES)
    count = len(batches)
    hand, net = twins(two_heads, batches[0][0])
    steps = iter(range(2 * count))

    def objective(net: Any, x: Any, digit: Any, parity: Any) -> Any:
        (digits, parities), step = net(x), next(steps)
        return (1 + 0.01 * (step // count)) * CE(digits, digit) + 0.1 * step * BCE(parities, parity)

    train_by_hand(hand, trainer_of(hand), [*batches, *batches], objective)
    seen: list[tuple] = []

    def weight(state: RunState) -> float:
        seen.append((state.epoch, state.batch, state.step))
        return 0.1 * state.step

    spec = digit_spec(lambda state: 1 + 0.01 * state.epoch, weight)
    estimator = train(hybridized(net, hybrid), spec, batches, devices)
    estimator.fit(batches, epochs=1, event_handlers=SILENT)
    assert sorted(set(seen)) == [(i // count, i % count, i) for i in range(2 * count)]
    assert_same_parameters(net, hand)


def test_a_normalizer_counts_exactly() -> None:
    """Two thousand bytes of 255 neither overflow as bytes nor lose a digit."""

    def total(out: Any, mask: Any) -> Any:
        return nd.sum(nd.cast(mask, "float32"), axis=1) + 0 * nd.sum(out, axis=1)

    batch = np.ones((2, 3), "float32"), np.full((2, 1000), 255, "uint8")
    estimator = train(nn.Dense(1), one_loss_spec(total, normalize_by="y"), [batch])
    assert estimator.history["train_l"] == [1.0]


def test_more_weights_than_are_remembered() -> None:
    estimator = train(two_heads(), digit_spec(parity=lambda state: state.step), digit_batches([2] * 262))
    assert len(estimator._session.stages["train"].weights._constants) <= 257


# ---- losses that ignore the gradient that they receive -----------------------------------------------------


class OwnGradient(gluon.loss.Loss):
    """A cross entropy of SoftmaxOutput, which makes its own gradient."""

    def __init__(self) -> None:
        super().__init__(None, 0)

    def hybrid_forward(self, F: Any, pred: Any, label: Any) -> Any:
        options = {"multi_output": True, "use_ignore": True, "ignore_label": -1, "normalization": "valid"}
        probability = F.SoftmaxOutput(pred, label, **options)
        return F.mean(-F.log(F.pick(probability, label, axis=1)), axis=0, exclude=True)


class Maps(gluon.HybridBlock):
    """(N, 2, 4, 4) -> some score maps of three classes."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layers = [nn.Conv2D(3, 3, padding=1) for _ in range(outputs)]
        for layer in self.layers:
            self.register_child(layer)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return [layer(x) for layer in self.layers]


def maps() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.RandomState(0)
    labels = [random.randint(-1, 3, (size, 4, 4)).astype("float32") for size in [6, 6, 6, 4, 6]]
    return [(random.randn(len(y), 2, 4, 4).astype("float32"), y) for y in labels]


def spec_of_maps(outputs: int, loss: Any, **options: Any) -> TaskSpec:
    names = [f"out{i}" for i in range(outputs)]
    losses = {"l": LossSpec(loss, names, "y", **options)}
    return TaskSpec(inputs=["x"], outputs=names, labels=["y"], losses=losses)


OWN = {
    "a block": (1, OwnGradient()),
    "a function": (1, lambda out, y: OwnGradient()(out, y)),
    "with an auxiliary output": (2, toolkit.MixSoftmaxCrossEntropyLoss(aux=True)),
    "ICNetLoss": (4, toolkit.ICNetLoss(crop_size=4)),
}


@pairwise("case", OWN)
def test_losses_with_gradients_of_their_own(case: str, devices: list, hybrid: bool) -> None:
    outputs, loss = OWN[case]
    batches = maps()
    hand, net = twins(lambda: Maps(outputs), batches[0][0])
    trainer = trainer_of(hand)
    for x, y in batches:
        half = len(x) // len(devices)
        with autograd.record():
            parts = [[nd.array(each[i : i + half]) for each in (x, y)] for i in range(0, len(x), half)]
            losses = [loss(*hand(part), label) for part, label in parts]
        autograd.backward(losses)
        trainer.step(len(x))
    estimator = train(hybridized(net, hybrid), spec_of_maps(outputs, loss), batches, devices)
    assert_same_parameters(net, hand)
    assert 0.3 < estimator.history["train_l"][0] < 10


def partly(out: Any, y: Any) -> Any:
    return OwnGradient()(out, y) + nd.square(out).mean(axis=0, exclude=True)


HALVES = SimpleNamespace(change_objective=lambda estimator, objectives: [each / 2 for each in objectives])
ITS_WEIGHT = r'losses\["l"\]: OwnGradient ignores its weight'
CHANGED = r'losses\["l"\]: it ignores the gradient.*change the objective'
IGNORED: dict[str, tuple[Any, dict[str, Any], list[Any], str]] = {
    "a weight": (OwnGradient(), {"weight": 0.5}, [], ITS_WEIGHT),
    "a function": (OwnGradient(), {"weight": lambda state: 1.0}, [], ITS_WEIGHT),
    "a normalizer": (OwnGradient(), {"normalize_by": lambda slots: 3.0}, [], ITS_WEIGHT),
    "some of it": (partly, {}, [], "gave one that is not four times as large, so weights"),
    "a handler": (OwnGradient(), {}, [HALVES], CHANGED),
}


@pytest.mark.parametrize(("loss", "options", "handlers", "message"), IGNORED.values(), ids=IGNORED)
def test_what_they_would_ignore_is_refused(loss: Any, options: Any, handlers: Any, message: str) -> None:
    estimator = MultiEstimator(Maps(1), spec_of_maps(1, loss, **options), TrainerSpec(".*", "sgd", SGD))
    with pytest.raises(SpecError, match=message):
        estimator.fit(maps(), epochs=1, event_handlers=[*SILENT, *handlers])
    assert estimator.state.step == 0
