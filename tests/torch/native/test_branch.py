"""Where tasks branch in autograd's graph: the gradients are those of one task after another."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from multifit.torch.branch import Branch
from multifit.utils.errors import SpecError

from .nets import Recurrent, Residual, normalised

Losses = Callable[[Any], Sequence[Tensor]]
Linear = nn.Linear


class Two(nn.Module):
    """A body and two heads on its features."""

    def __init__(self, *body: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Sequential(*body), Linear(width, 3), Linear(width, 1)

    def forward(self, x: Tensor) -> Any:
        features = self.body(x)
        return self.a(features), self.b(features)


class Branches(nn.Module):
    """A layer after another, and what ``branch(net, first, second)`` makes of both."""

    def __init__(self, branch: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = Linear(6, 8), Linear(8, 8)
        self.a, self.b, self.c = Linear(16, 2), Linear(8, 2), Linear(8, 1)
        self._branch = branch

    def forward(self, x: Tensor) -> Any:
        first = self.first(x).tanh()
        return self._branch(self, first, self.second(first).tanh())


class Pyramid(nn.Module):
    """Both heads read all levels of a body, each behind the next; the last one goes through a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)])
        self.norm, self.gru = nn.BatchNorm2d(4), nn.GRU(4, 4, batch_first=True)
        self.a, self.b = (nn.ModuleList([nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)]) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        x, levels = x.reshape(-1, 1, 8, 8), []
        for level in self.levels:
            x = self.norm(level(x)).relu_()
            levels.append(x)
        levels.append(self.gru(x.flatten(2).transpose(1, 2))[0].transpose(1, 2).unflatten(2, (2, 2)))
        return [
            torch.cat([h(x).flatten(1) for h, x in zip(heads, levels[1:])], 1) for heads in (self.a, self.b)
        ]


class Doubled(torch.autograd.Function):
    """A function of the user's own, whose backward pass gets no None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 2 * gradients[0]


def squares(outputs: Sequence[Tensor]) -> list[Tensor]:
    return [(output - number).pow(2).mean() for number, output in enumerate(outputs)]


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 12, dropout=0.3, batch_first=True), 2)


def hooked(net: Any, first: Tensor, second: Tensor) -> Any:
    """Turn gradients round where the tasks branch, as an adversary does."""
    second.register_hook(lambda gradient: -3 * gradient)
    return net.b(second), net.c(second)


def at_both(net: Any, first: Tensor, second: Tensor) -> Any:
    return net.a(torch.cat([first, second], 1)), net.b(second)


# a net, the losses of its outputs, and the number of edges of autograd's graph where they branch
CASES: dict[str, tuple[nn.Module, Losses, int]] = {
    "dense": (Two(Linear(6, 8), nn.Tanh()), squares, 1),
    "in place, normalised, dropout": (Two(normalised(), nn.Dropout(0.3)), squares, 1),
    "residual": (Two(Residual()), squares, 1),
    "LSTM": (Two(Recurrent()), squares, 1),
    "transformer with dropout": (Two(nn.Unflatten(1, (1, 6)), encoder(), nn.Flatten(), width=6), squares, 1),
    "views of one tensor": (Branches(lambda net, first, second: second.split(4, 1)), squares, 2),
    "one layer": (Linear(6, 2), lambda y: squares([y[:, :1], y[:, 1:]]), 1),
    "at two depths": (Branches(lambda net, x, y: (net.b(x), net.b(y), net.c(y))), squares, 4),
    "one reads two tensors": (Branches(at_both), squares, 2),
    "one is read twice": (Branches(lambda n, x, y: (n.b(y) * n.b(y.tanh()), n.c(y))), squares, 1),
    "behind a function of one's own": (Branches(lambda n, x, y: at_both(n, x, Doubled.apply(y))), squares, 2),
    "levels behind each other": (Pyramid(), squares, 2),
    "a layer in a body and a head": (Branches(lambda n, x, y: (n.second(y), n.c(y))), squares, 3),
    "hooks of tensors": (Branches(hooked), squares, 1),
    "losses in one tensor": (Linear(6, 2), lambda y: torch.stack(squares([y, y * y])).unbind(), 2),
    "the same loss": (Linear(6, 2), lambda y: [y.pow(2).mean()] * 2, 1),
    "a loss of a loss": (Linear(6, 2), lambda y: [(x := y.pow(2).mean()), x * y.mean()], 2),
    "nothing shared": (Two(width=6), squares, 0),
}


def prepared(case: str) -> tuple[list[nn.Parameter], Callable[[], list[list[Tensor]]], int]:
    """Return parameters, a function that computes losses by task, and the number of edges."""
    torch.manual_seed(0)
    net, losses, edges = CASES[case]
    net.double()
    x = torch.randn(5, 64 if isinstance(net, Pyramid) else 6, dtype=torch.float64)

    def compute() -> list[list[Tensor]]:
        torch.manual_seed(5)
        return [[each] for each in losses(net(x))]

    return list(net.parameters()), compute, edges


def rows_by_hand(parameters: list[nn.Parameter], compute: Callable[[], Any]) -> list[Any]:
    """Return each parameter's gradients by task, None where the task does not depend on it."""
    count = len(compute())
    each = [torch.autograd.grad(compute()[task], parameters, allow_unused=True) for task in range(count)]
    return list(zip(*each))


