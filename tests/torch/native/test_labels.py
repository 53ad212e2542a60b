"""Slots that break a rule are counted batch by batch, and named when figures are read."""

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multifit import DataError, LabelSpec, LossSpec, MetricSpec, TaskSpec
from multifit.distributed import ALONE
from multifit.spec.terms import Ref
from multifit.torch.figures import StageFigures
from multifit.torch.labels import LabelRule
from multifit.torch.sums import TOGETHER
from tests.torch.native.results import new_figures, result

X, CLASSES, REAL = torch.randn(8, 3), torch.arange(8) % 4, torch.randn(8, 2)
SCORES, AMOUNT = torch.randn(8, 4), torch.randn(8, 2)


def clamped(output: Tensor, label: Tensor) -> Tensor:
    """A loss that takes wrong classes for others."""
    return F.cross_entropy(output, label.long().clamp(0, 3))


clamped_like: Any = functools.partial(clamped)
clamped_like.class_axis = -1  # as a loss may say itself


class Clamped(nn.CrossEntropyLoss):
    """The same as a module."""

    def forward(self, output: Tensor, label: Tensor) -> Tensor:
        return super().forward(output, torch.where(label == self.ignore_index, label, label.clamp(0, 3)))


def spec_of(loss: Any = None, d: Any = "d", a: Any = "a", **options: Any) -> TaskSpec:
    return TaskSpec(
        inputs=["x"],
        outputs=["d", "a"],
        labels=[d, a],
        losses={"d": LossSpec(loss or Clamped(), **options), "a": nn.L1Loss(reduction="none")},
        metrics={"seen": MetricSpec("mae", "a", "a")},
    )


def slots(**changes: tuple[Any, float]) -> dict[str, Tensor]:
    """The slots of a batch, with one value changed in each that is named."""
    given = {"x": X.clone(), "d": CLASSES.clone(), "a": REAL.clone()}
    for name, (index, value) in changes.items():
        given[name][index] = value
    return given


def read(spec: TaskSpec, *batches: dict[str, Tensor], **options: Any) -> StageFigures:
    figures = new_figures(spec, **options)
    for each in batches:
        figures.add(result(spec, each, {"d": SCORES, "a": AMOUNT}))
    return figures


