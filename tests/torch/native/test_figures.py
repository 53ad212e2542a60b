"""Figures of a stage: losses, sums of parts and weights, checkpoints and ranks."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, classification, regression

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec
from multifit.balance.tasks import Means
from multifit.distributed import ALONE, World
from multifit.sampling import TaskLoaders
from multifit.spec.terms import with_optional
from multifit.torch.figures import LoaderCounts, StageFigures
from multifit.torch.sums import TOGETHER, DeviceSum, PassSums
from tests.torch.native.results import cut, measured, new_figures, result, share

N = 40
GENERATOR = torch.Generator().manual_seed(0)
SLOTS = {
    "d": torch.randint(0, 4, (N,), generator=GENERATOR),
    "a": torch.randn(N, 2, generator=GENERATOR).double(),
}
OUTPUTS = {
    "d": torch.randn(N, 4, generator=GENERATOR).double(),
    "a": torch.randn(N, 2, generator=GENERATOR).double(),
}


def parts(output: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts, with a value per sample and a number."""
    return (output - label).abs().sum(1), (output**2).mean()


class Own:
    """Counts labels, batch by batch."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self) -> None:
        self.count = 0

    def update(self, labels: Tensor, outputs: Tensor) -> None:
        self.count += len(labels)

    def compute(self) -> float:
        return self.count


class Saved(Own):
    """The same, which can be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state["count"]


def spec_of(a: Any = "a", **metrics: Any) -> TaskSpec:
    return TaskSpec(
        inputs=["x"],
        outputs=["d", "a"],
        labels=["d", a],
        losses={
            "d": LossSpec(nn.CrossEntropyLoss(), weight=2.0),
            "a": LossSpec(nn.MSELoss(), weight=0.5),
        },
        metrics={"accuracy": MetricSpec("accuracy", "d", "d"), "mae": MetricSpec("mae", "a", "a"), **metrics},
    )


class Largest(Metric):
    """States that torchmetrics reduces in other ways: a largest value, and a mean over the updates."""

    higher_is_better, full_state_update = True, False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("largest", torch.tensor(-math.inf).double(), "max")
        self.add_state("mean", torch.tensor(0.0).double(), "mean")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.largest = torch.maximum(self.largest, preds.max())
        updates = self.update_count
        self.mean = (self.mean * (updates - 1) + len(preds)) / updates

    def compute(self) -> Tensor:
        return torch.stack([self.largest, self.mean])


def all_kinds() -> TaskSpec:
    return spec_of(
        largest=MetricSpec(Largest(), "a", "a", names=["value", "mean"]),
        f=MetricSpec("sklearn.r2_score", "a", "a"),
        iou=MetricSpec("mean_iou", "d", "d"),
        t=MetricSpec(classification.MulticlassAUROC(4), "d", "d"),
        mean=MetricSpec(MeanMetric(), "d", [], transform=lambda o: ([], [o.sum(1)])),
        pearson=MetricSpec(regression.PearsonCorrCoef(), "a", "a", transform=lambda o, y: (y[:, 0], o[:, 0])),
        own=MetricSpec(Saved(), "a", "a"),
    )


@st.composite
def sizes(draw: Any) -> list[int]:
    cuts = sorted(draw(st.sets(st.integers(1, N - 1), max_size=6)))
    return [end - start for start, end in zip([0, *cuts], [*cuts, N])]


@settings(max_examples=10, deadline=None)
@given(sizes())
def test_losses_are_those_of_the_whole_pass(batches: list[int]) -> None:
    figures = measured(spec_of(), SLOTS, OUTPUTS, batches).read()
    digit = float(nn.functional.cross_entropy(OUTPUTS["d"], SLOTS["d"]))
    amount = float(((OUTPUTS["a"] - SLOTS["a"]) ** 2).mean())
    assert figures["d"] == pytest.approx(digit, rel=1e-12) and figures["a"] == pytest.approx(
        amount, rel=1e-12
    )
    assert figures["loss"] == pytest.approx(2 * digit + 0.5 * amount, rel=1e-12)
    assert list(figures) == ["loss", "d", "a", "accuracy", "mae"]


