"""A small net's trainers, driven as a training step drives them."""

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from multifit.distributed import ALONE, World
from multifit.torch.trainers import Trainers

Batch = tuple[torch.Tensor, torch.Tensor]


def model_of(net: nn.Module, precision: str = "float32") -> Any:
    """What trainers need of a model."""
    return SimpleNamespace(
        net=net,
        parameters=dict(net.named_parameters()),
        device=torch.device("cpu"),
        precision=SimpleNamespace(name=precision),
    )


def trainers_of(
    net: nn.Module, declared: Any = None, frozen: Any = (), accumulate: int = 1, world: World = ALONE
) -> Trainers:
    """Trainers of a net that log nothing."""
    return Trainers(declared, frozen, model_of(net), lambda line: None, accumulate, world)


def messages(net: nn.Module, declared: Any = None, frozen: Any = (), accumulate: int = 1) -> list[str]:
    """All that is wrong with trainers."""
    return [each.message for each in trainers_of(net, declared, frozen, accumulate).build()]


def small_net(seed: int = 0) -> nn.Sequential:
    """Two dense layers in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def batches_of(*sizes: int, seed: int = 1) -> list[Batch]:
    """Random batches of these sizes in float64."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    return [(draw(size, 5), draw(size, 2)) for size in sizes]


def loss_of(net: nn.Module, batch: Batch) -> torch.Tensor:
    """The mean over the batch's samples of the squared errors' sums."""
    inputs, labels = batch
    return ((net(inputs) - labels) ** 2).sum() / max(len(inputs), 1)


def train(
    trainers: Trainers,
    net: nn.Module,
    batches: Sequence[Batch],
    start: int = 0,
    ends: bool = True,
    hold: Iterable[int] = (),
    loss: Callable[..., torch.Tensor] = loss_of,
    totals: Sequence[int] | None = None,
) -> list[list[str]]:
    """Train on batches, which are an epoch if it `ends`; return the trainers that were due after each.

    With several ranks, `totals` are the samples of all ranks' batches.
    """
    all_due = []
    with torch.enable_grad():
        for step, batch in enumerate(batches, start):
            assert trainers.build() == []
            samples = len(batch[0]) if totals is None else totals[step - start]
            objective = loss(net, batch) * len(batch[0]) / samples
            trainers.make_room(samples)
            torch.autograd.backward([objective * trainers.scale])
            due = trainers.due(step, samples, False)
            all_due.append(due)
            if trainers.agree(step in hold, due):
                trainers.discard_held(due)
            else:
                apply(trainers, due)
    if ends and trainers.left:
        due = trainers.left_due()
        trainers.agree(False, due)
        apply(trainers, due)
    return all_due


def apply(trainers: Trainers, due: Sequence[str]) -> None:
    """Update by the gradients of all ranks."""
    for name in due:
        trainers.reduce(name)
    trainers.add_up()
    for name in set(due) & set(trainers.clip_norms):
        trainers.clip(name)
    for name in due:
        trainers.update(name)


def values(net: nn.Module) -> torch.Tensor:
    """All of a net's parameters in one vector."""
    return torch.cat([each.detach().reshape(-1) for each in net.parameters()])


def assert_equal(one: nn.Module, other: nn.Module, tolerance: float = 1e-10) -> None:
    """Two nets have the same parameters, and not those at the beginning."""
    torch.testing.assert_close(values(one), values(other), rtol=0, atol=tolerance)
