"""Labels that a cross entropy ignores count nowhere, even if the spec does not mention them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multifit import LabelSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.distributed import ALONE, World
from tests.common.ranks import run_ranks

from .nets import assert_equal_parameters, heads

SIZES = (6, 3, 5, 1, 5)  # of the fourth batch, the second rank has no sample
LOSSES: dict[str, Callable[..., Tensor]] = {
    "module": nn.CrossEntropyLoss(),
    "function": F.cross_entropy,
    "function with options": partial(F.cross_entropy, ignore_index=-100),
}


def batches() -> list[tuple[Tensor, Tensor]]:
    """Batches of which the second has no label at all, and the third all of them."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, 6, dtype=torch.float64, generator=generator).split(SIZES)
    kinds = list(torch.randint(3, (20,), generator=generator).split(SIZES))
    kinds[0] = torch.cat([kinds[0][:2], torch.full((4,), -100)])
    kinds[1] = torch.full((3,), -100)
    kinds[4] = torch.cat([torch.full((1,), -100), kinds[4][1:]])
    return list(zip(x, kinds))


def by_hand(net: nn.Module, accumulate: int = 1) -> float:
    """Train two epochs; return the loss of all data afterwards."""
    optimizer, data = torch.optim.SGD(net.parameters(), 0.1), batches()
    for start in [*range(0, len(data), accumulate)] * 2:
        x, kind = map(torch.cat, zip(*data[start : start + accumulate]))
        optimizer.zero_grad()
        (F.cross_entropy(net(x)[0], kind, reduction="sum") / max((kind >= 0).sum(), 1)).backward()
        optimizer.step()
    x, kind = map(torch.cat, zip(*data))
    return float(F.cross_entropy(net(x)[0], kind).detach())


def trained(loss: Any, world: World = ALONE, **options: Any) -> MultiEstimator:
    spec = TaskSpec(
        inputs=["x"], outputs=["kind", "size"], labels=["kind"], losses={"kind": loss}, unused=["size"]
    )
    trainers = TrainerSpec("(body|kind).*", "sgd", {"lr": 0.1})
    estimator = MultiEstimator(heads(), spec, trainers, frozen=["size.*"], world=world, **options)
    estimator.fit(batches(), batches(), epochs=2, event_handlers=[])
    return estimator


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_ignored_counts_nowhere(loss: str, accumulate: int) -> None:
    estimator, net = trained(LOSSES[loss], accumulate=accumulate), heads()
    assert estimator.history["val_loss"][-1] == pytest.approx(by_hand(net, accumulate), rel=1e-10)
    assert_equal_parameters(estimator.net, net)


def test_ranks_may_ignore_different_numbers_of_labels() -> None:
    net = heads()
    loss = by_hand(net)
    for estimator in run_ranks(2, lambda world: trained(nn.CrossEntropyLoss(), world)):
        assert_equal_parameters(estimator.net, net)
        assert estimator.history["val_loss"][-1] == pytest.approx(loss, rel=1e-10)


METRICS = "accuracy", "f1", "mcc", "ce", "top_2", "perplexity", "mean_iou", "pixel_accuracy"


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("ignored", [-100, 255])
def test_metrics_leave_out_what_a_loss_ignores(ignored: int, declared: bool) -> None:
    def figures(data: list[tuple[Tensor, Tensor]], label: str | LabelSpec) -> dict[str, float]:
        spec = TaskSpec(
            inputs=["x"], outputs=["y"], labels=[label],
            losses={"y": nn.CrossEntropyLoss(ignore_index=ignored)},
            metrics={name: MetricSpec(name, outputs="y", labels="y") for name in METRICS},
        )  # fmt: skip
        torch.manual_seed(0)
        return MultiEstimator(nn.Linear(6, 2).double(), spec).evaluate(data)

    data = [(x, torch.where(kind < 0, ignored, kind.clamp(max=1))) for x, kind in batches()]
    kept = [(x[kind != ignored], kind[kind != ignored]) for x, kind in data]
    found = figures(data, LabelSpec("y", ignore=ignored) if declared else "y")
    assert found == pytest.approx(figures([each for each in kept if len(each[0])], "y"), rel=1e-10)


@pytest.mark.parametrize(
    "loss", [*LOSSES.values(), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]).double())]
)
def test_results_hold_what_the_loss_returns(loss: Any) -> None:
    spec = TaskSpec(
        inputs=["x"], outputs=["kind", "size"], labels=["kind"], losses={"kind": loss}, unused=["size"],
        metrics={"mean": MetricSpec("loss", losses="kind")},
    )  # fmt: skip
    x, kind = batches()[0]
    figures = MultiEstimator(heads(), spec).evaluate([(x, kind)])
    expected = float(loss(heads()(x)[0], kind).detach())
    assert figures == pytest.approx(dict.fromkeys(("loss", "kind", "mean"), expected), rel=1e-10)