def test_parts_and_weights_that_change() -> None:
    spec = TaskSpec(
        inputs=["x"],
        outputs=["a"],
        labels=["a"],
        losses={"a": LossSpec(parts, returns=["l1", "l2"], minimize="l2", weight=lambda epoch: epoch + 1.0)},
    )
    figures = new_figures(spec)
    for epoch, (slots, outputs) in enumerate(zip(cut({"a": SLOTS["a"]}, [10, 30]), cut(OUTPUTS, [10, 30]))):
        figures.add(result(spec, slots, outputs, epoch=epoch))
    squares, absolute = OUTPUTS["a"] ** 2, (OUTPUTS["a"] - SLOTS["a"]).abs().sum(1)
    expected = {
        "loss": float((squares[:10].mean() * 10 + squares[10:].mean() * 60) / N),
        "a": float(squares.mean()),
        "a.l1": float(absolute.mean()),
        "a.l2": float(squares.mean()),
    }
    assert figures.read() == pytest.approx(expected, rel=1e-12)
    assert figures.names() == list(expected)
    assert figures.direction("a.l1") == figures.direction("loss") == "min" and figures.direction("x") is None


@settings(max_examples=10, deadline=None)
@given(sizes())
def test_missing_labels(batches: list[int]) -> None:
    """A loss is divided by the labels that are present; NaN stands for a loss that no batch had."""
    spec, label = spec_of(LabelSpec("a", missing="nan")), SLOTS["a"].clone()
    label[5:30] = math.nan
    figures = measured(spec, {**SLOTS, "a": label}, OUTPUTS, batches).read()
    there = ~label[:, 0].isnan()
    error = (OUTPUTS["a"] - SLOTS["a"])[there]
    assert figures["a"] == pytest.approx(float((error**2).mean()))
    assert figures["mae"] == pytest.approx(float(error.abs().mean()))
    assert figures["coverage_a"] == pytest.approx(15 / 40)
    none = measured(spec, {**SLOTS, "a": label * math.nan}, OUTPUTS, batches).read()
    assert math.isnan(none["a"]) and math.isnan(none["mae"]) and none["coverage_a"] == 0
    assert none["loss"] == pytest.approx(2 * none["d"])


def test_batches_that_lack_a_label() -> None:
    """With a loader for each task."""
    spec = with_optional(spec_of(), ["a", "d"])
    figures = StageFigures(spec, new_figures(spec).metrics)
    for batch in range(4):
        slots = {name: each if (name == "d") == (batch < 3) else None for name, each in SLOTS.items()}
        figures.add(result(spec, slots, OUTPUTS))
    found, alone = figures.read(), measured(spec_of(), SLOTS, OUTPUTS, [N]).read()
    assert found == pytest.approx(alone)
    figures.reset()
    assert figures.read() == {}
    figures.add(result(spec, {"d": SLOTS["d"], "a": None}, OUTPUTS))
    assert math.isnan(figures.read()["a"]) and math.isnan(figures.read()["mae"])


def test_nothing_is_measured_without_losses_or_samples() -> None:
    spec = TaskSpec(inputs=["x"], outputs=["a"], labels=["a"], metrics={"mae": MetricSpec("mae")})
    figures = new_figures(spec, "evaluate")
    empty = result(spec, {"a": SLOTS["a"]}, OUTPUTS)
    empty.batch.samples = 0
    figures.add(empty)
    assert figures.read() == {} and figures.names() == ["mae"] and figures.batches == 1


def test_reading_does_not_change_sums() -> None:
    """Figures that are read at any time have the same bits in the end; so have those of a resumed run."""
    batches = [(i % 3) + 1 for i in range(3 * TOGETHER)]
    indices = [torch.randint(0, N, (size,), generator=GENERATOR) for size in batches]
    ends = []
    for read_at in ([], [1, 17, TOGETHER, 50]):
        figures = new_figures(spec_of())
        for number, index in enumerate(indices):
            some = [{k: v[index] for k, v in of.items()} for of in (SLOTS, OUTPUTS)]
            some = [{k: v.float() if v.is_floating_point() else v for k, v in of.items()} for of in some]
            figures.add(result(figures._spec, *some))
            if number in read_at:
                figures.read()
                state, figures = figures.state(), new_figures(spec_of())
                assert figures.load(state) == []
        ends.append(figures.read())
    assert ends[0] == ends[1]


def test_a_wide_table_is_added_up_at_once() -> None:
    sums, wide = PassSums(), torch.ones(2**16 + 1)
    for _ in range(3):
        sums.add((("t", len(wide)), ("n", 1)), [wide, torch.tensor(2)])
    assert all(len(vector.state()[0]) == 1 for vector in sums.vectors.values())
    assert (sums.read()["t"] == 3).all() and sums.read()["n"] == 6


