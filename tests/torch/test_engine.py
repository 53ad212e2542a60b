"""One table of trainings: on torch, their figures, predictions and parameters are MXNet's, in float64.

What makes a float64 net train otherwise belongs here: losses, trainers, loaders, frozen parameters. What
handlers change is in `test_handlers.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import Freeze, LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.balance import FAMO, MGDA, UPGrad
from multifit.gluon.compat import mx
from multifit.losses import SegmentationCELoss
from multifit.sampling import Proportional, Ratios, RoundRobin, Together
from tests.api import test_bound_losses as bound
from tests.common import language
from tests.common.data import in_batches
from tests.common.nets import TWO_HEADS, Heads, hybridized, normed_heads, sequential
from tests.common.specs import CE, L2, two_head_spec
from tests.numerics import test_casts as casts
from tests.numerics import test_ssd_loss as ssd
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import ARRAYS, BATCHES, Run, assert_is_mxnets, handled, net_of

nn = mx.gluon.nn
RANDOM = np.random.RandomState(1)

# ---- Nets

NORMED = partial(normed_heads, 0.0)


def data_norm() -> Any:
    """Statistics of the data, which nothing learns."""
    norm = nn.BatchNorm(scale=False, center=False)
    return Heads(body=sequential(norm, nn.Dense(8, activation="relu")), **TWO_HEADS)


def frozen_by_request() -> Any:
    net = NORMED()
    net.body.collect_params().setattr("grad_req", "null")
    return net


def with_shared_layers() -> Any:
    first = nn.Dense(6, in_units=6, activation="tanh")
    return Heads(body=sequential(first, nn.Dense(6, in_units=6, params=first.params)), **TWO_HEADS)


def with_spare_layer() -> Any:
    net = net_of("float64")  # MXNet infers no shapes of a net with a layer that is never called
    net.spare = nn.Dense(2, in_units=3)
    net.spare.initialize(mx.init.Xavier())
    return net


# ---- Losses and specs


class Scaled(mx.gluon.HybridBlock):
    """A loss that learns a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = self.params.get("log_scale", shape=(1,), init="zeros", dtype="float64")
        self.hybridize()

    def hybrid_forward(self, F: Any, size: Any, label: Any, log_scale: Any) -> Any:
        return F.broadcast_add(F.broadcast_mul(F.square(size - label), F.exp(-log_scale)), log_scale)


def parts(F: Any, size: Any, label: Any) -> Any:
    """Return a mean, which is a number, and squares."""
    return F.mean(F.abs(size - label)), F.square(size - label)


def spec(**losses: Any) -> Callable[[], TaskSpec]:
    return lambda: two_head_spec(losses={"digit": CE, "size": L2, **losses})


def scaled() -> TaskSpec:
    return spec(size=LossSpec(Scaled(), "size", "size", weight=0.7))()


def with_forward() -> TaskSpec:
    """A forward function, and another one for evaluations, which cannot be traced."""

    def forward(net: Any, slots: Any) -> Any:
        digit, size = net(slots["image"] * 2)
        return digit - net(slots["image"])[0], size

    def evaluating(net: Any, slots: Any) -> Any:
        return forward(net, {"image": slots["image"] if slots["image"].asnumpy().any() else None})

    return two_head_spec(forward=forward, evaluate=two_head_spec(forward=evaluating))


def of_pixels() -> TaskSpec:
    """A segmentation whose single pixels, or samples, may be missing, and with the weights of others."""
    losses = {
        "a": LossSpec(SegmentationCELoss(ignore_label=2), "scores", "some"),
        "b": LossSpec(SegmentationCELoss(ignore_label=2), "scores", "some", sample_weight="weight"),
    }
    labels = [LabelSpec("some", missing=-9), "weight"]
    metrics = {"accuracy": MetricSpec(mx.metric.Accuracy(axis=1), "scores", "some")}
    return TaskSpec(inputs=["x"], outputs=["scores"], labels=labels, losses=losses, metrics=metrics)


