"""The same training by one process and by several, for tests: every case in which the two must be equal."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import multifit
from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec, metrics
from multifit.balance import DWA, FAMO, GLS, IMTLL, RLW, GradNorm, PCGrad, Uncertainty, UPGrad
from multifit.distributed import ALONE, World
from tests.common.handlers import CutsPower, Freezes, PowerCut
from tests.common.joint_data import Shuffled, arrays, batches, loader, ragged, uneven_parts
from tests.common.nets import Heads, sequential
from tests.common.ranks import ThreadWorld, run_ranks

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip

CE, BCE = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.SigmoidBCELoss()


class ByShape(mx.init.Initializer):
    """Draws values that follow from an array's shape, and differ between ranks."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def _init_weight(self, name: str, array: Any) -> None:
        random = np.random.RandomState(sum(array.shape) + 100 * self.rank)
        array[:] = random.uniform(-0.5, 0.5, array.shape)


def two_heads() -> Heads:
    """Return a body and two heads; shapes are inferred from the first batch."""
    return Heads(body=gluon.nn.Dense(16, activation="tanh"), digit=10, parity=1)


def normed_heads() -> Any:
    """Return the net with BatchNorm, whose running statistics are each rank's own within an epoch."""
    body = sequential(gluon.nn.Dense(16, activation="tanh"), gluon.nn.BatchNorm())
    return Heads(body=body, digit=10, parity=1)


