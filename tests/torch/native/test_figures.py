"""Figures of a pass: losses, metrics of all kinds, and labels that break a rule; also of ranks."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multifit import (
    DataError,
    LabelSpec,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    SkipNonFinite,
    TaskSpec,
    TrainerSpec,
)
from multifit.balance.tasks import Means
from multifit.distributed import ALONE, World
from multifit.spec.terms import Ref
from multifit.torch import figures, sums
from multifit.torch.labels import LabelRule
from tests.common.ranks import run_ranks

from .nets import Given

N = 40
CUTS = [[N], [11, 1, 8, 20]]
GENERATOR = torch.Generator().manual_seed(0)
SCORES, AMOUNT, TRUTH = (torch.randn(N, n, generator=GENERATOR).double() for n in (4, 2, 2))
CLASSES = torch.randint(0, 4, (N,), generator=GENERATOR)
COLUMNS = SCORES, AMOUNT, CLASSES, TRUTH


def cut(columns: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    return list(zip(*(each.split(sizes) for each in columns)))


def spec_of(d: Any = "d", a: Any = "a", losses: Any = None) -> TaskSpec:
    entropy = LossSpec(nn.CrossEntropyLoss(), "scores", "d", weight=2.0)
    stock = {"accuracy": MetricSpec("accuracy", "scores", "d"), "mae": MetricSpec("mae", "amount", "a")}
    return TaskSpec(
        inputs=["scores", "amount"], outputs=["scores", "amount"], labels=[d, a],
        losses={"d": entropy, "a": LossSpec(nn.MSELoss(), "amount", "a", weight=0.5), **(losses or {})},
        metrics=stock,
    )  # fmt: skip


def evaluated(spec: TaskSpec, batches: Any, world: World = ALONE) -> dict[str, float]:
    return MultiEstimator(Given(), spec, world=world).evaluate(batches, [])


def trained(spec: TaskSpec, batches: Any, *handlers: Any) -> dict[str, float]:
    """Return the figures of an epoch of training in which nothing moves."""
    net = Given()
    net.forward = lambda *inputs: [each + net.weight for each in inputs]  # type: ignore[method-assign]
    estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", {"lr": 0}))
    history = estimator.fit(batches, epochs=1, event_handlers=[*handlers])
    return {name.removeprefix("train_"): each for name, (each,) in history.items() if "train_" in name}


# ---- losses


@pytest.mark.parametrize("cuts", CUTS)
def test_figures_are_those_of_the_whole_pass(cuts: list[int]) -> None:
    entropy, squares = float(F.cross_entropy(SCORES, CLASSES)), float(F.mse_loss(AMOUNT, TRUTH))
    found = evaluated(spec_of(), cut(COLUMNS, cuts))
    assert list(found) == ["loss", "d", "a", "accuracy", "mae"]
    expected = {
        "loss": 2 * entropy + 0.5 * squares, "d": entropy, "a": squares,
        "accuracy": float((SCORES.argmax(1) == CLASSES).double().mean()),
        "mae": float((AMOUNT - TRUTH).abs().mean()),
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-12)


def parts(output: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts, with a value per sample and a number."""
    return (output - label).abs().sum(1), (output**2).mean()


