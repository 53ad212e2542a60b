"""Batches of whatever a loader yields become named tensors, with weights and where labels are missing."""

from collections import namedtuple
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from multifit import DataError, LabelSpec, LossSpec, Shards, TaskSpec
from multifit.engines.batch import CurrentShare, ReadShare, Slice
from multifit.engines.splitter import Seen, TaskSplitter
from multifit.sampling import TaskBatch
from multifit.torch.batch import Batch, BatchSplitter, ValueWeights

CPU = torch.device("cpu")
X = torch.arange(12.0).reshape(4, 3)
Y = torch.tensor([2, 0, 1, 1])
SEEN = {each.name for each in fields(Seen)}


def task(*labels: Any, **options: Any) -> TaskSpec:
    labels = labels or ("y",)
    losses = {"l": LossSpec(nn.CrossEntropyLoss(reduction="none"), "o", "y", **options.pop("loss", {}))}
    return TaskSpec(inputs=["x"], outputs=["o"], labels=labels, **{"losses": losses, **options})


def splitter(spec: TaskSpec | None = None, lines: list[str] | None = None, **options: Any) -> BatchSplitter:
    seen = Seen(**{name: options.pop(name) for name in [*options] if name in SEEN})
    real, log = options.pop("real", torch.float32), ([] if lines is None else lines).append
    return BatchSplitter(spec or task(), [CPU], real, log, seen, **options)


def check(batch: Batch, x: Any = X, y: Any = Y) -> None:
    assert list(batch.slots) == ["x", "y"] and batch.samples == batch.total == len(x)
    for name, expected in {"x": x, "y": y}.items():
        torch.testing.assert_close(batch.slots[name], expected, rtol=0, atol=0)  # and the dtype


# ---- forms of batches


class Foreign:
    """An array of another library, which gives a NumPy array by a method."""

    def __init__(self, array: Any, method: str, stype: str = "default") -> None:
        self.stype, self.size = stype, len(array)
        setattr(self, method, lambda: np.asarray(array))
        self.to_dlpack_for_read = lambda: torch.to_dlpack(array)
        if method == "toarray":
            self.tocsr = None


read_only = Y.numpy().copy()
read_only.flags.writeable = False
RAW: dict[str, Any] = {
    "tensors": (X, Y),
    "by name": {"y": Y, "x": X},
    "a named tuple": namedtuple("Pair", "y x")(Y, X),
    "nested": ((X,), [Y]),
    "NumPy": (X.numpy(), Y.numpy()),
    "lists of numbers": (X.tolist(), Y.tolist()),
    "arrays of MXNet": (Foreign(X, "asnumpy"), Foreign(Y, "asnumpy")),
    "sparse arrays of MXNet": (Foreign(X, "asnumpy", "csr"), Foreign(Y, "asnumpy")),
    "an iterator's arrays of MXNet": SimpleNamespace(
        data=[Foreign(X, "asnumpy")], label=[Foreign(Y, "asnumpy")]
    ),
    "sparse": (Foreign(X, "toarray"), Y),
    "read-only": (X.numpy(), read_only),
    "backwards": (X.flip(0).numpy()[::-1], Y.flip(0).numpy()[::-1]),
    "other bytes": (X.numpy().astype(">f4"), Y.numpy().astype(">i8")),
    "a column": (np.asfortranarray(X.numpy()), Y.numpy()),
    "doubles": (X.numpy().astype("float128"), Y.numpy().astype("int16")),
    "unsigned": (X.double(), Y.numpy().astype("uint32")),
    "an iterator's": SimpleNamespace(
        provide_data=[("x", (4, 3))], provide_label=[("y", (4,))], data=[X.numpy()], label=[Y.numpy()], pad=0
    ),
    "a devices' batches": [
        SimpleNamespace(provide_data=None, data=[X[:2], Y[:2]], pad=0),
        SimpleNamespace(provide_data=None, data=[X[[2, 3, 3]], Y[[2, 3, 3]]], pad=1),
    ],
    "parts": Shards([(X[:1], Y[:1]), {"y": Y[1:].int(), "x": X[1:].numpy()}]),
}


@pytest.mark.parametrize("kind", RAW)
def test_a_batch_is_named_and_cast(kind: str) -> None:
    several = splitter()
    for _ in range(3):  # later ones are not checked again
        batch = several.split(RAW[kind])
        check(batch)
        assert batch.raw is RAW[kind]


