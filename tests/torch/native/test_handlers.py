"""Handlers that change batches, losses and gradients, or read them, beside loops by hand."""

from dataclasses import replace
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
from multifit.balance import UPGrad
from multifit.distributed import World
from tests.common.ranks import run_ranks

SGD = TrainerSpec(".*", "sgd", {"lr": 0.1})


def net_of(*layers: nn.Module) -> nn.Module:
    """Return a net of these layers, by default of one, with the same values every time."""
    net = nn.Sequential(*(layers or [nn.Linear(4, 3)])).double()
    torch.manual_seed(3)
    for layer in net:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return net


def batches_of(count: int = 4, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 4, generator=random).double(), torch.randint(3, (size,), generator=random))
        for _ in range(count)
    ]


def fit(
    handlers: Any, net: Any = None, spec: Any = None, data: Any = None, epochs: int = 1, **options: Any
) -> Any:
    """Return an estimator after a fit."""
    estimator = MultiEstimator(net or net_of(), spec or nn.CrossEntropyLoss(), SGD)
    estimator.fit(data or batches_of(), event_handlers=handlers, epochs=epochs, **options)
    return estimator


def by_hand(net: nn.Module, loss: Any, data: Any, change: Any = lambda step, net: None) -> Any:
    """Return a net after a loop of gradient descent with ``loss(step, net, batch)``."""
    for step, batch in enumerate(data):
        net.zero_grad()
        loss(step, net, batch).backward()
        change(step, net)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
    return net


def entropy(step: int, net: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def assert_equal(one: nn.Module, other: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)


# ---- gradients


class Poison:
    """Puts a value into a gradient of some batches."""

    def __init__(self, value: float, *steps: int) -> None:
        self.value, self.steps = value, steps

    def change_gradients(self, estimator: MultiEstimator) -> None:
        if estimator.state.step in self.steps:
            estimator.gradients()["trainer"]["0.weight"][0][0] = self.value


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_gradients_that_are_not_finite_are_skipped(value: float, caplog: Any) -> None:
    ours = fit([SkipNonFinite(), Poison(value, 1), Poison(1e15, 3)])

    def each(step: int, net: Any) -> None:
        if step == 1:
            net.zero_grad(set_to_none=False)
        elif step == 3:
            net[0].weight.grad[0] = 1e15

    assert_equal(ours.net, by_hand(net_of(), entropy, batches_of(), each))
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    start = '1 of 4 updates of the trainer "trainer" in epoch 1 had gradients that were not finite'
    assert len(lines) == 1 and lines[0].startswith(start)


def test_sparse_gradients_are_skipped() -> None:
    def net() -> nn.Module:
        return net_of(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3))

    class Poisons:
        def change_gradients(self, estimator: MultiEstimator) -> None:
            estimator.gradients()["trainer"]["1.bias"][0][0] = np.nan

    data = [(batch[0][:, 0].abs().long() % 5, batch[1]) for batch in batches_of()]
    assert_equal(fit([SkipNonFinite(), Poisons()], net(), data=data).net, net())
    with pytest.raises(ValueError, match='gradient of "0.weight" is sparse; .* in PyTorch with sparse=False'):
        fit([GradientNoise()], net(), data=data)


def test_noise_is_drawn_by_torch() -> None:
    ours = fit([GradientNoise(eta=0.5, gamma=0.7)], seed=5)
    assert not torch.equal(ours.net[0].weight, fit([], seed=5).net[0].weight)
    assert_equal(ours.net, fit([GradientNoise(eta=0.5, gamma=0.7)], seed=5).net)

    def ones(mean: float, sigma: float, size: Any, **where: Any) -> Tensor:
        return torch.full(size, sigma, **where)

    def each(step: int, net: Any) -> None:
        for parameter in net.parameters():
            parameter.grad += (0.5 / (1 + step) ** 0.7) ** 0.5

    ours = fit([GradientNoise(0.5, 0.7, random=ones)])
    assert_equal(ours.net, by_hand(net_of(), entropy, batches_of(), each))


