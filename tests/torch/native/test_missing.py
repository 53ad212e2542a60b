"""Labels that may be missing: where they are present is found before they are cast."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from multifit import DataError, LabelSpec, LossSpec, TaskSpec
from multifit.engines.batch import CurrentShare, Slice
from multifit.engines.splitter import Seen
from multifit.torch.batch import BatchSplitter

X = torch.ones(4, 3)


def splitter(label: dict[str, Any], mask: bool = False, **options: Any) -> BatchSplitter:
    labels = [LabelSpec("y", **label), *(["m"] if mask else [])]
    losses = {"l": LossSpec(nn.MSELoss(), "o", "y")}
    unused = ["m"] if mask else []
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=labels, losses=losses, unused=unused)
    seen = Seen(**{name: options.pop(name) for name in ("known", "current") if name in options})
    return BatchSplitter(
        spec, [torch.device("cpu")], options.pop("real", torch.float32), print, seen, **options
    )


# the dtype of the label as given, that of the declaration or of the net, and what stands for a missing one
SOUGHT: dict[str, tuple[torch.dtype, dict[str, Any], dict[str, Any], Any, torch.dtype]] = {
    "NaN": (torch.float32, {}, {}, "nan", torch.float32),
    "NaN has no place in whole numbers": (torch.float32, {"dtype": "int32"}, {}, "nan", torch.int32),
    "nor in small ones": (torch.float64, {"dtype": "uint8"}, {}, "nan", torch.uint8),
    "nor has -1 in some": (torch.float32, {"dtype": "uint8"}, {}, -1, torch.uint8),
    "whole numbers": (torch.int16, {}, {}, -1, torch.int64),
    "more digits": (torch.float16, {"dtype": "float32"}, {}, -999.9, torch.float32),
    "those of the net": (torch.float32, {}, {"real": torch.float64}, -999.9, torch.float64),
    "fewer digits": (torch.float64, {"dtype": "float16"}, {}, -999.9, torch.float16),
    "as many": (torch.float32, {}, {}, -999.9, torch.float32),
}


@pytest.mark.parametrize("case", SOUGHT)
def test_what_is_missing_is_found_before_labels_are_cast(case: str) -> None:
    dtype, label, options, missing, expected = SOUGHT[case]
    several = splitter({"missing": missing, **label}, **options)
    for number in range(3):
        y = torch.tensor([3, np.nan if missing == "nan" else missing, 1, 100][number:]).to(dtype)
        slots = several.split((X[number:], y)).slots
        assert slots["y"].dtype == expected and slots["present.y"].dtype == torch.float32
        assert slots["y"].tolist() == [3, 0, 1, 100][number:]
        assert slots["present.y"].tolist() == [1, 0, 1, 1][number:]


def test_doubles_of_floats_are_compared_as_floats() -> None:
    y = torch.tensor([1.0, -999.9]).double()  # the nearest float32, which is another float64
    assert splitter({"missing": -999.9}).split((X[:2], y)).slots["present.y"].tolist() == [1, 0]


@pytest.mark.parametrize("missing", [-999, -1, 0, 0.5, 25, 256, 2.0**40])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.float16, torch.bool])
def test_a_number_is_missing_where_the_label_is_that_number(dtype: torch.dtype, missing: float) -> None:
    y = torch.tensor([0, 1, 25, 127]).to(dtype)
    present = splitter({"missing": missing}).split((X, y)).slots["present.y"]
    assert torch.equal(present != 0, y.double() != missing)


MASKS: dict[str, tuple[Any, Any]] = {
    "of samples": ([1, 0, 2, 1], [[1, 1], [0, 0], [1, 1], [1, 1]]),
    "in a column": ([[1.0], [0.0], [1.0], [1.0]], [[1, 1], [0, 0], [1, 1], [1, 1]]),
    "of values": ([[1, 0], [0, 0], [1, 1], [0, 1]], [[1, 0], [0, 0], [1, 1], [0, 1]]),
    "of truth": ([[True, False], [False] * 2, [True] * 2, [True] * 2], [[1, 0], [0, 0], [1, 1], [1, 1]]),
}


@pytest.mark.parametrize("case", MASKS)
def test_a_mask_says_what_is_missing(case: str) -> None:
    mask, expected = MASKS[case]
    y = torch.arange(8).reshape(4, 2) + 1
    slots = splitter({"missing": "m"}, mask=True).split((X, y, torch.tensor(mask))).slots
    assert torch.equal(slots["present.y"], torch.tensor(expected, dtype=torch.float32))
    assert torch.equal(slots["y"], y * torch.tensor(expected))


def test_a_mask_that_fits_nothing_is_refused() -> None:
    several = splitter({"missing": "m"}, mask=True)
    with pytest.raises(DataError, match=r'labels\["y"\]: "m" is \(4, 3\) float32, and the label is \(4, 2\)'):
        several.split((X, torch.ones(4, 2), torch.ones(4, 3)))


def test_nan_has_no_gradient() -> None:
    slots = splitter({"missing": "nan"}).split((X, torch.tensor([1.0, np.nan, 2.0, np.nan]))).slots
    output = torch.zeros(4, requires_grad=True)
    ((output - slots["y"]) ** 2 * slots["present.y"]).sum().backward()
    assert output.grad.tolist() == [-2, 0, -4, 0]  # type: ignore[union-attr]


def test_none_stands_for_a_label_that_all_samples_lack() -> None:
    several = splitter({"missing": "nan"})
    several.split((X, torch.ones(4, 2)))
    for size in (4, 2):
        slots = several.split((X[:size], None)).slots
        assert slots["y"].tolist() == slots["present.y"].tolist() == [[0, 0]] * size
    masked = splitter({"missing": "m"}, mask=True)
    masked.split((X, torch.ones(4, 2), torch.ones(4)))
    for batch in ((X, torch.ones(4, 2), None), (X, None, torch.ones(4)), (X, None, None)):
        present = masked.split(batch).slots["present.y"]
        assert torch.equal(present, torch.full((4, 2), float(batch[2] is not None)))


def test_other_stages_have_shown_the_shape() -> None:
    known: Any = {"y": ((2, 5), torch.int64)}
    several = splitter({"missing": 7}, known=known)
    assert several.split((X, None)).slots["present.y"].tolist() == [[0] * 5] * 4
    several.split((X, torch.ones(4, 1, dtype=torch.int32)))
    assert known == {"y": ((4, 1), torch.int32)}


def test_labels_left_out_in_prediction_stay_out() -> None:
    inputs = splitter({"missing": "m"}, mask=True, labels=False)
    assert list(inputs.split((X,)).slots) == ["x"]
    slots = inputs.split((X, torch.ones(4), None)).slots
    assert slots["present.y"].tolist() == [0, 0, 0, 0]


def test_each_rank_finds_its_own() -> None:
    share = CurrentShare(Slice(1, 2))
    batch = splitter({"missing": "nan"}, current=share).split((X, torch.tensor([1.0, 2.0, np.nan, 3.0])))
    assert batch.slots["present.y"].tolist() == [0, 1] and batch.total == 4


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], Any, str]] = {
    "unknown": ({"missing": "nan"}, {}, (X, None), "its shape is not known before a batch has it"),
    "another axis": (
        {"missing": "nan"},
        {"batch_axis": 1},
        (X, X),
        "need samples along axis 0, and batch_axis is 1",
    ),
    "no NaN": (
        {"missing": "nan"},
        {"known": {"y": ((4,), torch.int64)}},
        (X, None),
        'the slot "y" is None, and the label "y" is int64, which has no NaN; give floats',
    ),
    "no such number": (
        {"missing": 0.5},
        {"known": {"y": ((4,), torch.uint8)}},
        (X, None),
        "uint8, which has no 0.5",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_missing(case: str) -> None:
    label, options, raw, found = WRONG[case]
    with pytest.raises(DataError) as raised:
        splitter(label, **options).split(raw)
    assert found in str(raised.value)