def pixels() -> Any:
    made = []
    for size in (6, 6, 5):
        label = RANDOM.randint(0, 3, (size, 4, 4)).astype("float64")
        label[RANDOM.rand(size, 4, 4) < 0.3] = label[0] = -9
        made.append((RANDOM.randn(size, 2, 4, 4), label, RANDOM.rand(size, 4, 4)))
    return made


def distance(F: Any, output: Any, label: Any) -> Any:
    """Return a value for each value of the label."""
    return F.abs(output - label)


def answers() -> TaskSpec:
    """Labels of three numbers, of which some are missing, and one-hot labels."""
    numbers, lines = LabelSpec("numbers", missing="nan"), hybridized(nn.HybridLambda(distance))
    one_hot = LossSpec(mx.gluon.loss.SoftmaxCELoss(sparse_label=False), "numbers", "one_hot")
    return TaskSpec(
        inputs=["image"], outputs=["numbers", "size"], labels=[numbers, "one_hot"],
        losses={
            "l2": LossSpec(L2, "numbers", "numbers"), "own": LossSpec(lines, "numbers", "numbers"),
            "class": one_hot,
        },
        metrics={
            "mae": MetricSpec(mx.metric.MAE(), "numbers", "numbers"),
            "accuracy": MetricSpec(mx.metric.Accuracy(), "numbers", "one_hot"),
        },
        unused=["size"],
    )  # fmt: skip


def answered() -> Any:
    numbers = np.random.RandomState(1).normal(size=(40, 3))
    for sample in range(1, 40, 2):
        numbers[sample, sample % 3] = np.nan
    numbers[4] = np.nan
    return in_batches([ARRAYS["image"], numbers, np.eye(3)[ARRAYS["digit"].astype(int)]])


def missing() -> TaskSpec:
    return two_head_spec(labels=[LabelSpec("digit", missing=2), LabelSpec("size", missing="nan")])


def far(labels: np.ndarray, outputs: np.ndarray) -> float:
    return float(np.abs(labels - outputs).max())


def normalized() -> TaskSpec:
    """A normalizer, and a metric on the host."""
    by = LossSpec(CE, normalize_by=lambda slots: slots["digit"] + 1)
    metrics = {"far": MetricSpec(far, "size", "size", mode="min")}
    return two_head_spec(losses={"digit": by, "size": L2}, metrics=metrics)


def unbound() -> TaskSpec:
    """A loss that reaches all trainers, beside those that are bound to one."""
    penalty = hybridized(nn.HybridLambda(lambda F, score: 0.1 * score**2))
    return bound.make_spec(penalty=LossSpec(penalty, "made"))


def without_weight() -> TaskSpec:
    return bound.make_spec(fool=replace(bound.make_spec().losses["fool"], weight=0.0))


def next_words() -> TaskSpec:
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss(batch_axis=1)
    small = LossSpec(mx.gluon.loss.L2Loss(batch_axis=1), "hidden", "hidden", weight=0.3)
    losses = {"next": LossSpec(cross_entropy, "logits", "next"), "small": small}
    return language.make_spec(losses=losses)


def moved(label: Any, pred: Any) -> float:
    """Return by how much the carried state has changed in a batch, computed on the host."""
    return float(np.abs(pred - label).mean())


def carried_metric() -> TaskSpec:
    metric = mx.metric.CustomMetric(moved, allow_extra_outputs=True)
    return language.make_spec(metrics={"moved": MetricSpec(metric, "hidden", "hidden")})


# ---- Trainers, and loaders


def scheduled(optimizer: str, rate: float, **options: Any) -> TrainerSpec:
    schedule = mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=rate)
    return TrainerSpec(".*", optimizer, options, lr_scheduler=schedule)


MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
DECAYED = TrainerSpec(".*", "adam", {"learning_rate": 0.02, "wd": 0.01})
SEVERAL = {
    "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.01}, clip_norm=0.2, every=2),
    "heads": TrainerSpec("digit.*|size.*", "nag", {"learning_rate": 0.01}),
}
OWN_OPTIMIZERS = {
    "body": replace(scheduled("adamw", 0.02), params="body.*", clip_norm=0.2),
    "digit": TrainerSpec("digit.*", "radam", {"lr": 0.02, "weight_decay": 0.1}, every=2, accumulate=True),
    "size": TrainerSpec("size.*", "lion", {"lr": 0.002, "weight_decay": 0.1}),
}
IN_OPTIONS = {"lr_scheduler": mx.lr_scheduler.MultiFactorScheduler([2, 9], 0.1), "learning_rate": 0.05}
SPARE = {"called": TrainerSpec("(?!spare).*", "adam"), "spare": TrainerSpec("spare.*", "adam")}
TWO = {"body": TrainerSpec("body.*", "sgd"), "heads": TrainerSpec("(digit|size).*", "adam")}
LOADERS = {
    "digit": in_batches([ARRAYS["image"][:24], ARRAYS["digit"][:24]]),
    "size": in_batches([ARRAYS["image"][24:], ARRAYS["size"][24:]]),
}
PAIRS = [tuple(RANDOM.randn(n, width) for width in (3, 4)) for n in (6, 6, 5, 1)]


def updated(optimizer: str, **options: Any) -> Callable[[Any], Any]:
    """Return a function that makes a `gluon.Trainer`, which has updated the net three times."""

    def make(net: Any) -> Any:
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, options, update_on_kvstore=False)
        for image, *_ in BATCHES[:3]:
            with mx.autograd.record():
                loss = sum((output**2).mean() for output in net(mx.nd.array(image, dtype="float64")))
            loss.backward()
            trainer.step(1)
        return trainer

    return make


def counted(net: Any) -> TrainerSpec:
    """Return an optimizer that was used before."""
    optimizer = mx.optimizer.Adam(learning_rate=0.02)
    optimizer._update_count(list(range(6)))
    return TrainerSpec(net, optimizer)


def by_blocks(net: Any) -> dict[str, TrainerSpec]:
    heads = net.collect_params("digit.*|size.*")
    return {"body": TrainerSpec(net.body, "adam"), "heads": TrainerSpec(heads, "sgd")}


def with_multipliers() -> Any:
    net = net_of("float64")
    net.body.weight.lr_mult, net.body.bias.wd_mult, net.digit.weight.wd_mult = 0.5, 0.0, 2.0
    return net


def adversaries(**options: Any) -> dict[str, TrainerSpec]:
    return {part: TrainerSpec(f"{part}.*", "adam", {"wd": 0.01}, **options) for part in bound.PARTS}


class InPlace:
    """A loader that yields the same arrays again and again, with other values."""

    def __init__(self) -> None:
        self._arrays = [mx.nd.zeros(array.shape, dtype="float64") for array in language.BATCHES[0]]

    def __iter__(self) -> Iterator[Any]:
        for batch in language.BATCHES:
            for array, new in zip(self._arrays, batch):
                array[:] = new
            yield tuple(self._arrays)


class Freezes:
    """Freezes the parameters that match a pattern, and unfreezes all others, when some steps begin."""

    def __init__(self, *patterns: tuple[int, str]) -> None:
        self.patterns = dict(patterns)

    def batch_begin(self, estimator: Any) -> None:
        pattern = self.patterns.get(estimator.state.step)
        if pattern is not None:
            estimator.unfreeze(".*")
            if pattern:
                estimator.freeze(pattern)


# ---- The table

BODY = "body.*"
BY_STEPS = (0, BODY), (4, ""), (6, r"digit.*|body\.0\..*"), (9, BODY), (13, "")
NO_DROPOUT = Run(NORMED, trainers=DECAYED)
WORDS = Run(
    lambda: language.make_net(dtype="float64"), language.make_spec, replace(DECAYED, clip_norm=0.5),
    language.BATCHES, fit={"batch_axis": 1},
)  # fmt: skip
BOUND = Run(bound.make_net, bound.make_spec, adversaries(), PAIRS)
TURNS = Run(NORMED, trainers=TrainerSpec(".*", "sgd", MOMENTUM), data=LOADERS, inputs=ARRAYS["image"])
MULTIBOX = Run(ssd.tiny_ssd, ssd.multibox, data=ssd.scenes([8, 8, 8, 8, 5], True))


