"""Handlers that change batches, losses and gradients, or read them, beside loops by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multifit import (
    CheckpointHandler,
    CutMix,
    Every,
    GradientNoise,
    Interpretation,
    LabelSmoothing,
    LabelSpec,
    LossSpec,
    MetricSpec,
    MixUp,
    MultiEstimator,
    SkipNonFinite,
    SpecError,
    TaskSpec,
    TerminateOnNaN,
    TrainerSpec,
    WeightAveraging,
)
from tests.common.ranks import run_ranks

from .nets import assert_equal_parameters, batches, net_of

SGD = TrainerSpec(".*", "sgd", {"lr": 0.1})
DATA: list[tuple[Tensor, Tensor]] = [(x[:, :4], kind) for x, kind, _ in batches(6, 6, 6, 6)]


def dense() -> nn.Module:
    return net_of(nn.Linear(4, 3))


def normed() -> nn.Module:
    return net_of(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def spec_of(loss: Any) -> TaskSpec:
    return TaskSpec(outputs=["y"], labels=["y"], losses={"y": loss})


def fit(handlers: Any, net: Any = None, spec: Any = None, data: Any = DATA, **options: Any) -> Any:
    """Return an estimator after a fit, of one epoch by default."""
    estimator = MultiEstimator(net or dense(), spec or nn.CrossEntropyLoss(), SGD)
    estimator.fit(data, event_handlers=handlers, **{"epochs": 1, **options})
    return estimator


def entropy(net: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def by_hand(loss: Any, data: Any = DATA, net: Any = None, change: Any = lambda step, net: None) -> Any:
    """Return a net after a loop of gradient descent."""
    net = net or dense()
    for step, batch in enumerate(data):
        net.zero_grad()
        loss(net, batch).backward()
        change(step, net)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
    return net


# ---- gradients


class Poison:
    """Puts a value into a gradient of some batches."""

    def __init__(self, value: float, *steps: int, name: str = "0.weight") -> None:
        self.value, self.steps, self.name = value, steps, name

    def change_gradients(self, estimator: MultiEstimator) -> None:
        if estimator.state.step in self.steps:
            estimator.gradients()["trainer"][self.name][0][0] = self.value


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_gradients_that_are_not_finite_are_skipped(value: float, caplog: Any) -> None:
    def change(step: int, net: Any) -> None:
        if step == 1:
            net.zero_grad(set_to_none=False)
        elif step == 3:
            net[0].weight.grad[0] = 1e15

    ours = fit([SkipNonFinite(), Poison(value, 1), Poison(1e15, 3)])
    assert_equal_parameters(ours.net, by_hand(entropy, change=change))
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    start = '1 of 4 updates of the trainer "trainer" in epoch 1 had gradients that were not finite'
    assert line.startswith(start)


def test_sparse_gradients_are_skipped_but_get_no_noise() -> None:
    net = lambda: net_of(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3))  # noqa: E731
    data = [(x[:, 0].abs().long() % 5, y) for x, y in DATA]
    skipped = fit([SkipNonFinite(), Poison(np.nan, 0, 1, 2, 3, name="1.bias")], net(), data=data)
    assert_equal_parameters(skipped.net, net())
    with pytest.raises(ValueError, match='gradient of "0.weight" is sparse; .* in PyTorch with sparse=False'):
        fit([GradientNoise()], net(), data=data)


def test_noise_is_drawn_by_torch() -> None:
    def ones(mean: float, sigma: float, size: Any, **where: Any) -> Tensor:
        return torch.full(size, sigma, **where)

    def change(step: int, net: Any) -> None:
        for parameter in net.parameters():
            parameter.grad += (0.5 / (1 + step) ** 0.7) ** 0.5

    one, other = (fit([GradientNoise(eta=0.5, gamma=0.7)], seed=5).net for _ in range(2))
    assert_equal_parameters(one, other)
    assert not torch.equal(one[0].weight, fit([], seed=5).net[0].weight)
    assert_equal_parameters(fit([GradientNoise(0.5, 0.7, random=ones)]).net, by_hand(entropy, change=change))


def test_noise_is_the_same_on_all_ranks() -> None:
    def trained(world: Any) -> nn.Module:
        torch.manual_seed(world.rank)  # each rank draws its own numbers
        net = dense()
        estimator = MultiEstimator(net, nn.CrossEntropyLoss(), SGD, world=world)
        estimator.fit(DATA, epochs=1, event_handlers=[GradientNoise(eta=0.5)])
        return net

    one, other = run_ranks(2, trained)
    assert_equal_parameters(one, other)
    assert not torch.equal(one[0].weight, fit([]).net[0].weight)


class Infinite(torch.autograd.Function):
    """Returns its input, with a gradient that is infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        return grad[0] * np.inf


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda values: values * np.nan, "y is NaN (epoch 1, batch 3)"),
        (Infinite.apply, "the gradient of 0.bias is NaN"),
    ],
    ids=["loss", "gradient"],
)
def test_a_fit_ends_before_an_update_that_is_not_finite(spoil: Any, message: str) -> None:
    """And the running statistics are those from before the batch, too."""

    def loss(output: Tensor, label: Tensor) -> Tensor:
        values = F.cross_entropy(output, label, reduction="none")
        return spoil(values) if label is DATA[2][1] else values

    ours = fit([TerminateOnNaN()], normed(), spec_of(loss))
    assert_equal_parameters(ours.net, fit([], normed(), spec_of(loss), data=DATA[:2]).net)
    assert message in str(ours.state.stop_reason)


