"""Several ranks train what one process would have trained on whole batches."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.balance import FAMO, UPGrad
from multifit.distributed import ALONE, World
from tests.common.ranks import run_ranks

from .measures import measuring
from .nets import MISSABLE, SGD, Heads, assert_equal_parameters, batches, columns, heads, spec_of_heads

CLIPPED = TrainerSpec(".*", "sgd", SGD, clip_norm=1.0)
BATCHES = batches(7, 7, 7)
UNKNOWN = [(x, y, torch.where(torch.arange(7)[:, None] % 3 == 0, torch.nan, z)) for x, y, z in BATCHES]


def wide() -> Heads:
    """Return a net with gradients that are summed by themselves, and one that is not contiguous."""
    torch.manual_seed(0)
    net = Heads(width=8192).double()
    net.kind.weight.data = net.kind.weight.data.t().contiguous().t()
    return net


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "plain": (heads, spec_of_heads(), {}),
    "accumulating": (heads, spec_of_heads(), {"accumulate": 2}),
    "wide": (wide, spec_of_heads(), {"accumulate": 2}),
    "missing and ignored labels": (heads, MISSABLE, {}),
    "metrics of all kinds": (heads, measuring, {}),
    "UPGrad": (heads, spec_of_heads(), {"balance": UPGrad()}),
    "UPGrad of features": (heads, spec_of_heads(), {"balance": UPGrad(on="features")}),
    "FAMO": (heads, spec_of_heads(), {"balance": FAMO()}),
}


def fitted(world: World, net: nn.Module, spec: Any = None, data: Any = BATCHES, **options: Any) -> Any:
    """Return an estimator after a fit."""
    options = {"trainers": CLIPPED, **options}
    estimator = MultiEstimator(net, spec or spec_of_heads(), world=world, **options)
    estimator.fit(data, data, epochs=2, event_handlers=[])
    return estimator


@pytest.mark.parametrize(("case", "size"), [("plain", 2), *[(case, 3) for case in CASES]])
def test_parameters_and_figures_are_those_of_one_process(case: str, size: int) -> None:
    make, spec, options = CASES[case]

    def trained(world: World) -> MultiEstimator:
        net = make()
        for parameter in net.parameters() if world.rank else ():  # the first rank's values count
            nn.init.zeros_(parameter)
        data = UNKNOWN if spec is MISSABLE else BATCHES
        return fitted(world, net, spec() if callable(spec) else spec, data, **options)

    alone = trained(ALONE)
    # in training, objects measure the samples of their rank, and the second mean is over all updates
    shares = [3 * len(each) for each in torch.arange(7).tensor_split(size)]
    others = {"train_count": sum(each**2 for each in shares) / 21}
    others.update(dict.fromkeys(("train_largest.mean", "val_largest.mean"), 7 / size))
    for estimator in run_ranks(size, trained):
        assert isinstance(estimator, MultiEstimator), estimator
        assert_equal_parameters(estimator.net, alone.net)
        for name, values in alone.history.items():
            expected = [others[name]] * 2 if name in others else values
            tolerance = 1e-6 if spec is measuring else 1e-9  # torchmetrics computes in float32
            assert estimator.history[name] == pytest.approx(expected, rel=tolerance, nan_ok=True), name


class Chosen(nn.Module):
    """An embedding with sparse gradients, and two layers, of which a sample reaches the one that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2, sparse=True)
        self.layers = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])

    def forward(self, index: Tensor) -> Tensor:
        rows = self.table(index)
        return torch.cat([self.layers[i % 2](row) for i, row in zip(index.tolist(), rows)])