# ---- checkpoints


def halves() -> list[Any]:
    """Results of four batches."""
    spec, cuts = all_kinds(), [11, 9, 13, 7]
    return [result(spec, *each) for each in zip(cut(SLOTS, cuts), cut(OUTPUTS, cuts))]


def test_a_state_holds_everything() -> None:
    whole, first, later = (new_figures(all_kinds()) for _ in range(3))
    batches = halves()
    for batch in batches:
        whole.add(batch)
    for batch in batches[:2]:
        first.add(batch)
    assert later.load(first.state()) == []
    for batch in batches[2:]:
        later.add(batch)
    assert later.read() == whole.read() and later.batches == 4
    assert whole.read()["own"] == 40.0


def test_what_a_state_cannot_hold() -> None:
    spec = spec_of(own=MetricSpec(Own(), "a", "a"), saved=MetricSpec(Saved(), "a", "a"))
    figures, twin = measured(spec, SLOTS, OUTPUTS, [N]), new_figures(spec)
    assert twin.load(figures.state()) == ["own"]
    assert math.isnan(twin.read()["own"]) and twin.read()["saved"] == N
    divided = new_figures(all_kinds())
    whole = measured(all_kinds(), SLOTS, OUTPUTS, [N])
    assert divided.load(whole.state(), divisible=False) == ["pearson", "own"]
    untouched = new_figures(spec)
    assert untouched.load(new_figures(spec).state()) == [] and untouched.read() == {}


def test_states_of_processes_add_up() -> None:
    whole, batches = new_figures(all_kinds()), halves()
    ranks = [new_figures(all_kinds()) for _ in range(3)]
    for batch in batches:
        whole.add(batch)
    for rank, some in zip(ranks, (batches[:1], batches[1:3], batches[3:])):
        for batch in some:
            rank.add(batch)
    joined = new_figures(all_kinds())
    assert joined.load(ranks[0].state(), divisible=False) == ["pearson", "own"]
    for rank in ranks[1:]:
        joined.merge(rank.state())
    for name, value in whole.read().items():
        if name not in ("own", "pearson"):
            assert joined.read()[name] == pytest.approx(value), name


# ---- ranks


class Ranks(World):
    """All ranks in one process: what they gather is known."""

    size = 3

    def __init__(self, gathered: list[Any]) -> None:
        self._gathered = gathered

    def gather(self, value: Any) -> list[Any]:
        return self._gathered


def joined_figures(of_ranks: list[StageFigures], ended: bool = True) -> list[dict[str, float]]:
    """Let all ranks join; each first says what it has."""
    said: list[Any] = []

    class Asking(Ranks):
        def gather(self, value: Any) -> list[Any]:
            said.append(value)
            raise StopIteration

    for figures in of_ranks:
        with pytest.raises(StopIteration):
            figures.join(Asking([]), ended)
    for figures in of_ranks:
        figures.join(Ranks(said), ended)
    return [figures.read() for figures in of_ranks]


@pytest.mark.parametrize("missing", [False, True])
def test_ranks_have_the_figures_of_one_process(missing: bool) -> None:
    make: Callable[[], TaskSpec] = all_kinds
    slots, spec = dict(SLOTS), make()
    if missing:
        make = lambda: spec_of(LabelSpec("a", missing="nan"))  # noqa: E731
        spec = make()
        slots["a"] = torch.where(torch.arange(N)[:, None] % 3 == 0, math.nan, SLOTS["a"])
    whole = measured(spec, slots, OUTPUTS, [24, 16])
    ranks = [new_figures(make()) for _ in range(3)]
    for start, end, shares in ((0, 24, [10, 8, 6]), (24, 40, [16, 0, 0])):
        one = result(spec, *({k: v[start:end] for k, v in of.items()} for of in (slots, OUTPUTS)))
        at = start
        for figures, size in zip(ranks, shares):
            some = [{k: v[at : at + size] for k, v in of.items()} for of in (slots, OUTPUTS)]
            own = result(spec, *some, total=end - start) if size else one
            own.batch.samples = size
            share(own, one.scale.norms)
            figures.add(own)
            at += size
    expected = whole.read()
    # means over the ranks, weighted by their samples, and over all updates
    by_updates = {"own": (26 * 26 + 8 * 8 + 6 * 6) / 40, "largest.mean": 40 / 4}
    for found in joined_figures(ranks):
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert found[name] == pytest.approx(by_updates.get(name, value), rel=1e-6), name


