"""Small nets, specs and data that the tests of PyTorch nets share, in float64."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from multifit import LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec

SGD = {"lr": 0.1, "momentum": 0.9}
BY_SGD = TrainerSpec(".*", "sgd", SGD)


class Heads(nn.Module):
    """A body and two heads: scores of three classes, and a number."""

    def __init__(self, body: nn.Module | None = None, width: int = 8) -> None:
        super().__init__()
        self.body = body or nn.Sequential(nn.Linear(6, width), nn.Tanh())
        self.kind, self.size = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.kind(features), self.size(features)


class Recurrent(nn.Module):
    """An LSTM over rows of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x.reshape(len(x), 3, 2))[0][:, -1]


class Residual(nn.Module):
    """A layer that is added to what goes in, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(6, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = x + torch.tanh(self.layer(x))
        return x


class Given(nn.Module):
    """Returns its inputs: columns of the data are the outputs, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, *inputs: Tensor) -> Any:
        return inputs


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True))


BODIES: dict[str, Callable[[], nn.Module | None]] = {
    "dense": lambda: None,
    "batch normalisation": normalised,
    "residual": Residual,
    "LSTM": Recurrent,
    "lazy": lambda: nn.Sequential(nn.LazyLinear(8), nn.Tanh()),
}


def heads(body: str = "dense", seed: int = 0) -> Heads:
    """Return a net in float64, the same one for the same seed."""
    torch.manual_seed(seed)
    return Heads(BODIES[body]()).double()


def net_of(*layers: nn.Module) -> nn.Sequential:
    """Return a net of these layers in float64, with the same values every time."""
    net = nn.Sequential(*layers).double()
    torch.manual_seed(3)
    for layer in net:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return net


def spec_of_heads(forward: Any = None, **losses: Any) -> TaskSpec:
    """Return a spec for :class:`Heads`, with a cross entropy and half of a squared error by default."""
    declared: dict[str, Any] = {"kind": nn.CrossEntropyLoss(), "size": LossSpec(nn.MSELoss(), weight=0.5)}
    return TaskSpec(
        inputs=["x"],
        outputs=["kind", "size"],
        labels=["kind", "size"],
        losses={**declared, **losses},
        forward=forward,
        metrics={
            "accuracy": MetricSpec("accuracy", outputs="kind", labels="kind"),
            "error": MetricSpec("mae", outputs="size", labels="size"),
        },
    )


MISSABLE = TaskSpec(
    inputs=["x"], outputs=["kind", "size"], labels=["kind", LabelSpec("size", missing="nan")],
    losses={"kind": nn.CrossEntropyLoss(ignore_index=2), "size": LossSpec(nn.MSELoss(), weight=0.5)},
)  # fmt: skip


def columns(samples: int = 20, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs (N, 6), classes (N,) and numbers (N, 1)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (samples,), generator=generator), x[:, :1] * x[:, 1:2]


def loader(batch_size: int = 6, samples: int = 20, **options: Any) -> DataLoader[Any]:
    """Return a loader, whose last batch is smaller."""
    return DataLoader(TensorDataset(*columns(samples)), batch_size, **options)


def batches(*sizes: int) -> list[tuple[Tensor, ...]]:
    """Return batches of these sizes."""
    return list(zip(*(column.split(sizes) for column in columns(sum(sizes)))))


def standard(outputs: Any, kind: Tensor, size: Tensor) -> Tensor:
    """Return the objective of `spec_of_heads`."""
    return functional.cross_entropy(outputs[0], kind) + 0.5 * functional.mse_loss(outputs[1], size)


def by_hand(
    net: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    data: Iterable[Any],
    objective: Callable[[Any, Tensor, Tensor], Tensor] = standard,
    epochs: int = 2,
    change: Callable[[nn.Module], object] = lambda net: None,
    schedules: Sequence[Any] = (),
) -> None:
    """Train as one would without multifit, by batches of x, class and number; `change` gradients."""
    net.train()
    for _ in range(epochs):
        for x, kind, size in data:
            for optimizer in optimizers:
                optimizer.zero_grad()
            objective(net(x), kind, size).backward()
            change(net)
            for each in (*optimizers, *schedules):
                each.step()


def assert_equal_parameters(net: nn.Module, other: nn.Module, tolerance: float = 1e-10) -> None:
    """Compare parameters and buffers by name."""
    ours, theirs = net.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=tolerance, atol=tolerance, msg=name)