def test_what_one_rank_reaches_is_updated_on_all_ranks() -> None:
    spec = TaskSpec(inputs=["x"], outputs=["o"], losses={"o": LossSpec(lambda o: o.square(), "o")})
    data = [(torch.tensor(rows),) for rows in ([0, 1], [2, 3], [0, 2])]  # the last reaches one layer alone

    def trained(world: World) -> nn.Module:
        torch.manual_seed(0)
        net = Chosen()
        fitted(world, net, spec, data, trainers=TrainerSpec(".*", "sgd", {"lr": 0.1, "weight_decay": 0.0}))
        return net

    alone = trained(ALONE)
    for net in run_ranks(2, trained):
        assert_equal_parameters(net, alone, 1e-6)


def test_an_update_that_one_rank_holds_back_does_not_happen() -> None:
    class Holds:
        def hold_update(self, estimator: Any) -> bool:
            return bool(estimator._session.world.rank == 1)

    def trained(world: World) -> nn.Module:
        estimator = MultiEstimator(heads(), spec_of_heads(), CLIPPED, world=world)
        estimator.fit(BATCHES, epochs=1, event_handlers=[Holds()])
        return estimator.net

    for net in run_ranks(2, trained):
        assert_equal_parameters(net, heads(), 0)
        assert all(each.grad is None for each in net.parameters())


def test_a_loader_is_divided_by_the_indices_of_its_samples() -> None:
    class Counted(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    def trained(world: World) -> nn.Module:
        estimator = MultiEstimator(heads("batch normalisation"), spec_of_heads(), CLIPPED, world=world)
        estimator.fit(DataLoader(Counted(*columns(21)), 7, shuffle=True), epochs=1, event_handlers=[])
        return estimator.net

    read: list[int] = []
    one, other = run_ranks(2, trained)
    assert sorted(read) == list(range(21))
    assert_equal_parameters(one, other, 0)  # running statistics are means over the ranks
    assert float(one.body[1].running_mean.abs().sum()) > 0


def test_nets_that_differ_are_refused() -> None:
    def run(world: World) -> Any:
        net = heads()
        if world.rank:
            net.size = nn.Linear(8, 1, bias=False).double()
        fitted(world, net)

    for error in run_ranks(2, run):
        assert isinstance(error, SpecError) and "size.bias" in str(error)


class Spread:
    """A metric object of somebody's own, whose figure is no mean over samples."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.scores: list[Tensor] = []

    def update(self, label: Tensor, scores: Tensor) -> None:
        assert len(label) == len(scores)
        self.scores.append(scores.flatten())

    def get(self) -> tuple[str, float]:
        return "spread", float(torch.cat(self.scores).std())


def cropped(scores: Tensor) -> Tensor:
    """Return scores whose number depends on the batch, so that those of ranks cannot be joined."""
    return scores[:, : 1 + len(scores) % 2]


@pytest.mark.parametrize(("size", "crops"), [(2, True), (3, False), (3, True)])
def test_objects_measure_the_samples_of_all_ranks_when_evaluating(size: int, crops: bool) -> None:
    data = [(x, kind) for x, kind, _ in batches(7, 5, 1)]  # one sample for all ranks

    def evaluated(world: World) -> float:
        def forward(net: nn.Module, slots: Any) -> Any:
            scores, _ = net(slots["x"])
            return scores, cropped(scores) if crops else scores

        spec = TaskSpec(
            inputs=["x"], outputs=["kind", "taken"], labels=["kind"], forward=forward,
            losses={"kind": nn.CrossEntropyLoss()},
            metrics={"spread": MetricSpec(Spread(), outputs="taken", labels="kind")},
        )  # fmt: skip
        return MultiEstimator(heads(), spec, CLIPPED, frozen=["size.*"], world=world).evaluate(data)["spread"]

    if crops:  # rank by rank
        scores = [heads()(x)[0].detach() for x, _ in data]
        parts = [part for each in scores for part in each.tensor_split(size) if len(part)]
        expected = float(torch.cat([cropped(each).flatten() for each in parts]).std())
    else:
        expected = evaluated(ALONE)
    for spread in run_ranks(size, evaluated):
        assert spread == pytest.approx(expected, rel=1e-10)