def test_parts_and_weights_that_change() -> None:
    loss = LossSpec(parts, "amount", "a", returns=["l1", "l2"], minimize="l2",
                    weight=lambda state: 1.0 + 5 * state.step)  # fmt: skip
    found = trained(spec_of(losses={"a": loss}), cut(COLUMNS, [10, 30]))
    squares, absolute = AMOUNT**2, (AMOUNT - TRUTH).abs().sum(1)
    expected = {
        "loss": float((squares[:10].mean() * 10 + 6 * squares[10:].mean() * 30) / N) + 2 * found["d"],
        "a": float(squares.mean()), "a.l1": float(absolute.mean()), "a.l2": float(squares.mean()),
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("cuts", CUTS)
def test_a_loss_is_divided_by_the_labels_that_are_present(cuts: list[int]) -> None:
    """NaN stands for a loss that no batch had."""
    spec, label = spec_of(a=LabelSpec("a", missing="nan")), TRUTH.clone()
    label[5:30] = math.nan
    found, there = evaluated(spec, cut((*COLUMNS[:3], label), cuts)), ~label[:, 0].isnan()
    error = (AMOUNT - TRUTH)[there]
    expected = [(error**2).mean(), error.abs().mean(), 15 / 40]
    assert [found[name] for name in ("a", "mae", "coverage_a")] == pytest.approx([*map(float, expected)])
    none = evaluated(spec, cut((*COLUMNS[:3], label * math.nan), cuts))
    assert math.isnan(none["a"]) and math.isnan(none["mae"]) and none["coverage_a"] == 0
    assert none["loss"] == pytest.approx(2 * none["d"])


def test_with_a_loader_for_each_task_a_figure_is_that_of_the_batches_that_have_the_label() -> None:
    batches = cut(COLUMNS, [10] * 4)
    data = {
        "d": [{"scores": scores, "amount": amount, "d": d} for scores, amount, d, _ in batches],
        "a": [{"scores": scores, "amount": amount, "a": a} for scores, amount, _, a in batches],
    }
    found, alone = trained(spec_of(), data), evaluated(spec_of(), cut(COLUMNS, [N]))
    assert {name: found[name] for name in alone} == pytest.approx(alone)
    assert found["batches_a"] == 4 and found["passes_a"] == 1


def test_a_loss_may_have_any_name() -> None:
    names = ["count", "norm", "loss 0", "metrics"]
    losses = {name: LossSpec(nn.MSELoss(), "amount", "a") for name in names}
    found = evaluated(spec_of(losses=losses), cut(COLUMNS, [N]))
    assert len({found[name] for name in (*names, "a")}) == 1


def test_reading_at_any_time_does_not_change_a_bit_of_the_figures() -> None:
    class Reads:
        def batch_end(self, estimator: Any) -> None:
            if estimator.state.step in (1, 17, sums.TOGETHER, 50):
                estimator.figures()

    batches = cut([each.repeat(4, *[1] * (each.dim() - 1)) for each in COLUMNS], [1, 2, 1] * N)
    assert len(batches) > 3 * sums.TOGETHER
    plain, read = trained(spec_of(), batches), trained(spec_of(), batches, Reads())
    assert {**plain, "time": 0} == {**read, "time": 0}


def test_a_wide_table_is_added_up_at_once() -> None:
    """Else, it would take memory."""
    summed, wide = sums.PassSums(), torch.ones(2**16 + 1)
    for _ in range(3):
        summed.add((("t", len(wide)), ("n", 1)), [wide, torch.tensor(2)])
    assert all(len(vector.state()[0]) == 1 for vector in summed.vectors.values())
    assert (summed.read()["t"] == 3).all() and summed.read()["n"] == 6


def test_means() -> None:
    means, twin = (Means(["a", "b", "c"], sums.DeviceSum) for _ in range(2))
    means.add(torch.tensor([[1.0, 4.0, 0.0], [1, 1, 0]], dtype=torch.float64))
    means.add(np.array([[3.0, 0.0, 0.0], [1, 0, 0]]))
    means.add(torch.tensor([[2.0, 5.0, 0.0], [1, 1, 0]]))
    twin.load(means.state())
    for each in (means, twin):
        np.testing.assert_equal(each.read(), {"a": 2.0, "b": 4.5, "c": math.nan})
    twin.add(torch.tensor([[2.0, 0.0, 1.0], [1, 0, 1]]))
    assert twin.read() == {"a": 2.0, "b": 4.5, "c": 1.0}


# ---- slots that break a rule


def clamped(output: Tensor, label: Tensor) -> Tensor:
    """A loss that takes wrong classes for others."""
    return F.cross_entropy(output, label.long().clamp(0, 3))


class Clamped(nn.CrossEntropyLoss):
    """The same as a module."""

    def forward(self, output: Tensor, label: Tensor) -> Tensor:
        return super().forward(output, torch.where(label == self.ignore_index, label, label.clamp(0, 3)))


clamped_like: Any = functools.partial(clamped)
clamped_like.class_axis = -1  # as a loss may say itself


def ruled(loss: Any = None, d: Any = "d", **options: Any) -> TaskSpec:
    return spec_of(d, losses={"d": LossSpec(loss or Clamped(), "scores", **{"labels": "d", **options})})


def batch_of(**changes: tuple[Any, float]) -> dict[str, Tensor]:
    """Return the slots of a batch of 8 samples, with values changed in each that is named."""
    slots = {"scores": SCORES, "amount": AMOUNT, "d": torch.arange(N) % 4, "a": TRUTH}
    slots = {name: each[:8].clone() for name, each in slots.items()}
    for name, (index, value) in changes.items():
        slots[name][index] = value
    return slots


def of_samples(output: Tensor, label: Tensor, mask: Tensor | None = None) -> Tensor:
    return clamped(output, label).expand(8)


HELD = 'losses["d"]: in evaluation, the label "d" held '
# fmt: off
WRONG: dict[str, tuple[TaskSpec, dict[str, Any], str]] = {
    "too large": (ruled(), {"d": (3, 4)},
        f"{HELD}1 value not among the classes 0 … 3: fix the labels; if a value means "),
    "too small": (ruled(), {"d": ([0, 2], -1)}, f"{HELD}2 values"),
    "another is ignored": (ruled(Clamped(ignore_index=9)), {"d": (0, -100)}, f"{HELD}1"),
    "declared": (ruled(clamped, LabelSpec("d", classes=4)), {"d": (0, 4)},
        'labels["d"]: in evaluation, the label "d" held 1 value'),
    "an axis": (ruled(clamped_like), {"d": (0, 7)}, f"{HELD}1 value"),
    "weighted": (ruled(of_samples, class_weights=[1, 2, 1, 1]), {"d": (0, 5)}, f"{HELD}1 value"),
    "NaN": (ruled(), {"a": ((1, 1), math.nan)},
        'labels["a"] held NaN or infinity in 1 row, in evaluation; mend the data'),
    "infinity": (ruled(), {"amount": ([0, 3], -math.inf)},
        'inputs["amount"] held NaN or infinity in 2 rows, in evaluation'),
}
RIGHT: dict[str, tuple[TaskSpec, dict[str, Any]]] = {
    "ignored": (ruled(), {"d": (0, -100)}),
    "ignored by name": (ruled(Clamped(ignore_index=77)), {"d": (0, 77)}),
    "of a function": (ruled(functools.partial(F.cross_entropy, ignore_index=-3)), {"d": (0, -3)}),
    "declared": (ruled(clamped, LabelSpec("d", classes=4, ignore=-5)), {"d": (0, -5)}),
    "margins": (ruled(nn.MultiMarginLoss()), {}),
    "of no class": (ruled(clamped), {"d": (0, 9)}),
    "by a mask": (
        ruled(of_samples, LabelSpec("d", ignore=-1), labels=["d", "a"], class_weights=[1] * 4),
        {"d": (0, -1)},
    ),
}
# fmt: on


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_counted_and_named(name: str) -> None:
    spec, changes, message = WRONG[name]
    estimator = MultiEstimator(Given(), spec)
    with pytest.raises(DataError) as raised:
        estimator.evaluate([batch_of(), batch_of(**changes), batch_of()])
    (problem,) = raised.value.problems
    assert problem.message.startswith(message)
    assert math.isfinite(estimator.evaluate([batch_of()] * 2)["loss"])


@pytest.mark.parametrize("name", RIGHT)
def test_values_that_are_valid(name: str) -> None:
    spec, changes = RIGHT[name]
    assert math.isfinite(evaluated(spec, [batch_of(), batch_of(**changes)])["a"])


def test_class_probabilities_are_no_class_indices() -> None:
    batch = {**batch_of(), "d": SCORES[:8].softmax(1)}
    assert math.isfinite(evaluated(spec_of(), [batch] * 2)["loss"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 5), (1, 7), (6, 3, 4, 5), (3, 0)])