def test_noise_is_the_same_on_all_ranks() -> None:
    def trained(world: World) -> MultiEstimator:
        torch.manual_seed(world.rank)  # each rank draws its own numbers
        estimator = MultiEstimator(net_of(), nn.CrossEntropyLoss(), SGD, world=world)
        estimator.fit(batches_of(), epochs=1, event_handlers=[GradientNoise(eta=0.5)])
        return estimator

    one, other = run_ranks(2, trained)
    assert_equal(one.net, other.net)
    assert not torch.equal(one.net[0].weight, fit([]).net[0].weight)


@pytest.mark.parametrize(("given", "option"), [("balance", "balance="), ("losses", "trainers=")])
def test_another_number_of_objectives_is_refused(given: str, option: str) -> None:
    class Sums:
        def change_objective(self, estimator: MultiEstimator, objectives: list) -> list:
            return [sum(objectives)]

    losses = {name: LossSpec(F.cross_entropy, outputs="y", labels="y") for name in ("one", "two")}
    if given == "balance":
        options: dict[str, Any] = {"balance": UPGrad()}
    else:
        losses["one"] = replace(losses["one"], trainers="first")
        options = {
            "trainers": {"first": TrainerSpec(".*weight", "sgd"), "second": TrainerSpec(".*bias", "sgd")}
        }
    spec = TaskSpec(outputs=["y"], labels=["y"], losses=losses)
    with pytest.raises(
        SpecError, match=rf"{given}: a handler \(Sums\) adds to .* leave the handler or {option}"
    ):
        MultiEstimator(net_of(), spec, **options).fit(batches_of(), epochs=1, event_handlers=[Sums()])