def test_ranks_without_figures_or_samples() -> None:
    make = lambda: spec_of(own=MetricSpec(Own(), "a", "a"))  # noqa: E731
    nothing = [new_figures(make()) for _ in range(3)]
    assert joined_figures(nothing) == [{}] * 3
    some = [measured(make(), SLOTS, OUTPUTS, [N]), *(new_figures(make()) for _ in range(2))]
    first, *others = joined_figures(some)
    assert others == [first] * 2 and first["own"] == N
    alone = measured(make(), SLOTS, OUTPUTS, [N])
    alone.join(ALONE, ended=False)
    assert alone.complete and not alone.ended and alone.read()["own"] == N


def test_arrays_are_kept_until_the_pass_has_ended() -> None:
    figures = measured(all_kinds(), SLOTS, OUTPUTS, [N])
    figures.join(ALONE, ended=False)
    figures.read()
    kept = next(metric.kept for metric in figures.metrics if metric.term.key == "f")
    assert len(kept) == 1
    figures.join(ALONE, ended=True)
    value = figures.read()["f"]
    assert not len(kept) and figures.read()["f"] == value


# ---- further figures


def test_means() -> None:
    means = Means(["a", "b", "c"], DeviceSum)
    means.add(torch.tensor([[1.0, 4.0, 0.0], [1, 1, 0]], dtype=torch.float64))
    means.add(np.array([[3.0, 0.0, 0.0], [1, 0, 0]]))
    means.add(torch.tensor([[2.0, 5.0, 0.0], [1, 1, 0]]))
    expected = {"a": 2.0, "b": 4.5, "c": math.nan}
    twin = Means(["a", "b", "c"], DeviceSum)
    twin.load(means.state())
    for each in (means, twin):
        np.testing.assert_equal(each.read(), expected)
    twin.add(torch.tensor([[2.0, 0.0, 1.0], [1, 0, 1]]))
    assert twin.read() == {"a": 2.0, "b": 4.5, "c": 1.0}
    twin.load(Means(["a"], DeviceSum).state())
    twin.reset()
    assert all(map(math.isnan, twin.read().values()))


def test_means_and_counts_of_loaders_are_figures() -> None:
    loaders = TaskLoaders({"d": [0] * 4, "a": [0] * 2})
    loaders.sizes = {"d": 4, "a": 2}
    means, counts = Means(["weight_d"], DeviceSum), LoaderCounts(loaders)
    figures = new_figures(spec_of(), means=[means, counts])
    figures.add(result(spec_of(), SLOTS, OUTPUTS))
    means.add(np.array([[3.0], [1.0]]))
    loaders.taken["a"] = 3
    found = figures.read()
    assert found["weight_d"] == 3 and found["batches_a"] == 3 and found["passes_a"] == 1.5
    assert figures.names()[-5:] == ["weight_d", "batches_d", "batches_a", "passes_d", "passes_a"]
    loaders.taken["a"] = 0
    twin = new_figures(spec_of(), means=[Means(["weight_d"], DeviceSum), counts])
    state = figures.state()
    loaders.taken["a"] = 1
    twin.load(state)
    assert twin.read()["weight_d"] == 3 and loaders.taken["a"] == 0
    figures.reset()
    assert math.isnan(means.read()["weight_d"])


def test_replaced_and_reserved_figures() -> None:
    figures = measured(spec_of(), SLOTS, OUTPUTS, [N])
    figures.replace({"loss": 1.0})
    assert figures.read() == {"loss": 1.0}
    figures.reset_own()
    with (
        figures.alone(),
        pytest.raises(RuntimeError, match="in the middle of an evaluation"),
        figures.alone(),
    ):
        pass


def test_a_loss_may_have_any_name() -> None:
    names = ["count", "norm", "loss 0", "metrics"]
    spec = TaskSpec(
        inputs=["x"],
        outputs=["y"],
        labels=["y"],
        losses={name: LossSpec(nn.MSELoss(), outputs="y", labels="y") for name in names},
        metrics={"error": MetricSpec("mae", outputs="y", labels="y")},
    )
    x = torch.randn(8, 3)
    figures = MultiEstimator(nn.Linear(3, 1), spec).evaluate([(x, x[:, :1])])
    assert len({figures[name] for name in names}) == 1
    assert figures["loss"] == pytest.approx(4 * figures["count"])