# ---- averages


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averages(kind: str) -> None:
    """Those of running statistics and of the parameters, which evaluations use."""

    class Sees:
        def batch_end(self, estimator: MultiEstimator) -> None:
            seen.append({name: value.clone() for name, value in estimator.net.state_dict().items()})

    seen: list[dict[str, Tensor]] = []
    ours = fit([WeightAveraging(kind, decay=0.8), Sees()], normed(), epochs=2, val_data=DATA)
    trained = [seen[3], seen[7]] if kind == "swa" else seen
    expected = dict(trained[0])
    for count, values in enumerate(trained[1:], 2):
        rate = 0.2 if kind == "ema" else 1 / count
        for name, value in values.items():
            moves = value.is_floating_point()
            expected[name] = expected[name] + rate * (value - expected[name]) if moves else value
    if kind == "swa":
        of_training = ("running_mean", "running_var", "num_batches_tracked")
        expected.update((name, value) for name, value in seen[-1].items() if name.endswith(of_training))
    made = ours.net.state_dict()
    assert all(torch.allclose(made[name], value, rtol=1e-12) for name, value in expected.items())
    assert ours.evaluate(DATA)["loss"] == pytest.approx(ours.history["val_loss"][-1], rel=1e-12)
    plain = fit([], normed(), epochs=2)
    assert all(torch.equal(seen[-1][name], value) for name, value in plain.net.state_dict().items())


def test_averages_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    def handlers() -> list[Any]:
        return [WeightAveraging(decay=0.8), SkipNonFinite(), CheckpointHandler(tmp_path, Every(1, "batch"))]

    whole = fit([WeightAveraging(decay=0.8), SkipNonFinite()], epochs=2)
    fit(handlers(), epochs=1)
    assert_equal_parameters(fit(handlers(), epochs=2, resume=tmp_path).net, whole.net, tolerance=0)


# ---- losses


def two_losses(**options: Any) -> TaskSpec:
    squares = LossSpec(nn.MSELoss(), outputs="y", labels="z", weight=0.5)
    losses = {"y": nn.CrossEntropyLoss(**options), "z": squares}
    return TaskSpec(outputs=["y"], labels=["y", "z"], losses=losses)


WITH_TARGET = [(x, y, x[:, :3] * 2) for x, y in DATA]


def mixing(seed: int = 5) -> Any:
    """Return a function that draws how much of each sample is kept, and the order of the others."""
    random = np.random.RandomState(seed)
    return lambda x: (random.beta(0.4, 0.4), torch.from_numpy(random.permutation(len(x))))


@pytest.mark.parametrize("label", [None, "y"])
def test_mix_up(label: str | None) -> None:
    draw = mixing()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        (x, y, z), (kept, order) = batch, draw(batch[0])
        output, other = net(kept * x + (1 - kept) * x[order]), z if label else z[order]
        of_y = kept * F.cross_entropy(output, y) + (1 - kept) * F.cross_entropy(output, y[order])
        return of_y + 0.5 * (kept * F.mse_loss(output, z) + (1 - kept) * F.mse_loss(output, other))

    ours = fit([MixUp(label=label, random=5)], spec=two_losses(), data=WITH_TARGET)
    assert_equal_parameters(ours.net, by_hand(loss, WITH_TARGET))


def test_mix_up_with_ignored_labels_and_weights_of_classes() -> None:
    """The permuted losses have the divisors of the batch."""
    draw, data = mixing(), [(x, y.clone()) for x, y in DATA]
    data[0][1][:2] = data[2][1][3] = -100
    weight = torch.tensor([1.0, 2.0, 3.0]).double()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        (x, y), (kept, order) = batch, draw(batch[0])
        output = net(kept * x + (1 - kept) * x[order])
        one, other = (F.cross_entropy(output, each, weight) for each in (y, y[order]))
        return kept * one + (1 - kept) * other

    ours = fit([MixUp(random=5)], spec=spec_of(nn.CrossEntropyLoss(weight)), data=data)
    assert_equal_parameters(ours.net, by_hand(loss, data))