def test_batches_of_several_forms_take_turns() -> None:
    several, bound = splitter(), list[Any]()
    bind, several.bind = several.bind, lambda raw: bound.append(raw) or bind(raw)  # type: ignore[method-assign]
    for _ in range(3):
        for size in (4, 2, 3):
            check(several.split((X[:size], Y[:size])), X[:size], Y[:size])
            check(several.split({"y": Y[:size], "x": X[:size]}), X[:size], Y[:size])
    assert len(bound) == 6  # a form that came before is not bound again
    check(splitter().split((X, X)), X, X)  # one tensor in two slots


# given dtype, options of the label, of the splitter, and the dtype that the label has then
CASTS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], torch.dtype]] = {
    "whole numbers": (torch.int32, {}, {}, torch.int64),
    "small ones": (torch.uint8, {}, {}, torch.int64),
    "already": (torch.int64, {}, {}, torch.int64),
    "truth": (torch.bool, {}, {}, torch.bool),
    "real numbers": (torch.float64, {}, {}, torch.float32),
    "half": (torch.float16, {}, {}, torch.float32),
    "of a net in float64": (torch.float32, {}, {"real": torch.float64}, torch.float64),
    "declared": (torch.float64, {"dtype": "int32"}, {}, torch.int32),
    "by the check": (torch.int64, {}, {"casts": {"y": torch.float32}}, torch.float32),
}


@pytest.mark.parametrize("case", CASTS)
def test_labels_are_cast_and_that_is_logged_once(case: str) -> None:
    dtype, label, options, expected = CASTS[case]
    lines: list[str] = []
    cast = splitter(task(LabelSpec("y", **label)), lines, **options)
    real, y = options.get("real", torch.float32), torch.tensor([1, 0, 1, 1]).to(dtype)
    for _ in range(2):
        check(cast.split((X.to(real), y)), X.to(real), y.to(expected))
    before, after = (str(each).removeprefix("torch.") for each in (dtype, expected))
    line = f'the slot "y" is {before} and is cast to {after}, batch by batch'
    assert lines == ([line] if dtype != expected and not label else [])


def test_inputs_of_whole_numbers_stay() -> None:
    for dtype, expected in [("uint8", "uint8"), ("int32", "int32"), ("uint16", "int32"), ("uint64", "int64")]:
        check(splitter().split((X.numpy().astype(dtype), Y)), X.to(getattr(torch, expected)))


@pytest.mark.parametrize("labels", [True, False])
def test_a_slot_that_was_real_stays_real(labels: bool) -> None:
    known: Any = [{"x": ((4, 3), torch.float32), "y": ((4,), torch.float32)}]
    options: dict[str, Any] = {"signatures": known} if labels else {"before": [known]}
    check(splitter(labels=labels, **options).split((X, Y)), X, Y.float())


def test_samples_lie_along_another_axis() -> None:
    for raw in ((X.T, Y[None]), Shards([(X.T[:, :3], Y[None, :3]), (X.T[:, 3:], Y[None, 3:])])):
        batch = splitter(batch_axis=1).split(raw)
        assert batch.samples == 4 and batch.axis == 1
        torch.testing.assert_close([*batch.slots.values()], [X.T, Y[None]])


def test_labels_may_be_left_out_when_predicting() -> None:
    inputs = splitter(labels=False, before=[[{"x": ((4, 3), torch.float32)}]])
    assert [list(inputs.split(raw).slots) for raw in (X, (X,), {"x": X})] == [["x"]] * 3
    check(inputs.split((X, Y)))
    with pytest.raises(DataError, match="a sample of the batches before, which were \\(4, 3\\).*x\\[None\\]"):
        inputs.split(X[0])