class Infinite(torch.autograd.Function):
    """Returns its input, with a gradient that is infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        return grad[0] * np.inf


@pytest.mark.parametrize(
    ("kind", "message"),
    [("loss", "y is NaN (epoch 1, batch 3)"), ("gradient", "the gradient of 0.bias is NaN")],
)
def test_a_fit_ends_before_an_update_that_is_not_finite(kind: str, message: str) -> None:
    """And the running statistics are those from before the batch, too."""

    def net() -> nn.Module:
        return net_of(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    def loss(output: Tensor, label: Tensor) -> Tensor:
        seen.append(output)
        values = F.cross_entropy(output, label, reduction="none")
        if len(seen) < bad:
            return values
        return Infinite.apply(values) if kind == "gradient" else values * np.nan

    spec = TaskSpec(outputs=["y"], labels=["y"], losses={"y": loss})
    seen, bad = [], 10**9
    expected = fit([], net(), spec, data=batches_of()[:2])
    seen, bad = [], len(seen) + 1
    ours = fit([TerminateOnNaN()], net(), spec)
    assert_equal(ours.net, expected.net)
    assert message in str(ours.state.stop_reason)


# ---- averages


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averages(kind: str) -> None:
    """Those of running statistics and of the parameters, which evaluations use."""

    def net() -> nn.Module:
        return net_of(nn.Linear(4, 3), nn.BatchNorm1d(3))

    seen: list[dict[str, Tensor]] = []

    class Sees:
        def batch_end(self, estimator: MultiEstimator) -> None:
            seen.append({name: value.clone() for name, value in estimator.net.state_dict().items()})

    data, averaging = batches_of(), WeightAveraging(kind, decay=0.8)
    ours = fit([averaging, Sees()], net(), epochs=2, val_data=data)
    trained = [seen[3], seen[7]] if kind == "swa" else seen
    expected = dict(trained[0])
    for count, values in enumerate(trained[1:], 2):
        rate = 0.2 if kind == "ema" else 1 / count
        for name, value in values.items():
            if value.is_floating_point():
                expected[name] = expected[name] + rate * (value - expected[name])
            else:
                expected[name] = value
    if kind == "swa":
        of_training = ("running_mean", "running_var", "num_batches_tracked")
        expected.update((name, value) for name, value in seen[-1].items() if name.endswith(of_training))
    made = ours.net.state_dict()
    assert all(torch.allclose(made[name], value, rtol=1e-12) for name, value in expected.items())
    assert ours.evaluate(data)["loss"] == pytest.approx(ours.history["val_loss"][-1], rel=1e-12)
    plain = fit([], net(), epochs=2)
    assert all(torch.equal(seen[-1][name], value) for name, value in plain.net.state_dict().items())


def test_averages_go_on_from_a_checkpoint(tmp_path: Any) -> None:
    def handlers() -> list[Any]:
        return [WeightAveraging(decay=0.8), SkipNonFinite(), CheckpointHandler(tmp_path, Every(1, "batch"))]

    whole = fit([WeightAveraging(decay=0.8), SkipNonFinite()], epochs=2)
    fit(handlers(), epochs=1)
    assert_equal(fit(handlers(), epochs=2, resume=tmp_path).net, whole.net, tolerance=0)


# ---- losses


def two_outputs() -> TaskSpec:
    return TaskSpec(
        outputs=["y"], labels=["y", "z"],
        losses={"y": nn.CrossEntropyLoss(), "z": LossSpec(nn.MSELoss(), outputs="y", labels="z", weight=0.5)},
    )  # fmt: skip


def with_target(batch: Any) -> Any:
    return *batch, batch[0][:, :3] * 2


@pytest.mark.parametrize("label", [None, "y"])
def test_mix_up(label: str | None) -> None:
    random, data = np.random.RandomState(5), list(map(with_target, batches_of()))

    def loss(step: int, net: nn.Module, batch: Any) -> Tensor:
        (x, y, z), kept = batch, random.beta(0.4, 0.4)
        order = torch.from_numpy(random.permutation(len(x)))
        output = net(kept * x + (1 - kept) * x[order])
        other = z if label else z[order]
        of_y = kept * F.cross_entropy(output, y) + (1 - kept) * F.cross_entropy(output, y[order])
        return of_y + 0.5 * (kept * F.mse_loss(output, z) + (1 - kept) * F.mse_loss(output, other))

    ours = fit([MixUp(label=label, random=5)], spec=two_outputs(), data=data)
    assert_equal(ours.net, by_hand(net_of(), loss, data))


def test_mix_up_with_ignored_labels_and_weights_of_classes() -> None:
    """The permuted losses have the divisors of the batch."""
    random, data = np.random.RandomState(5), batches_of()
    data[0][1][:2] = -100
    data[2][1][3] = -100
    weight = torch.tensor([1.0, 2.0, 3.0]).double()

    def loss(step: int, net: nn.Module, batch: Any) -> Tensor:
        (x, y), kept = batch, random.beta(0.4, 0.4)
        order = torch.from_numpy(random.permutation(len(x)))
        output = net(kept * x + (1 - kept) * x[order])
        one, other = (F.cross_entropy(output, each, weight) for each in (y, y[order]))
        return kept * one + (1 - kept) * other

    spec = TaskSpec(outputs=["y"], labels=["y"], losses={"y": nn.CrossEntropyLoss(weight)})
    assert_equal(fit([MixUp(random=5)], spec=spec, data=data).net, by_hand(net_of(), loss, data))


def test_mix_up_of_integers_is_refused() -> None:
    data = [((x > 0).long(), y) for x, y in batches_of()]
    net = nn.Sequential(nn.Embedding(2, 3), nn.Flatten(), nn.Linear(12, 3)).double()
    with pytest.raises(SpecError, match='MixUp: the slot "data" is int64, and only real numbers can'):
        fit([MixUp()], net, data=data)


def test_cut_mix() -> None:
    random, shape = np.random.RandomState(5), (6, 2, 8, 6)
    data = [(torch.randn(shape).double(), y) for _, y in batches_of()]

    def net() -> nn.Module:
        return net_of(nn.Flatten(), nn.Linear(96, 3))

    def loss(step: int, net: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        half = np.sqrt(1 - random.beta(1.0, 1.0)) / 2
        centre = random.uniform(size=2)
        order = torch.from_numpy(random.permutation(len(x)))
        spans = []
        for at, length in zip(centre, (8, 6)):
            middle, reach = int(at * length), int(half * length)
            spans.append((max(middle - reach, 0), min(middle + reach, length)))
        (top, bottom), (left, right) = spans
        mixed = x.clone()
        mixed[:, :, top:bottom, left:right] = x[order][:, :, top:bottom, left:right]
        kept, output = 1 - (bottom - top) * (right - left) / 48, net(mixed)
        return kept * F.cross_entropy(output, y) + (1 - kept) * F.cross_entropy(output, y[order])

    assert_equal(fit([CutMix(random=5)], net(), data=data).net, by_hand(net(), loss, data))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(ignore_index=1)])
def test_label_smoothing_is_that_of_pytorch(loss: Any) -> None:
    def smoothed(step: int, net: nn.Module, batch: Any) -> Tensor:
        options = {"ignore_index": loss.ignore_index, "label_smoothing": 0.2}
        return F.cross_entropy(net(batch[0]), batch[1], **options)

    ours = fit([LabelSmoothing(0.2)], spec=TaskSpec(outputs=["y"], labels=["y"], losses={"y": loss}))
    assert_equal(ours.net, by_hand(net_of(), smoothed, batches_of()))


def test_some_losses_are_smoothed() -> None:
    data = list(map(with_target, batches_of()))

    def smoothed(step: int, net: nn.Module, batch: Any) -> Tensor:
        output = net(batch[0])
        return F.cross_entropy(output, batch[1], label_smoothing=0.2) + 0.5 * F.mse_loss(output, batch[2])

    assert_equal(
        fit([LabelSmoothing(0.2)], spec=two_outputs(), data=data).net, by_hand(net_of(), smoothed, data)
    )
    with pytest.raises(SpecError, match=r'losses."z". is MSELoss; valid .*, and PyTorch.s CrossEntropyLoss'):
        fit([LabelSmoothing(0.2, loss="z")], spec=two_outputs(), data=data)


# ---- evaluations


@pytest.mark.parametrize("declared", ["losses", "metrics"])
def test_interpretation_counts_what_the_net_predicts(declared: str) -> None:
    torch.manual_seed(0)
    data = [(x, y, x[:, :1], (x[:, 1:2] > 0).double()) for x, y in batches_of()]
    data[1][1][2] = 7  # no label

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(4, size) for size in (3, 1, 1)])

        def forward(self, x: Tensor) -> Any:
            return tuple(head(x) for head in self.heads)

    losses: dict[str, Any] = {
        "a": nn.CrossEntropyLoss(ignore_index=7), "b": nn.L1Loss(), "c": nn.BCEWithLogitsLoss(),
    }  # fmt: skip
    names = {"a": "accuracy", "b": "mae", "c": "binary_accuracy"}
    metrics = {name: MetricSpec(name, outputs=key, labels=key) for key, name in names.items()}
    if declared == "metrics":
        losses = {key: lambda *each, loss=loss: loss(*each) for key, loss in losses.items()}
    labels: list[Any] = [LabelSpec("a", ignore=7), "b", "c"]
    spec = TaskSpec(
        outputs=["a", "b", "c"],
        labels=labels,
        losses=losses,
        metrics=metrics if declared == "metrics" else {},
    )
    estimator = MultiEstimator(Heads().double(), spec)
    found = estimator.interpret(data)
    outputs = estimator.predict([batch[:1] for batch in data])
    x, y, b, c = (torch.cat(column).numpy() for column in zip(*data))
    expected = np.zeros((3, 3))
    for label, scores in zip(y, outputs["a"]):
        if label < 3:
            expected[label, scores.argmax()] += 1
    assert (found.confusion["a"] == expected).all()
    pairs = np.zeros((2, 2))
    for label, score in zip(c[:, 0].astype(int), outputs["c"][:, 0]):
        pairs[label, int(score > 0)] += 1
    assert (found.confusion["c"] == pairs).all()
    assert sorted(found.scatter["b"][:, 0]) == sorted(b[:, 0])


def test_outputs_that_cannot_be_compared() -> None:
    spec = TaskSpec(outputs=["y"], labels=["y"], losses={"y": lambda output, label: output.square().sum()})
    estimator = MultiEstimator(net_of(), spec)
    assert estimator.interpret(batches_of()) is None
    with pytest.raises(SpecError, match="no output has a loss or a metric by which it can be compared"):
        estimator.evaluate(batches_of(), event_handlers=[Interpretation()])