class Branching(gluon.Block):
    """Calls a second head only where some sample of this process is above a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.digit = gluon.nn.Dense(16, activation="tanh"), gluon.nn.Dense(10)
        self.parity, self.rare = gluon.nn.Dense(1), gluon.nn.Dense(1, in_units=16)

    def forward(self, x: Any) -> Any:
        features, rare = self.body(x), x[:, :1] > 1.8
        parity = self.parity(features)
        if rare.asnumpy().any():
            parity = parity + self.rare(features) * rare
        return self.digit(features), parity


class Median(mx.metric.EvalMetric):
    """A metric that is no sum: the median of all margins."""

    def __init__(self) -> None:
        super().__init__("median")

    def reset(self) -> None:
        self.margins: list[float] = []

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(labels, preds):
            self.margins += list(pred.asnumpy().max(axis=1) * (1 + label.asnumpy()))

    def get(self) -> tuple[str, float]:
        return "median", float(np.median(self.margins)) if self.margins else float("nan")


class Mirrored(np.random.RandomState):
    """Draws no random numbers: the same mixture for any division of a batch that is a multiple of 4."""

    def beta(self, a: Any, b: Any, size: Any = None) -> float:
        return 0.7

    def permutation(self, x: Any) -> Any:
        return np.arange(x).reshape(-1, 2)[:, ::-1].ravel() if x % 2 == 0 else np.arange(x)


def noise_of(world: World) -> Any:
    """Return a function that draws the same noise each time on the first rank, and none on others."""

    def draw(mean: float, sigma: float, shape: Any, dtype: Any, ctx: Any) -> Any:
        return nd.full(shape, sigma / len(shape) if world.first else np.nan, dtype=dtype, ctx=ctx)

    return draw


def _of_its_own(spec: Any) -> LossSpec:
    """Return a LossSpec with a new loss: threads must not trace the same one."""
    spec = spec if isinstance(spec, LossSpec) else LossSpec(spec)
    return replace(spec, fn=type(spec.fn)()) if isinstance(spec.fn, gluon.loss.Loss) else spec


def joint_training(world: World, context: Any = None, **changes: Any) -> dict[str, np.ndarray]:
    """Train, and return parameters, figures and predictions; `changes` say what is not as usual."""
    options = {
        "net": two_heads, "hybridize": True, "digit": CE, "parity": LossSpec(BCE, weight=0.5),
        "data": lambda world: loader(16), "handlers": lambda world: [], "optimizer": "sgd",
        "dtype": "float32", "clip_norm": None, "labels": ["digit", "parity", "weight"], "balance": None,
        "rhythm": {}, "accumulate": 1, "engine": "mxnet", "fit": {},
        "metrics": {"median": MetricSpec(Median(), "digit", "digit", stage="evaluate")},
    }  # fmt: skip
    unknown = set(changes) - set(options)
    assert not unknown, unknown
    options.update(changes)
    spec = TaskSpec(
        inputs=["x"],
        outputs=["digit", "parity"],
        labels=options["labels"],
        losses={name: _of_its_own(options[name]) for name in ("digit", "parity")},
        metrics={
            "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
            "binary": MetricSpec(metrics.BinaryAccuracy(), "parity", "parity"),
            **options["metrics"],
        },
        unused=["weight"],
    )
    rates = {"sgd": {"learning_rate": 0.3, "momentum": 0.9}, "adam": {"learning_rate": 0.01}}
    trainers = {
        "body": TrainerSpec(
            "body.*", "adam", rates["adam"], clip_norm=options["clip_norm"], **options["rhythm"]
        ),
        "heads": TrainerSpec(
            "(?!body).*", options["optimizer"], rates[options["optimizer"]], clip_norm=options["clip_norm"]
        ),
    }
    net = options["net"]()
    net.initialize(ByShape(world.rank), ctx=context)
    net.cast(options["dtype"])
    if options["hybridize"] and isinstance(net, gluon.HybridBlock):
        net.hybridize()
    how = {name: options[name] for name in ("balance", "engine", "accumulate")}
    estimator = MultiEstimator(net, spec, trainers, context, world=world, **how)
    val_data = loader(16, samples=33)
    handlers = options["handlers"](world)
    data = options["data"](world)
    history = estimator.fit(data, val_data, epochs=2, event_handlers=handlers, **options["fit"])
    results = estimator.values()
    results.update({f"figure {name}": np.array(history[name]) for name in history})
    results.update({f"predicted {name}": array for name, array in estimator.predict(val_data).items()})
    results["counters"] = np.array([estimator.state.step, estimator.state.samples])
    return results


class Weighted(gluon.loss.SigmoidBCELoss):
    """Samples have weights, of shape (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.hybridize()

    def hybrid_forward(self, F: Any, pred: Any, label: Any, weight: Any) -> Any:
        return super().hybrid_forward(F, pred, label) * weight


def _normalized() -> Any:
    return LossSpec(lambda p, y, w: BCE(p, y) * w, "parity", ["parity", "weight"], normalize_by="weight")


OF_ODD = LossSpec(
    lambda p, y: CE(p, y) * (y % 2), "digit", "digit", normalize_by=lambda slots: slots["digit"] % 2
)
MISSING = [LabelSpec("digit", missing=3), LabelSpec("parity", missing="weight"), "weight"]
LACKING = [LabelSpec("digit", missing=6), "parity", "weight"]  # in `ragged`, a batch has no other digit
ADDING = {"every": 2, "accumulate": True}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipping": {"clip_norm": 0.1},
    "adam": {"optimizer": "adam"},
    "a normalizer": {"parity": _normalized()},
    "several at once": {
        "digit": replace(OF_ODD, weight=lambda state: 1.0 + 0.1 * state.step),
        "parity": _normalized(),
        "clip_norm": 0.1,
        "accumulate": 2,
        "data": lambda world: loader(37),
    },
    "a weight that changes": {"digit": LossSpec(CE, weight=lambda state: 1.0 + 0.1 * state.step)},
    "accumulation": {"accumulate": 2},
    "accumulation of missing labels": {"accumulate": 3, "labels": MISSING, "data": ragged},
    "accumulation of uneven parts": {"accumulate": 2, "parity": _normalized(), "data": uneven_parts},
    "weights of classes and samples": {
        "digit": LossSpec(CE, class_weights={3: 4.0}, sample_weight="weight"), "data": ragged
    },
    "balanced classes": {"digit": LossSpec(CE, class_weights="balanced"), "data": uneven_parts},
    "balanced classes in another order": {
        "digit": LossSpec(CE, class_weights="balanced"),
        "data": lambda world: loader(
            batch_sampler=gluon.data.BatchSampler(Shuffled(world), 37, "keep"), size=None
        ),
    },
    "lists": {"data": lambda world: batches(16)},
    "arrays in memory": {"data": lambda world: multifit.batches(*arrays(), batch_size=16)},
    "an eager net": {"hybridize": False},
    "a frozen body": {
        "net": normed_heads,
        "handlers": lambda world: [Freezes({0: "body.*", 3: "body.*|digit.*"})],
    },
    "worker processes": {"data": lambda world: loader(16, num_workers=1)},
    "worker threads": {"data": lambda world: loader(16, num_workers=1, thread_pool=True)},
    "a shuffled order": {
        "data": lambda world: loader(
            batch_sampler=gluon.data.BatchSampler(Shuffled(world), 16, "keep"), size=None
        )
    },
    "uneven parts": {"data": uneven_parts},
    "a last batch of one sample": {"data": lambda world: loader(37)},
    "smoothed labels": {"handlers": lambda world: [multifit.LabelSmoothing(0.2, loss="digit")]},
    "mixed samples": {
        "handlers": lambda world: [multifit.MixUp(random=Mirrored())],
        "data": lambda world: loader(16, last_batch="discard"),
    },
    "averaged weights": {"handlers": lambda world: [multifit.WeightAveraging(decay=0.8)]},
    "skipped updates": {"handlers": lambda world: [multifit.SkipNonFinite()]},
    "noise": {"handlers": lambda world: [multifit.GradientNoise(random=noise_of(world))]},
    "a plateau": {
        "handlers": lambda world: [multifit.PlateauHandler("val_loss", patience=0, min_delta=10.0)]
    },
    "a net that branches": {"net": Branching},
    "missing labels": {"labels": MISSING, "data": lambda world: loader(37)},
    "a trainer that waits": {"rhythm": {"every": 3}, "net": Branching},
    "a trainer that accumulates": {"rhythm": {"every": 3, "accumulate": True}, "clip_norm": 0.1},
    "balance": {"balance": DWA(), "data": lambda world: loader(37)},
    "balance by a geometric mean": {"balance": GLS()},
    "balance that learns": {"balance": IMTLL(learning_rate=0.1)},
    "balance that looks back": {"balance": FAMO(), "data": ragged},
    "balance of every second batch": {"balance": Uncertainty(every=2), "data": ragged},
    "balance of a task that is absent": {"balance": RLW(), "data": ragged, "labels": LACKING},
    "balance of a task that is absent, every third batch": {
        "balance": DWA(every=3), "data": ragged, "labels": LACKING
    },
    "balance of features": {"balance": UPGrad(), "data": ragged},
    "balance of features that adds up": {"balance": PCGrad(), "data": ragged, "rhythm": ADDING},
    "balance of parameters": {"balance": GradNorm(on="body.weight", every=2), "data": ragged},
    "balance of parameters where labels are missing": {
        "balance": UPGrad(on="parameters"), "data": ragged, "labels": MISSING, "dtype": "float64"
    },
    "float64": {"dtype": "float64"},
    "two devices": {"context": [mx.cpu(0), mx.cpu(1)]},
}  # fmt: skip

