"""Several ranks train what one process would have trained on whole batches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import multifit
from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import FAMO, UPGrad
from multifit.distributed import ALONE, World
from tests.common.ranks import run_ranks

from .nets import assert_equal_parameters, columns, heads, spec_of_heads

SGD = TrainerSpec(".*", "sgd", {"lr": 0.1, "momentum": 0.9}, clip_norm=1.0)
MISSABLE = TaskSpec(
    inputs=["x"], outputs=["kind", "size"], labels=["kind", LabelSpec("size", missing="nan")],
    losses={"kind": nn.CrossEntropyLoss(ignore_index=2), "size": LossSpec(nn.MSELoss(), weight=0.5)},
)  # fmt: skip
CASES: dict[str, tuple[TaskSpec, dict[str, Any]]] = {
    "plain": (spec_of_heads(), {}),
    "accumulating": (spec_of_heads(), {"accumulate": 2}),
    "missing and ignored labels": (MISSABLE, {}),
    "UPGrad": (spec_of_heads(), {"balance": UPGrad()}),
    "UPGrad of features": (spec_of_heads(), {"balance": UPGrad(on="features")}),
    "FAMO": (spec_of_heads(), {"balance": FAMO()}),
}


def batches(spec: TaskSpec) -> list[tuple[torch.Tensor, ...]]:
    x, kind, size = columns(21)
    if spec is MISSABLE:
        size = torch.where(torch.arange(21)[:, None] % 3 == 0, torch.nan, size)
    return [(x[i : i + 7], kind[i : i + 7], size[i : i + 7]) for i in (0, 7, 14)]


def trained(case: str, world: World, data: Callable[[TaskSpec], Any] = batches) -> MultiEstimator:
    spec, options = CASES[case]
    net = heads()
    if world.rank:  # the first rank's values count
        for parameter in net.parameters():
            nn.init.zeros_(parameter)
    estimator = MultiEstimator(net, spec, SGD, world=world, **options)
    estimator.fit(data(spec), batches(spec), epochs=2, event_handlers=[])
    return estimator


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_parameters_and_figures_are_those_of_one_process(case: str, size: int) -> None:
    alone = trained(case, ALONE)
    for estimator in run_ranks(size, lambda world: trained(case, world)):
        assert isinstance(estimator, MultiEstimator), estimator
        assert_equal_parameters(estimator.net, alone.net)
        for name, values in alone.history.items():
            assert estimator.history[name] == pytest.approx(values, rel=1e-9, nan_ok=True), name


def test_a_loader_is_divided_by_the_indices_of_its_samples() -> None:
    read: list[int] = []

    class Counted(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    def loader(spec: TaskSpec) -> DataLoader[Any]:
        return DataLoader(Counted(*columns(21)), 7, shuffle=True)

    def run(world: World) -> Any:
        estimator = MultiEstimator(heads(), spec_of_heads(), SGD, world=world)
        estimator.fit(loader(estimator.spec), epochs=1, event_handlers=[])
        return estimator

    one, other = run_ranks(2, run)
    assert sorted(read) == list(range(21))
    assert_equal_parameters(one.net, other.net)


def test_running_statistics_are_means_over_the_ranks() -> None:
    def run(world: World) -> Any:
        spec = spec_of_heads()
        estimator = MultiEstimator(heads("batch normalisation"), spec, SGD, world=world)
        estimator.fit(batches(spec), epochs=1, event_handlers=[])
        return estimator

    one, other = run_ranks(2, run)
    assert_equal_parameters(one.net, other.net, 0)
    assert float(one.net.body[1].running_mean.abs().sum()) > 0


def test_nets_that_differ_are_refused() -> None:
    def run(world: World) -> Any:
        net = heads()
        if world.rank:
            net.size = nn.Linear(8, 1, bias=False).double()
        MultiEstimator(net, spec_of_heads(), SGD, world=world).fit(batches(spec_of_heads()), epochs=1)

    for error in run_ranks(2, run):
        assert isinstance(error, multifit.SpecError) and "size.bias" in str(error)


class Spread:
    """A metric object of somebody's own, whose figure is no mean over samples."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.scores: list[torch.Tensor] = []

    def update(self, label: torch.Tensor, scores: torch.Tensor) -> None:
        assert len(label) == len(scores)
        self.scores.append(scores.flatten())

    def get(self) -> tuple[str, float]:
        return "spread", float(torch.cat(self.scores).std())


def cropped(scores: torch.Tensor) -> torch.Tensor:
    """Scores whose number depends on the batch, so that those of ranks cannot be joined."""
    return scores[:, : 1 + len(scores) % 2]


@pytest.mark.parametrize("crops", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_objects_measure_the_samples_of_all_ranks_when_evaluating(size: int, crops: bool) -> None:
    x, kind, _ = columns(13)
    data = [(x[:7], kind[:7]), (x[7:12], kind[7:12]), (x[12:], kind[12:])]  # one sample for all ranks

    def evaluated(world: World) -> float:
        def forward(net: nn.Module, slots: Any) -> Any:
            scores, _ = net(slots["x"])
            return scores, cropped(scores) if crops else scores

        spec = TaskSpec(
            inputs=["x"], outputs=["kind", "taken"], labels=["kind"], forward=forward,
            losses={"kind": nn.CrossEntropyLoss()},
            metrics={"spread": MetricSpec(Spread(), outputs="taken", labels="kind")},
        )  # fmt: skip
        estimator = MultiEstimator(heads(), spec, SGD, frozen=["size.*"], world=world)
        return estimator.evaluate(data)["spread"]

    if crops:  # rank by rank
        scores = [heads()(x)[0].detach() for x, _ in data]
        parts = [part for each in scores for part in each.tensor_split(size) if len(part)]
        expected = float(torch.cat([cropped(each).flatten() for each in parts]).std())
    else:
        expected = evaluated(ALONE)
    for spread in run_ranks(size, evaluated):
        assert spread == pytest.approx(expected, rel=1e-10)