def test_rows_with_a_number_that_is_not_finite(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rule = LabelRule("w", Ref("labels", "x"))
    for value in (math.nan, math.inf, -math.inf, None):
        values, expected = torch.full(shape, torch.finfo(dtype).max, dtype=dtype), 0  # whose sum is infinite
        if value is not None and values.numel():
            values[0] = value
            values.view(-1)[-1], expected = value, min(shape[0], 2)
        assert int(rule.count(values)) == expected


def test_classes_in_real_numbers() -> None:
    rule = LabelRule("w", Ref("labels", "y"), classes=3, ignored=(-1.0,))
    assert int(rule.count(torch.tensor([0.0, 2.0, 2.5, 3.0, -1.0, math.nan]))) == 3


def test_handlers_may_handle_numbers_that_are_not_finite() -> None:
    batch = batch_of(a=((0, 0), math.nan), d=(0, 5))
    with pytest.raises(DataError, match="not among the classes") as raised:
        trained(ruled(), [batch_of(), batch], SkipNonFinite())
    assert len(raised.value.problems) == 1


def test_labels_that_nothing_takes_are_not_checked() -> None:
    spec = TaskSpec(inputs=["x"], outputs=["a"], labels=["a", "b"], unused=["b"], losses={"a": nn.MSELoss()})
    assert math.isfinite(evaluated(spec, [(AMOUNT, TRUTH, TRUTH * math.nan)])["loss"])


def test_a_loss_of_samples_needs_whole_labels() -> None:
    label, labels = TRUTH.clone(), [LabelSpec("a", missing="nan")]
    label[2, 0] = label[4, 1] = math.nan
    losses = {"a": LossSpec(lambda output, label: (output - label).abs().sum(1))}
    spec = TaskSpec(inputs=["x"], outputs=["a"], labels=labels, losses=losses)
    batches = [(AMOUNT, TRUTH), (AMOUNT, label)]
    with pytest.raises(DataError, match=r'losses\["a"\]: 2 values of "a" .* others \(in evaluation\), and'):
        evaluated(spec, batches)


def test_wrong_values_of_many_batches_of_any_form_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_FORMS", 2)
    wrong, right = batch_of(d=(0, 4)), batch_of()
    forms = [{name: each[:size] for name, each in wrong.items()} for size in (8, 5, 3, 8)]
    with pytest.raises(DataError, match=f"held {2 * sums.TOGETHER + 4} values"):
        evaluated(ruled(), [right, *[wrong] * (2 * sums.TOGETHER), *forms])


def test_ranks_raise_what_one_of_them_has_found() -> None:
    batches = [batch_of(), batch_of(d=(0, 4))]
    for error in run_ranks(2, lambda world: evaluated(ruled(), batches, world)):
        assert isinstance(error, DataError) and "held 1 value" in str(error)