def frozen(*handlers: Any, **fields: Any) -> Run:
    return handled(*handlers, of=NO_DROPOUT, **fields)


def turns(sampling: Any, spec: Any = two_head_spec, **fields: Any) -> Run:
    return replace(TURNS, spec=spec, fit={"sampling": sampling}, **fields)


def cast(net: Callable[[], Any], loss: Any, *inputs: np.ndarray) -> Run:
    """Return a run in float32 on whole numbers."""
    names = ["x", "w", "s"][: len(inputs)]
    made = TaskSpec(outputs="y", labels=["t"], losses={"l": LossSpec(loss, "y", "t")}, inputs=names)
    data = in_batches([*inputs, casts.numbers(21, 1, top=2)])
    return Run(net, lambda: made, TrainerSpec(".*", "sgd", {"learning_rate": 0.01}), data, dtype="float32")


BCE = mx.gluon.loss.SigmoidBCELoss()
RUNS = {
    "a net": Run(trainers=DECAYED),
    "running statistics": NO_DROPOUT,
    "clip_norm": Run(trainers=TrainerSpec(".*", "sgd", {"momentum": 0.9}, clip_norm=0.1)),
    "a schedule": Run(NORMED, trainers=scheduled("nag", 0.1, momentum=0.9)),
    "a schedule in the options": Run(trainers=TrainerSpec(".*", "adam", IN_OPTIONS)),
    "several trainers": Run(trainers=SEVERAL),
    "trainers of blocks and parameters": Run(trainers=by_blocks),
    "the default trainer": Run(trainers=None),
    "multipliers of rates and decays": Run(with_multipliers, trainers=TrainerSpec(".*", "sgd", MOMENTUM)),
    "a gluon.Trainer that has updated": Run(trainers=updated("adam", learning_rate=0.02)),
    "a gluon.Trainer with momentum": Run(trainers=updated("sgd", momentum=0.9)),
    "an optimizer that has counted": Run(trainers=counted),
    "own optimizers": Run(trainers=OWN_OPTIMIZERS),
    "gradients that add up": Run(options={"accumulate": 2}),
    "a forward function": Run(spec=with_forward),
    "a net in float32": replace(NO_DROPOUT, dtype="float32"),
    "one task": Run(spec=lambda: two_head_spec().only("digit"), trainers=SEVERAL),
    "missing pixels": Run(lambda: nn.Conv2D(3, 3, padding=1), of_pixels, data=pixels()),
    "missing values, one-hot labels": Run(spec=answers, data=answered()),
    "a layer that is never called": Run(with_spare_layer, trainers=SPARE),
    "a layer that is called twice": Run(with_shared_layers),
    "a weight that is a function": Run(spec=spec(digit=LossSpec(CE, weight=lambda s: 1 / (1 + s.step)))),
    "a normalizer of 0": Run(spec=spec(digit=LossSpec(CE, normalize_by=lambda slots: 0.0 * slots["digit"]))),
    "a loss of several parts, and of numbers": Run(
        spec=lambda: spec(size=LossSpec(nn.HybridLambda(parts), returns=["mean", "square"]))()
    ),
    "a loss with parameters": Run(spec=scaled),
    "SSD": MULTIBOX,
    "SSD with all options": replace(MULTIBOX, spec=partial(ssd.multibox, **ssd.MINING)),
    "whole numbers of images": cast(casts.convolution, BCE, casts.numbers(21, 3, 8, 8).astype("uint8")),
    "words and features": cast(
        casts.Words, BCE, casts.numbers(21, 4, top=9), casts.numbers(21, 6), casts.numbers(21, 1)
    ),
    "frozen by steps": frozen(lambda: Freezes(*BY_STEPS)),
    "frozen while gradients add up": frozen(
        lambda: Freezes(*BY_STEPS), trainers=TrainerSpec(".*", "adam", every=3, accumulate=True)
    ),
    "frozen by name": frozen(options={"frozen": [BODY]}),
    "frozen by request": frozen(net=frozen_by_request),
    "frozen statistics": frozen(options={"frozen": [".*running.*"]}),
    "statistics of the data": frozen(net=data_norm),
    "statistics of the data, later": frozen(lambda: Freeze(BODY, until=2), net=data_norm),
    "frozen in balance": frozen(
        lambda: Freezes((4, r"body\.0\.bias"), (9, "")), options={"balance": MGDA()}
    ),
    "frozen in balance of parameters": frozen(
        lambda: Freezes((4, r"body\.1.*"), (9, "")), options={"balance": MGDA(on="parameters")}
    ),
    "frozen with a bound loss": frozen(
        lambda: Freezes((3, BODY), (7, ""), (11, "(digit|size).*")),
        trainers=TWO, spec=spec(size=LossSpec(L2, "size", "size", trainers="heads")),
    ),
    "frozen for epochs": frozen(lambda: Freeze(BODY, until=2)),
    "frozen for batches": frozen(lambda: Freeze(BODY, until=6, unit="batch"), options={"accumulate": 2}),
    "bound losses": BOUND,
    "a loss of all trainers": replace(BOUND, spec=unbound),
    "a bound loss with a weight of 0": replace(
        BOUND, spec=without_weight, trainers=adversaries(clip_norm=0.05)
    ),
    "bound losses with rhythms": replace(BOUND, trainers=adversaries(every=2, clip_norm=0.1)),
    "carried state": WORDS,
    "carried state, losses are computed again": replace(WORDS, spec=next_words, options={"balance": FAMO()}),
    "carried state, gradients of tasks": replace(
        WORDS, spec=next_words, options={"balance": UPGrad(on="parameters")}
    ),
    "carried state, a metric on the host": replace(WORDS, spec=carried_metric),
    "carried state in arrays that change": replace(
        WORDS,
        net=lambda: language.make_net(dtype="float64", kind=language.Keeps),
        spec=lambda: language.make_spec(state=language.KEPT), data=InPlace(), inputs=language.BATCHES,
    ),
    "round robin": turns(RoundRobin()),
    "proportional": turns(Proportional(temperature=2)),
    "ratios, several trainers": turns(Ratios(digit=2, size=1), trainers=SEVERAL),
    "missing labels": turns(RoundRobin(), missing),
    "normalizers, and a metric on the host": turns(RoundRobin(), normalized),
    "together": turns(Together(), missing),
    "sets for validation": Run(spec=normalized, val_data={"few": BATCHES[:1], "many": BATCHES}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_training_is_that_of_mxnet(name: str, tmp_path: Path) -> None:
    assert_is_mxnets(RUNS[name], tmp_path)


def test_batches_are_normalised_as_by_mxnet(tmp_path: Path) -> None:
    """Even by a norm that runs twice, whose running statistics MXNet updates in the other order."""
    run = replace(BOUND, net=lambda: bound.make_net(nn.BatchNorm(in_channels=8)))

    def trained(engine: str) -> Any:
        history, _, _, values = run.results(engine, tmp_path)
        learned = {name: value for name, value in values.items() if "running" not in name}
        return {name: value for name, value in history.items() if name.startswith("train_")}, learned

    assert_engines_agree(trained)


def test_between_fits_it_freezes_what_it_does_with_mxnet() -> None:
    def fit(engine: str) -> Any:
        estimator = NO_DROPOUT.estimator(engine)
        for freeze in (estimator.unfreeze, estimator.freeze, estimator.unfreeze):
            freeze(BODY)
            before = estimator.values()
            estimator.fit(BATCHES, epochs=1, event_handlers=[])
            moved = {name for name, value in estimator.values().items() if (value != before.get(name)).any()}
            assert {"digit.bias", "size.bias"} <= moved
            assert any(name.startswith("body") for name in moved) == (freeze == estimator.unfreeze)
        return [estimator.values()]

    assert_engines_agree(fit)