@pytest.mark.parametrize("ones", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_shared_parameters_get_the_weighted_sum(case: str, ones: bool) -> None:
    parameters, compute, edges = prepared(case)
    by_hand, losses = rows_by_hand(parameters, compute), compute()
    weights = np.ones(len(losses)) if ones else np.random.RandomState(1).rand(len(losses))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)  # to which gradients are added
    branch = Branch(losses, set(parameters))
    assert len(branch.edges) == edges
    branch.pass_back(branch.features(scale=2.0), weights)
    for parameter, of_tasks in zip(parameters, by_hand):
        shared = sum(each is not None for each in of_tasks) > 1
        factors = weights if shared else np.ones(len(weights))
        expected = torch.ones_like(parameter)
        for factor, each in zip(factors, of_tasks):
            expected += 0 if each is None else 2 * factor * each
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-12, atol=1e-12)
        assert shared == any(each is parameter for each in branch.shared)


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][2]])
def test_rows_are_the_gradients_of_single_tasks(case: str) -> None:
    parameters, compute, _ = prepared(case)
    by_hand, losses = dict(zip(parameters, rows_by_hand(parameters, compute))), compute()
    for parameter in parameters:
        parameter.grad = None
    branch = Branch(losses, set(parameters))
    sizes = [each.numel() for each in branch.shared]
    rows = torch.empty(len(losses), sum(sizes), dtype=torch.float64)
    branch.parameter_rows(branch.shared, rows)
    for parameter, found in zip(branch.shared, rows.split(sizes, 1)):
        of_tasks = [torch.zeros_like(parameter) if g is None else g for g in by_hand.pop(parameter)]
        torch.testing.assert_close(found, torch.stack(of_tasks).flatten(1), rtol=1e-12, atol=1e-12)
        assert parameter.grad is None
    for parameter, of_tasks in by_hand.items():
        own = next((each for each in of_tasks if each is not None), None)
        torch.testing.assert_close(parameter.grad, own, rtol=1e-12, atol=1e-12)


def test_tasks_without_losses_take_no_part() -> None:
    def branch() -> Branch:
        one, other = squares(net(torch.ones(5, 6)))
        return Branch([[one], [], [other]], set(net.parameters()))

    net, rows = Two(Linear(6, 8)), torch.empty(3, 56)
    assert [feature.tasks for feature in branch().features()] == [[0, 2]]
    branch().parameter_rows([*net.body.parameters()], rows)
    assert [bool(row.any()) for row in rows] == [True, False, True]


def test_parameters_that_are_not_asked_for_are_not_shared() -> None:
    net = Two(Linear(6, 8))
    weight, bias = net.body[0].weight.requires_grad_(False), net.body[0].bias
    assert Branch([[each] for each in squares(net(torch.randn(5, 6)))], {bias, weight}).shared == [bias]


def test_sparse_gradients_are_not_compared() -> None:
    net = Two(nn.Embedding(7, 8, sparse=True), nn.Tanh())

    def branch() -> Branch:
        return Branch([[each] for each in squares(net(torch.arange(5)))], set(net.parameters()))

    weight = net.body[0].weight
    with pytest.raises(SpecError, match="build the layer with sparse=False"):
        branch().parameter_rows([weight], torch.empty(2, 56))
    assert weight.grad is None
    both = branch()
    both.pass_back(both.features(), np.ones(2))
    assert weight.grad is not None and weight.grad.is_sparse