WRONG: dict[str, tuple[TaskSpec, dict[str, Any], str]] = {
    "too large": (
        spec_of(),
        {"d": (3, 4)},
        'losses["d"]: in training, the label "d" held 1 value '
        "not among the classes 0 … 3: fix the labels; if a value means ",
    ),
    "too small": (
        spec_of(),
        {"d": ([0, 2], -1)},
        'losses["d"]: in training, the label "d" held 2 values',
    ),
    "another is ignored": (
        spec_of(Clamped(ignore_index=9)),
        {"d": (0, -100)},
        'losses["d"]: in training, the label "d" held 1',
    ),
    "declared": (
        spec_of(d=LabelSpec("d", classes=3)),
        {},
        'labels["d"]: in training, the label "d" held 2 values',
    ),
    "an axis": (spec_of(clamped_like), {"d": (0, 7)}, 'losses["d"]: in training, the label "d" held 1 value'),
    "weighted": (
        spec_of(lambda o, y: clamped(o, y).expand(8), class_weights=[1, 2, 1, 1]),
        {"d": (0, 5)},
        'losses["d"]: in training, the label "d" held 1 value',
    ),
    "NaN": (
        spec_of(),
        {"a": ((1, 1), math.nan)},
        'labels["a"] held NaN or infinity in 1 row, in training; mend the data',
    ),
    "infinity": (
        spec_of(),
        {"x": ([0, 3], -math.inf)},
        'inputs["x"] held NaN or infinity in 2 rows, in training',
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_counted_and_named(name: str) -> None:
    spec, changes, message = WRONG[name]
    right = {**slots(), **({"d": CLASSES % 3} if name == "declared" else {})}
    figures = read(spec, right, slots(**changes), right)
    with pytest.raises(DataError) as raised:
        figures.read()
    (problem,) = raised.value.problems
    assert problem.message.startswith(message)
    figures.reset()
    for _ in range(2):
        figures.add(result(spec, right, {"d": SCORES, "a": AMOUNT}))
    assert math.isfinite(figures.read()["loss"])


RIGHT: dict[str, tuple[TaskSpec, dict[str, Any]]] = {
    "ignored": (spec_of(), {"d": (0, -100)}),
    "ignored by name": (spec_of(Clamped(ignore_index=77)), {"d": (0, 77)}),
    "of a function": (spec_of(functools.partial(F.cross_entropy, ignore_index=-3)), {"d": (0, -3)}),
    "declared": (spec_of(lambda o, y: clamped(o, y), d=LabelSpec("d", classes=4, ignore=-5)), {"d": (0, -5)}),
    "margins": (spec_of(nn.MultiMarginLoss()), {}),
    "unknown": (spec_of(lambda o, y: clamped(o, y)), {"d": (0, 9)}),
    "by a mask": (
        spec_of(
            lambda o, y: clamped(o, y).expand(8),
            d=LabelSpec("d", ignore=-1),
            sample_weight="a",
            class_weights=[1, 1, 1, 1],
        ),
        {"d": (0, -1)},
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_values_that_are_valid(name: str) -> None:
    spec, changes = RIGHT[name]
    rules = new_figures(spec).label_rules({"d": SCORES, "a": AMOUNT}, slots(), {"d": [], "a": []})
    given = slots(**changes)
    assert sum(int(rule.count(given[rule.label.name])) for rule in rules) == 0
    assert [rule.label.name for rule in rules if rule.classes] == ([] if name == "unknown" else ["d"])


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 5), (1, 7), (6, 3, 4, 5), (3, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_rows_with_a_number_that_is_not_finite(
    shape: tuple[int, ...], dtype: torch.dtype, value: float | None
) -> None:
    values = torch.full(shape, torch.finfo(dtype).max, dtype=dtype)  # whose sum would be infinite
    expected = 0
    if value is not None and values.numel():
        values[0] = value
        values.view(-1)[-1], expected = value, min(shape[0], 2)
    assert int(LabelRule("w", Ref("labels", "x")).count(values)) == expected
    assert int(LabelRule("w", Ref("labels", "x")).count(values.T if values.dim() == 2 else values)) >= bool(
        expected
    )


def test_classes_in_real_numbers() -> None:
    rule = LabelRule("w", Ref("labels", "y"), classes=3, ignored=(-1.0,))
    assert int(rule.count(torch.tensor([0.0, 2.0, 2.5, 3.0, -1.0, math.nan]))) == 3


def test_class_probabilities_are_no_class_indices() -> None:
    spec = spec_of(nn.CrossEntropyLoss())
    given = {**slots(), "d": SCORES.softmax(1)}
    rules = new_figures(spec).label_rules({"d": SCORES, "a": AMOUNT}, given, {"d": []})
    assert [rule.label.name for rule in rules] == ["x", "d", "a"]


def test_a_label_that_is_left_out_has_no_rule() -> None:
    given = {**slots(), "d": None}
    rules = new_figures(spec_of()).label_rules({"d": SCORES, "a": AMOUNT}, given, {"d": [], "a": []})
    assert {rule.label.name for rule in rules} == {"x", "a"}


def test_handlers_may_handle_numbers_that_are_not_finite() -> None:
    given = slots(a=((0, 0), math.nan), d=(0, 5))
    figures = read(spec_of(), given, finite_only=False)
    with pytest.raises(DataError, match="not among the classes") as raised:
        figures.read()
    assert len(raised.value.problems) == 1


def test_slots_that_nothing_takes_are_not_checked() -> None:
    spec = TaskSpec(
        inputs=["x"],
        outputs=["a"],
        labels=["a", "b"],
        unused=["b"],
        losses={"a": nn.MSELoss()},
        batch=["x", "a", "b"],
    )
    figures = new_figures(spec)
    figures.add(result(spec, {"x": None, "a": REAL, "b": REAL * math.nan}, {"a": AMOUNT}))
    assert math.isfinite(figures.read()["loss"])


def test_parts_of_labels_that_are_missing() -> None:
    """A loss of whole samples needs whole labels, and one of values does not."""
    label = REAL.clone()
    label[2, 0] = label[4, 1] = math.nan
    row_sum = lambda output, label: (output - label).abs().sum(1)  # noqa: E731
    for loss, wrong in ((row_sum, True), (nn.L1Loss(), False)):
        spec = TaskSpec(
            inputs=["x"], outputs=["a"], labels=[LabelSpec("a", missing="nan")], losses={"a": LossSpec(loss)}
        )
        figures = new_figures(spec, "evaluate")
        for each in (REAL, label):
            figures.add(result(spec, {"a": each}, {"a": AMOUNT}))
        if not wrong:
            assert math.isfinite(figures.read()["a"])
            continue
        with pytest.raises(
            DataError, match=r'losses\["a"\]: 2 values of "a" .* others \(in evaluation\), and'
        ):
            figures.read()


def test_counts_of_many_batches_are_saved_and_merged() -> None:
    spec = spec_of()
    numbers = range(1, 3 * TOGETHER)
    figures = read(spec, *[slots(d=(0, 4)) if number > 2 * TOGETHER - 3 else slots() for number in numbers])
    for _ in range(2):  # reading changes nothing
        with pytest.raises(DataError, match=f"held {TOGETHER + 2} values"):
            figures.read()
    figures.add(result(spec, slots(d=(0, 4)), {"d": SCORES, "a": AMOUNT}))
    state, twin = figures.state(), read(spec, slots())
    twin.reset()
    twin.load(state)
    twin.merge(state)
    twin.add(result(spec, slots(), {"d": SCORES, "a": AMOUNT}))
    with pytest.raises(DataError, match=f"held {2 * TOGETHER + 6} values"):
        twin.read()


def test_rules_are_found_once_for_each_form(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    spec, figures = spec_of(), new_figures(spec_of())
    monkeypatch.setattr("multifit.torch.figures.label_rules", lambda *each: made.append(1) or [])
    for size in [8, 8, 8, *range(1, 8), *range(1, 8)]:
        given = {name: each[:size] for name, each in slots().items()}
        figures.add(result(spec, given, {"d": SCORES[:size], "a": AMOUNT[:size]}))
    assert len(made) == 8
    monkeypatch.setattr("multifit.torch.figures.MOST_FORMS", 2)
    for size in range(1, 5):
        given = {name: each[:size].double() for name, each in slots().items() if name != "d"}
        figures.add(result(spec, {**given, "d": CLASSES[:size]}, {"d": SCORES[:size], "a": AMOUNT[:size]}))
    assert len(figures._forms) <= 2


def test_ranks_raise_together() -> None:
    """A rank that has seen no such batch raises what another one has found."""
    figures = read(spec_of(), slots(d=(0, 4)))
    figures.join(ALONE)
    with pytest.raises(DataError, match="held 1 value"):
        figures.read()