# rank, number of ranks, and the rows
@pytest.mark.parametrize(
    ("rank", "ranks", "rows"), [(0, 3, slice(2)), (1, 3, slice(2, 3)), (2, 3, slice(3, 4)), (4, 5, slice(0))]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_rank_takes_its_share(axis: int, rank: int, ranks: int, rows: slice) -> None:
    share = CurrentShare(Slice(rank, ranks))
    batch = splitter(current=share, batch_axis=axis).split((X.T, Y[None]) if axis else (X, Y))
    assert (batch.samples, batch.total) == (len(X[rows]), 4)
    found = [each.T if axis else each for each in batch.slots.values() if each is not None]
    torch.testing.assert_close(found, [X[rows], Y[rows, None] if axis else Y[rows]] if batch.samples else [])


@pytest.mark.parametrize("whole", [9, None])
def test_a_rank_reads_its_own_part(whole: int | None) -> None:
    part = splitter(current=CurrentShare(ReadShare(whole=whole)))
    batch, empty = part.split((X, Y)), part.split(None)
    assert (batch.samples, batch.total, empty.samples, empty.total) == (4, whole, 0, whole)
    assert batch.slots["x"] is X and empty.slots == {}


# fmt: off
WRONG: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "too few": ((X,), {}, ["the batch has 1 array: (4, 3) float32", 'declared 2 slots: "x", "y"']),
    "numbers": ([1.0, 2.0, 3.0], {}, ["a list of numbers counts as one array per number"]),
    "strings": ({"x": X, "y": ["a", "b"]}, {}, ["\"y\" holds ['a', 'b'], which is not an array"]),
    "an array of strings": ((X, np.array(["a"] * 4)), {}, ['"y" is (4,) string, which a net cannot take']),
    "rows that differ": ({"x": [[1.0], [2.0, 3.0]], "y": Y}, {}, ['"x" holds [[1.0], [2.0, 3.0]]']),
    "masked": ((X, np.ma.masked_equal(Y.numpy(), 1)), {}, ["some of it masked", "LabelSpec"]),
    "sizes that differ": ((X, Y[:3]), {}, ["different numbers of samples along axis 0", "y (3,) int64"]),
    "no batch axis": ((X, Y[0]), {}, ['"y" is () int64, which has no batch axis 0']),
    "no batch": ((X, Y), {"batch_fn": lambda batch: None}, ["batch_fn returns None"]),
    "no parts": ((X, Y), {"batch_fn": lambda batch: Shards()}, ["split into no parts"]),
    "parts that differ": (Shards([(X, Y), (X[:, :2], Y)]), {}, ['"x" of the parts', "(4, 3) float32, (4,"]),
}
# fmt: on


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_batch(case: str) -> None:
    raw, options, found = WRONG[case]
    with pytest.raises(DataError) as raised:
        splitter(task(**options)).split(raw)
    assert all(each in str(raised.value) for each in found), raised.value


@pytest.mark.parametrize(
    "raw", [(X.int(), Y), (X[:, None], Y), (X, Y[:, None, None, None].expand(4, 1, 2, 1))]
)
def test_batches_keep_the_form_of_the_first(raw: Any) -> None:
    several = splitter()
    several.split((X, Y))
    several.split((X[:2], Y[:2, None]))  # axes of length 1 do not matter to losses
    with pytest.raises(DataError, match="but was .* in the first batch"):
        several.split(raw)


# ---- several loaders


def of_tasks(labels: Any) -> TaskSplitter:
    losses = {name: LossSpec(nn.MSELoss(), "o", name) for name in ("a", "b")}
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=labels, losses=losses)
    slots = {"one": {"x": "x", "a": "a"}, "two": {"x": "x", "other": "b"}}
    return TaskSplitter(splitter(spec), {name: splitter(spec, slots=own) for name, own in slots.items()})


def test_the_loaders_batches_are_joined() -> None:
    joined = of_tasks([LabelSpec("a", missing="nan"), LabelSpec("b", missing=-1)])
    batch = joined.split(TaskBatch({"one": (X[:1], Y[:1].float()), "two": (X[1:].double(), Y[1:].int())}))
    assert batch.samples == 4 and torch.equal(batch.slots["x"], X)
    found = {name: each.tolist() for name, each in batch.slots.items() if name != "x"}
    assert found == {
        "a": [2, 0, 0, 0], "b": [0, 0, 1, 1], "present.a": [1, 0, 0, 0], "present.b": [0, 1, 1, 1]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("missing", "two", "found"),
    [
        ("nan", (X, Y), "int64, which has no NaN"),
        (9, (X[:, :2], Y), '(4, 2) float32 of "two"; give'),
        (9, (X,), "the batch has 1 array"),
    ],
)
def test_batches_that_cannot_be_joined(missing: Any, two: Any, found: str) -> None:
    with pytest.raises(DataError) as raised:
        labels = [LabelSpec(name, missing=missing) for name in "ab"]
        of_tasks(labels).split(TaskBatch({"one": (X, Y), "two": two}))
    assert found in str(raised.value)