def test_mix_up_of_integers_is_refused() -> None:
    net = net_of(nn.Embedding(2, 3), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(SpecError, match='MixUp: the slot "data" is int64, and only real numbers can'):
        fit([MixUp()], net, data=[((x > 0).long(), y) for x, y in DATA])


def test_cut_mix() -> None:
    random, net = np.random.RandomState(5), lambda: net_of(nn.Flatten(), nn.Linear(96, 3))
    data = [(torch.randn(6, 2, 8, 6).double(), y) for _, y in DATA]

    def loss(net: nn.Module, batch: Any) -> Tensor:
        (x, y), half = batch, np.sqrt(1 - random.beta(1.0, 1.0)) / 2
        centre, order, spans = (
            random.uniform(size=2),
            torch.from_numpy(random.permutation(len(x := batch[0]))),
            [],
        )
        for at, length in zip(centre, (8, 6)):
            middle, reach = int(at * length), int(half * length)
            spans.append((max(middle - reach, 0), min(middle + reach, length)))
        (top, bottom), (left, right) = spans
        mixed = x.clone()
        mixed[:, :, top:bottom, left:right] = x[order][:, :, top:bottom, left:right]
        kept, output = 1 - (bottom - top) * (right - left) / 48, net(mixed)
        return kept * F.cross_entropy(output, y) + (1 - kept) * F.cross_entropy(output, y[order])

    assert_equal_parameters(fit([CutMix(random=5)], net(), data=data).net, by_hand(loss, data, net()))


@pytest.mark.parametrize("ignored", [-100, 1])
def test_label_smoothing_is_that_of_pytorch_and_of_some_losses_alone(ignored: int) -> None:
    def smoothed(net: nn.Module, batch: Any) -> Tensor:
        output, options = net(batch[0]), {"ignore_index": ignored, "label_smoothing": 0.2}
        return F.cross_entropy(output, batch[1], **options) + 0.5 * F.mse_loss(output, batch[2])

    spec = two_losses(ignore_index=ignored)
    ours = fit([LabelSmoothing(0.2)], spec=spec, data=WITH_TARGET)
    assert_equal_parameters(ours.net, by_hand(smoothed, WITH_TARGET))
    with pytest.raises(SpecError, match=r'losses."z". is MSELoss; valid .*, and PyTorch.s CrossEntropyLoss'):
        fit([LabelSmoothing(0.2, loss="z")], spec=spec, data=WITH_TARGET)


# ---- evaluations


class Heads(nn.Module):
    """Scores of three classes, a number, and a score of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, size) for size in (3, 1, 1)])

    def forward(self, x: Tensor) -> Any:
        return tuple(head(x) for head in self.heads)


KINDS = {"a": "accuracy", "b": "mae", "c": "binary_accuracy"}
DECLARED: dict[str, dict[str, Any]] = {
    "losses": {"a": nn.CrossEntropyLoss(ignore_index=7), "b": nn.L1Loss(), "c": nn.BCEWithLogitsLoss()},
    "metrics": {name: MetricSpec(name, outputs=key, labels=key) for key, name in KINDS.items()},
}


@pytest.mark.parametrize("declared", DECLARED)
def test_interpretation_counts_what_the_net_predicts(declared: str) -> None:
    data = [(x, y.clone(), x[:, :1], (x[:, 1:2] > 0).double()) for x, y in DATA]
    data[1][1][2] = 7  # no label
    labels, takers = [LabelSpec("a", ignore=7), "b", "c"], {declared: DECLARED[declared]}
    spec = TaskSpec(outputs=["a", "b", "c"], labels=labels, **takers)
    estimator = MultiEstimator(Heads().double(), spec)
    found, outputs = estimator.interpret(data), estimator.predict([batch[:1] for batch in data])
    _, a, b, c = (torch.cat(column).numpy() for column in zip(*data))
    expected = {"a": np.zeros((3, 3)), "c": np.zeros((2, 2))}
    for label, scores in zip(a, outputs["a"]):
        if label < 3:
            expected["a"][label, scores.argmax()] += 1
    for label, score in zip(c[:, 0].astype(int), outputs["c"][:, 0]):
        expected["c"][label, int(score > 0)] += 1
    np.testing.assert_equal(dict(found.confusion), expected)
    assert sorted(found.scatter["b"][:, 0]) == sorted(b[:, 0])


def test_outputs_that_cannot_be_compared() -> None:
    estimator = MultiEstimator(dense(), spec_of(lambda output, label: output.square().sum()))
    assert estimator.interpret(DATA) is None
    with pytest.raises(SpecError, match="no output has a loss or a metric by which it can be compared"):
        estimator.evaluate(DATA, event_handlers=[Interpretation()])