# those in which net and losses are a graph, for the engine on torch
ON_TORCH: dict[str, dict[str, Any]] = {
    **{name: case for name, case in CASES.items() if name.startswith("balance")},
    **{name: CASES[name] for name in (
        "clipping", "a weight that changes", "lists", "uneven parts", "averaged weights", "skipped updates",
        "a last batch of one sample", "missing labels", "accumulation", "accumulation of missing labels",
        "smoothed labels", "mixed samples", "a trainer that accumulates",
    )},
    "a normalizer of a graph": {
        "parity": LossSpec(Weighted(), "parity", ["parity", "weight"], normalize_by="weight")
    },
    "a trainer of a graph that waits": {"rhythm": {"every": 3}},
}  # fmt: skip


def assert_equal_training(alone: dict[str, Any], joint: dict[str, Any]) -> None:
    """Check that two trainings have the same parameters, figures, predictions and counters."""
    assert isinstance(joint, dict), joint
    assert alone.keys() == joint.keys()
    for name, expected in alone.items():
        np.testing.assert_allclose(joint[name], expected, rtol=2e-4, atol=2e-5, err_msg=name)


def assert_as_alone(
    train: Callable[[World], dict[str, Any]], size: int = 2, kind: type[ThreadWorld] = ThreadWorld
) -> dict[str, Any]:
    """Check that ranks end with what one process ends with, and do not differ at all; return the latter."""
    alone = train(ALONE)
    ranks = run_ranks(size, train, kind=kind)
    for joint in ranks:
        assert_equal_training(alone, joint)
        for name, value in ranks[0].items():
            np.testing.assert_array_equal(joint[name], value, err_msg=name)
    return alone


# states that each rank has for itself, within an epoch or between two updates
OWN = "a trainer that accumulates", "accumulation of missing labels", "balance of features that adds up"
RANKS_OWN = {"running statistics": {"net": normed_heads}, **{name: CASES[name] for name in OWN}}


def assert_ranks_resume(folder: Path, engine: str, case: str) -> None:
    """Check that ranks with states of their own, one of `RANKS_OWN`, resume bit for bit within an epoch."""

    def run(world: World, name: str, *handlers: Any, **fit: Any) -> dict[str, np.ndarray]:
        saving = multifit.CheckpointHandler(folder / name, multifit.Every(5, "batch"))
        changes = {"handlers": lambda world: [saving, *handlers], "engine": engine, "fit": fit}
        return joint_training(world, **{**RANKS_OWN[case], **changes})

    whole = run_ranks(2, lambda world: run(world, "whole"))
    for error in run_ranks(2, lambda world: run(world, "parts", CutsPower(7))):
        assert isinstance(error, (PowerCut, multifit.PeerError)), error
    resumed = run_ranks(2, lambda world: run(world, "parts", resume=folder / "parts"))
    for one, other in zip(whole, resumed):
        np.testing.assert_equal(other, one)