# ---- weights of values

MATRIX = torch.arange(8).reshape(4, 2) % 3
FOUR, IGNORING = [1.0, 2.0, 3.0, 4.0], torch.tensor([-100, 1, 2, 9])
# the loss's options, label, sample weights, found
WEIGHTS: dict[str, tuple[dict[str, Any], Any, Any, Any]] = {
    "of classes": ({"class_weights": [1.0, 2.0, 4.0]}, Y, None, [4, 1, 2, 2]),
    "of classes beyond": ({"class_weights": [1.0, 2.0]}, Y, None, [2, 1, 2, 2]),
    "of some classes": ({"class_weights": {1: 3.0}}, Y, None, [1, 1, 3, 3]),
    "of ignored labels": ({"class_weights": {1: 3.0}}, IGNORING, None, [1, 3, 1, 1]),
    "of real labels": ({"class_weights": {1: 3.0}}, Y.float(), None, [1, 1, 3, 3]),
    "balanced": ({"class_weights": "balanced"}, Y, None, [0.5, 1, 2, 2]),
    "of samples": ({"sample_weight": "w"}, Y, FOUR, [1, 2, 3, 4]),
    "of samples in a column": ({"sample_weight": "w"}, MATRIX, [[w] for w in FOUR], [1, 2, 3, 4]),
    "of values": ({"sample_weight": "w"}, MATRIX, MATRIX + 0.5, MATRIX + 0.5),
    "both": ({"class_weights": {1: 3.0}, "sample_weight": "w"}, Y, FOUR, [1, 2, 9, 12]),
    "both, of values": (
        {"class_weights": {1: 3.0}, "sample_weight": "w"}, MATRIX, FOUR, [[1, 3], [2, 2], [9, 3], [4, 12]]
    ),
}  # fmt: skip


def weighted(loss: dict[str, Any], known: Any, lines: list[str] | None = None, **more: Any) -> BatchSplitter:
    spec = task("y", *(["w"] if "sample_weight" in loss else []), loss=loss)
    weights = ValueWeights(spec, torch.float64, known, ([] if lines is None else lines).append)
    return splitter(spec, real=torch.float64, changes=[weights.add], **more)


@pytest.mark.parametrize("case", WEIGHTS)
def test_the_values_of_a_loss_are_weighed(case: str) -> None:
    options, label, weights, expected = WEIGHTS[case]
    raw = (X, label) if weights is None else (X, label, torch.as_tensor(weights))
    several = weighted(options, {"l": [0.5, 1.0, 1.0] if case != "balanced" else [1.0, 2.0, 0.5]})
    for _ in range(2):
        found = several.split(raw).slots["weight.l"]
        torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64))


def test_weights_of_samples_along_another_axis() -> None:
    options = {"class_weights": {1: 3.0}, "sample_weight": "w"}
    batch = weighted(options, {}, batch_axis=1).split((X.T, MATRIX.T, torch.tensor([FOUR])))
    assert batch.slots["weight.l"].tolist() == [[1, 2, 9, 4], [3, 2, 3, 12]]


def test_balanced_weights_are_one_until_they_are_counted() -> None:
    lines, known = list[str](), dict[str, Any]()
    several = weighted({"class_weights": "balanced"}, known, lines)
    assert several.split((X, Y)).slots["weight.l"].tolist() == [1, 1, 1, 1]
    assert lines == ['losses["l"]: class_weights="balanced" are 1 until fit counts the labels']
    known["l"] = [2.0, 3.0, 4.0]
    assert several.split((X, Y)).slots["weight.l"].tolist() == [4, 2, 3, 3]


def test_weights_that_a_batch_lacks_or_that_do_not_fit() -> None:
    several = weighted({"sample_weight": "w"}, {}, labels=False)
    assert several.split(X).slots["weight.l"] is None
    with pytest.raises(DataError, match=r'losses\["l"\]: sample_weight "w" is \(4, 3\) float64, and the'):
        several.split((X, MATRIX, X))


# ---- labels that may be missing: where they are present is found before they are cast


def of_missing(label: dict[str, Any], **options: Any) -> BatchSplitter:
    labels, unused = [LabelSpec("y", **label)], ["m"] * (label["missing"] == "m")
    return splitter(task(*labels, *unused, unused=unused), **options)


def present(label: dict[str, Any], x: Tensor, *labels: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Return a label without what is missing, and where it is present."""
    slots = of_missing(label, **options).split((x, *labels)).slots
    return slots["y"], slots["present.y"]  # type: ignore[return-value]


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
}


@pytest.mark.parametrize("case", SOUGHT)
def test_what_is_missing_is_found_before_labels_are_cast(case: str) -> None:
    dtype, label, options, missing, expected = SOUGHT[case]
    several = of_missing({"missing": missing, **label}, **options)
    for number in range(3):
        y = torch.tensor([3, np.nan if missing == "nan" else missing, 1, 100][number:]).to(dtype)
        slots: Any = several.split((X[number:], y)).slots
        assert slots["y"].dtype == expected and slots["present.y"].dtype == torch.float32
        assert slots["y"].tolist() == [3, 0, 1, 100][number:]
        assert slots["present.y"].tolist() == [1, 0, 1, 1][number:]


def test_doubles_of_floats_are_compared_as_floats() -> None:
    y = torch.tensor([1.0, -999.9]).double()  # the nearest float32, which is another float64
    assert present({"missing": -999.9}, X[:2], y)[1].tolist() == [1, 0]


@pytest.mark.parametrize("missing", [-999, -1, 0, 0.5, 25, 256, 2.0**40])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.float16, torch.bool])
def test_a_number_is_missing_where_the_label_is_that_number(dtype: torch.dtype, missing: float) -> None:
    y = torch.tensor([0, 1, 25, 127]).to(dtype)
    assert torch.equal(present({"missing": missing}, X, y)[1] != 0, y.double() != missing)


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
    label, there = present({"missing": "m"}, X, y, torch.tensor(mask))
    assert there.tolist() == expected and torch.equal(label, y * torch.tensor(expected))


def test_none_stands_for_a_label_that_all_samples_lack() -> None:
    several, masked = of_missing({"missing": "nan"}), of_missing({"missing": "m"})
    several.split((X, torch.ones(4, 2)))
    for size in (4, 2):
        slots: Any = several.split((X[:size], None)).slots
        assert slots["y"].tolist() == slots["present.y"].tolist() == [[0, 0]] * size
    masked.split((X, torch.ones(4, 2), torch.ones(4)))
    for batch in ((X, torch.ones(4, 2), None), (X, None, torch.ones(4)), (X, None, None)):
        found: Any = masked.split(batch).slots["present.y"]
        assert torch.equal(found, torch.full((4, 2), float(batch[2] is not None)))


def test_other_stages_have_shown_the_shape() -> None:
    known: Any = {"y": ((2, 5), torch.int64)}
    several = of_missing({"missing": 7}, known=known)
    assert several.split((X, None)).slots["present.y"].tolist() == [[0] * 5] * 4
    several.split((X, torch.ones(4, 1, dtype=torch.int32)))
    assert known == {"y": ((4, 1), torch.int32)}


def test_labels_left_out_in_prediction_stay_out() -> None:
    inputs = of_missing({"missing": "m"}, labels=False)
    assert list(inputs.split((X,)).slots) == ["x"]
    assert inputs.split((X, torch.ones(4), None)).slots["present.y"].tolist() == [0, 0, 0, 0]


# fmt: off
CANNOT: dict[str, tuple[dict[str, Any], dict[str, Any], Any, str]] = {
    "unknown": ({"missing": "nan"}, {}, (X, None), "its shape is not known before a batch has it"),
    "another axis": ({"missing": "nan"}, {"batch_axis": 1}, (X, X),
        "need samples along axis 0, and batch_axis is 1"),
    "no NaN": ({"missing": "nan"}, {"known": {"y": ((4,), torch.int64)}}, (X, None),
        'the slot "y" is None, and the label "y" is int64, which has no NaN; give floats'),
    "no such number": ({"missing": 0.5}, {"known": {"y": ((4,), torch.uint8)}}, (X, None),
        "which has no 0.5"),
    "a mask that fits nothing": ({"missing": "m"}, {}, (X, torch.ones(4, 2), torch.ones(4, 3)),
        'labels["y"]: "m" is (4, 3) float32, and the label is (4, 2)'),
}
# fmt: on


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_missing(case: str) -> None:
    label, options, raw, found = CANNOT[case]
    with pytest.raises(DataError) as raised:
        of_missing(label, **options).split(raw)
    assert found in str(raised.value)
