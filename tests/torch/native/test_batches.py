"""Batches of whatever a loader yields become named tensors; steady batches are not checked again."""

from collections import namedtuple
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from multifit import DataError, LabelSpec, LossSpec, Shards, SpecError, TaskSpec
from multifit.engines.batch import CurrentShare, ReadShare, Slice
from multifit.engines.splitter import Seen, TaskSplitter
from multifit.sampling import TaskBatch
from multifit.torch.batch import Batch, BatchSplitter, CarriedState, ValueWeights

CPU = torch.device("cpu")
X = torch.arange(12.0).reshape(4, 3)
Y = torch.tensor([2, 0, 1, 1])


class Foreign:
    """An array of another library, which gives a NumPy array by a method."""

    def __init__(self, array: Any, method: str, stype: str = "default") -> None:
        self.stype, self.size = stype, len(array)
        setattr(self, method, lambda: np.asarray(array))
        self.to_dlpack_for_read = lambda: torch.to_dlpack(array)
        if method == "toarray":
            self.tocsr = None


def task(**options: Any) -> TaskSpec:
    options = {"labels": ["y"], **options}
    losses = options.pop("losses", {"l": LossSpec(nn.CrossEntropyLoss(), "o", "y")})
    return TaskSpec(inputs=["x"], outputs=["o"], losses=losses, **options)


SEEN = {each.name for each in fields(Seen)}


def splitter(spec: TaskSpec | None = None, lines: list[str] | None = None, **options: Any) -> BatchSplitter:
    seen = Seen(**{name: options.pop(name) for name in [*options] if name in SEEN})
    real = options.pop("real", torch.float32)
    log_once = ([] if lines is None else lines).append
    return BatchSplitter(spec or task(), [CPU], real, log_once, seen, **options)


def check(batch: Batch, x: Any = X, y: Any = Y) -> None:
    assert list(batch.slots) == ["x", "y"] and batch.samples == batch.total == len(x)
    for name, expected in {"x": x, "y": y}.items():
        tensor = batch.slots[name]
        assert tensor is not None and tensor.dtype == expected.dtype
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0)


read_only = Y.numpy().copy()
read_only.flags.writeable = False
RAW = {
    "tensors": (X, Y),
    "a list": [X, Y],
    "by name": {"y": Y, "x": X},
    "a named tuple": namedtuple("Pair", "y x")(Y, X),
    "nested": ((X,), [Y]),
    "NumPy": (X.numpy(), Y.numpy()),
    "lists of numbers": (X.tolist(), Y.tolist()),
    "lists of numbers by name": {"x": X.tolist(), "y": Y.tolist()},
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
    for _ in range(3):
        batch = several.split(RAW[kind])
        check(batch)
        assert batch.raw is RAW[kind]


def test_batches_of_several_forms_take_turns() -> None:
    several = splitter()
    bound: list[Any] = []
    bind, several.bind = several.bind, lambda raw: bound.append(raw) or bind(raw)  # type: ignore[method-assign]
    for _ in range(3):
        for size in (4, 2, 3):
            check(several.split((X[:size], Y[:size])), X[:size], Y[:size])
            check(several.split({"y": Y[:size], "x": X[:size]}), X[:size], Y[:size])
    assert len(bound) == 6  # a form that came before is not bound again


def test_one_tensor_in_two_slots() -> None:
    several = splitter()
    for number in (1.0, 2.0):
        x = torch.full((4, 3), number)
        check(several.split((x, x)), x, x)
    check(several.split((X, X + 1)), X, X + 1)


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
    cast = splitter(task(labels=[LabelSpec("y", **label)]), lines, **options)
    real = options.get("real", torch.float32)
    y = torch.tensor([1, 0, 1, 1]).to(dtype)
    for _ in range(2):
        check(cast.split((X.to(real), y)), X.to(real), y.to(expected))
    names = [str(each).removeprefix("torch.") for each in (dtype, expected)]
    line = f'the slot "y" is {names[0]} and is cast to {names[1]}, batch by batch'
    assert lines == ([line] if dtype != expected and not label else [])
    assert cast.seen.signatures == [{"x": ((4, 3), real), "y": ((4,), expected)}]


def test_inputs_of_whole_numbers_stay() -> None:
    for dtype, expected in [("uint8", "uint8"), ("int32", "int32"), ("uint16", "int32"), ("uint64", "int64")]:
        x = splitter().split((X.numpy().astype(dtype), Y)).slots["x"]
        assert x is not None and x.dtype == getattr(torch, expected) and x.tolist() == X.tolist()


def test_a_slot_that_was_real_stays_real() -> None:
    for labels in (True, False):
        known: Any = [{"x": ((4, 3), torch.float32), "y": ((4,), torch.float32)}]
        options: dict[str, Any] = {"signatures": known} if labels else {"before": [known]}
        check(splitter(labels=labels, **options).split((X, Y)), X, Y.float())


def test_casts_that_the_check_adds_hold_from_then_on() -> None:
    casts: dict[str, torch.dtype] = {}
    changed = splitter(casts=casts)
    check(changed.split((X, Y)))
    casts["y"] = torch.float32
    for _ in range(2):
        check(changed.split((X, Y)), X, Y.float())
    assert [each["y"] for each in changed.seen.signatures] == [((4,), torch.int64), ((4,), torch.float32)]


def test_signatures_are_the_last_ones() -> None:
    many = splitter()
    for size in [*range(1, 60), 59, 1, 2]:
        many.split((torch.ones(size, 3), torch.ones(size)))
    assert [each["x"][0][0] for each in many.seen.signatures if each["x"]] == [*range(10, 60)]


def test_samples_lie_along_another_axis() -> None:
    for raw in ((X.T, Y[None]), Shards([(X.T[:, :3], Y[None, :3]), (X.T[:, 3:], Y[None, 3:])])):
        batch = splitter(batch_axis=1).split(raw)
        assert batch.samples == 4 and batch.axis == 1
        assert torch.equal(batch.slots["x"], X.T) and torch.equal(batch.slots["y"], Y[None])  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_rank_takes_its_share(axis: int) -> None:
    raw = (X, Y) if axis == 0 else (X.T, Y[None])
    for rank, rows in enumerate([slice(0, 2), slice(2, 3), slice(3, 4), slice(0, 0)]):
        ranks = 3 if rank < 3 else 5
        share = CurrentShare(Slice(rank if rank < 3 else 4, ranks))
        batch = splitter(current=share, batch_axis=axis).split(raw)
        assert (batch.samples, batch.total) == (len(X[rows]), 4)
        if batch.samples:
            assert torch.equal(batch.slots["x"], X[rows] if axis == 0 else X[rows].T)  # type: ignore[arg-type]
        else:
            assert batch.slots == {}


def test_a_rank_reads_its_own_part() -> None:
    for whole in (9, None):
        part = splitter(current=CurrentShare(ReadShare(whole=whole)))
        batch, empty = part.split((X, Y)), part.split(None)
        assert (batch.samples, batch.total, empty.samples, empty.total) == (4, whole, 0, whole)
        assert batch.slots["x"] is X and empty.slots == {}


def test_handlers_and_carried_state_change_the_slots() -> None:
    def change(batch: Batch) -> None:
        batch.map_slots(lambda slots: {**slots, "x": slots["x"] + 1})  # type: ignore[operator]

    def fill_in(batch: Batch) -> None:
        batch.slots["state"] = batch.slots["x"] * 2  # type: ignore[operator]

    batch = splitter(changes=[change, fill_in]).split((X, Y))
    assert torch.equal(batch.slots["state"], 2 * X + 2)  # type: ignore[arg-type]


def test_labels_may_be_left_out_when_predicting() -> None:
    inputs = splitter(labels=False, before=[[{"x": ((4, 3), torch.float32)}]])
    for raw in (X, (X,), {"x": X}):
        assert list(inputs.split(raw).slots) == ["x"]
    check(inputs.split((X, Y)))
    with pytest.raises(DataError, match="a sample of the batches before, which were \\(4, 3\\).*x\\[None\\]"):
        inputs.split(X[0])


class Broken:
    def __call__(self, batch: Any) -> Any:
        raise KeyError("z")


WRONG: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "too few": ((X,), {}, ["the batch has 1 array: (4, 3) float32", 'declared 2 slots: "x", "y"']),
    "numbers": ([1.0, 2.0, 3.0], {}, ["a list of numbers counts as one array per number"]),
    "an unknown name": ({"x": X, "Y": Y}, {}, ['no "y" (did you mean "Y"?)']),
    "strings": ({"x": X, "y": ["a", "b"]}, {}, ["\"y\" holds ['a', 'b'], which is not an array"]),
    "an array of strings": ((X, np.array(["a"] * 4)), {}, ['"y" is (4,) string, which a net cannot take']),
    "rows that differ": ({"x": [[1.0], [2.0, 3.0]], "y": Y}, {}, ['"x" holds [[1.0], [2.0, 3.0]]']),
    "masked": ((X, np.ma.masked_equal(Y.numpy(), 1)), {}, ["some of it masked", "LabelSpec"]),
    "sizes that differ": ((X, Y[:3]), {}, ["different numbers of samples along axis 0", "y (3,) int64"]),
    "no samples": ((X[:0], Y[:0]), {}, ["holds no sample"]),
    "no batch axis": ((X, Y[0]), {}, ['"y" is () int64, which has no batch axis 0']),
    "no batch": ((X, Y), {"batch_fn": lambda batch: None}, ["batch_fn returns None"]),
    "no parts": ((X, Y), {"batch_fn": lambda batch: Shards()}, ["split into no parts"]),
    "parts that differ": (
        Shards([(X, Y), (X[:, :2], Y)]),
        {},
        ['"x" of the parts', "(4, 3) float32, (4, 2)"],
    ),
    "a wrong part": (Shards([(X, Y), (X,)]), {}, ["the batch has 1 array"]),
}


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


def test_errors_of_a_batch_fn_say_where() -> None:
    with pytest.raises(KeyError, match="z") as raised:
        splitter(task(batch_fn=Broken())).split((X, Y))
    assert "batch_fn, called with batch [(4, 3) float32, (4,) int64]" in raised.value.__notes__[0]


# ------------------------------------------------------------------------------------------ several loaders


def of_tasks(labels: Any, **options: Any) -> TaskSplitter:
    losses = {name: LossSpec(nn.MSELoss(), "o", name) for name in ("a", "b")}
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=labels, losses=losses)
    slots = {"one": {"x": "x", "a": "a"}, "two": {"x": "x", "other": "b"}}
    return TaskSplitter(splitter(spec, **options), {n: splitter(spec, slots=s) for n, s in slots.items()})


def test_the_loaders_take_turns() -> None:
    turns = of_tasks(["a", "b"])
    for _ in range(2):
        one, two = (
            turns.split(TaskBatch({"one": (X, Y)})),
            turns.split(TaskBatch({"two": {"x": X, "other": Y}})),
        )
        assert one.absent == {"b"} and two.absent == {"a"}
        assert one.slots["b"] is None and torch.equal(one.slots["a"], Y)
        assert two.slots["a"] is None and torch.equal(two.slots["b"], Y)


def test_the_loaders_batches_are_joined() -> None:
    joined = of_tasks([LabelSpec("a", missing="nan"), LabelSpec("b", missing=-1)])
    batch = joined.split(TaskBatch({"one": (X[:1], Y[:1].float()), "two": (X[1:].double(), Y[1:].int())}))
    assert batch.samples == 4 and torch.equal(batch.slots["x"], X)
    assert batch.slots["a"].tolist() == [2, 0, 0, 0] and batch.slots["b"].tolist() == [0, 0, 1, 1]
    assert batch.slots["present.a"].tolist() == [1, 0, 0, 0]
    assert batch.slots["present.b"].tolist() == [0, 1, 1, 1]


def test_loaders_that_share_no_slot_are_put_together() -> None:
    spec = TaskSpec(
        inputs=["x", "z"],
        outputs=["o"],
        labels=["a", "b"],
        losses={"l": LossSpec(nn.MSELoss(), "o", "a"), "m": LossSpec(nn.MSELoss(), "o", "b")},
    )
    slots = {"one": {"x": "x", "a": "a"}, "two": {"z": "z", "b": "b"}}
    both = TaskSplitter(splitter(spec), {name: splitter(spec, slots=own) for name, own in slots.items()})
    batch = both.split(TaskBatch({"one": (X, Y), "two": (2 * X, Y + 1)}))
    assert torch.equal(batch.slots["z"], 2 * X) and torch.equal(batch.slots["b"], Y + 1)


@pytest.mark.parametrize(
    ("labels", "two", "found"),
    [
        ([LabelSpec("a", missing="nan"), LabelSpec("b", missing="nan")], (X, Y), "int64, which has no NaN"),
        (
            [LabelSpec("a", missing=9), LabelSpec("b", missing=9)],
            (X[:, :2], Y),
            '(4, 2) float32 of "two"; give',
        ),
        ([LabelSpec("a", missing=9), LabelSpec("b", missing=9)], (X,), "the batch has 1 array"),
    ],
)
def test_batches_that_cannot_be_joined(labels: Any, two: Any, found: str) -> None:
    raw = TaskBatch({"one": (X, Y), "two": two})
    with pytest.raises(DataError) as raised:
        of_tasks(labels).split(raw)
    assert found in str(raised.value)


def test_a_slot_that_no_loader_fills_is_none() -> None:
    labels = [LabelSpec("a", missing=9), LabelSpec("b", missing=9)]
    parts = of_tasks(labels).join({"one": {"x": X, "a": None}, "two": {"x": X, "a": None}})
    assert parts[0]["a"] is None and parts[0]["x"].shape == (8, 3) and parts[1] == []


# -------------------------------------------------------------------------------------- weights of values

MATRIX = torch.arange(8).reshape(4, 2) % 3
WEIGHTS: dict[
    str, tuple[dict[str, Any], Any, Any, Any]
] = {  # the loss's options, label, sample weights, found
    "of classes": ({"class_weights": [1.0, 2.0, 4.0]}, Y, None, [4, 1, 2, 2]),
    "of classes beyond": ({"class_weights": [1.0, 2.0]}, Y, None, [2, 1, 2, 2]),
    "of some classes": ({"class_weights": {1: 3.0}}, Y, None, [1, 1, 3, 3]),
    "of ignored labels": ({"class_weights": {1: 3.0}}, torch.tensor([-100, 1, 2, 9]), None, [1, 3, 1, 1]),
    "of real labels": ({"class_weights": {1: 3.0}}, Y.float(), None, [1, 1, 3, 3]),
    "balanced": ({"class_weights": "balanced"}, Y, None, [0.5, 1, 2, 2]),
    "of samples": ({"sample_weight": "w"}, Y, [1.0, 2.0, 3.0, 4.0], [1, 2, 3, 4]),
    "of samples in a column": ({"sample_weight": "w"}, MATRIX, [[1.0], [2.0], [3.0], [4.0]], [1, 2, 3, 4]),
    "of values": ({"sample_weight": "w"}, MATRIX, MATRIX + 0.5, MATRIX + 0.5),
    "both": ({"class_weights": {1: 3.0}, "sample_weight": "w"}, Y, [1.0, 2.0, 3.0, 4.0], [1, 2, 9, 12]),
    "both, of values": (
        {"class_weights": {1: 3.0}, "sample_weight": "w"},
        MATRIX,
        [1.0, 2.0, 3.0, 4.0],
        [[1, 3], [2, 2], [9, 3], [4, 12]],
    ),
}


def weighted(
    options: dict[str, Any], known: Any, lines: list[str] | None = None, **more: Any
) -> BatchSplitter:
    losses = {"l": LossSpec(nn.CrossEntropyLoss(reduction="none"), "o", "y", **options)}
    labels = ["y", "w"] if "sample_weight" in options else ["y"]
    spec = task(labels=labels, losses=losses)
    written: list[str] = [] if lines is None else lines
    weights = ValueWeights(spec, torch.float64, known, written.append)
    return splitter(spec, real=torch.float64, changes=[weights.add], **more)


@pytest.mark.parametrize("case", WEIGHTS)
def test_the_values_of_a_loss_are_weighed(case: str) -> None:
    options, label, weights, expected = WEIGHTS[case]
    raw = (X, label) if weights is None else (X, label, torch.as_tensor(weights))
    several = weighted(options, {"l": [0.5, 1.0, 1.0]} if case != "balanced" else {"l": [1.0, 2.0, 0.5]})
    for _ in range(2):
        found = several.split(raw).slots["weight.l"]
        assert found is not None and found.dtype == torch.float64
        torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64))


def test_weights_of_samples_along_another_axis() -> None:
    options = {"class_weights": {1: 3.0}, "sample_weight": "w"}
    batch = weighted(options, {}, batch_axis=1).split((X.T, MATRIX.T, torch.tensor([[1.0, 2.0, 3.0, 4.0]])))
    assert batch.slots["weight.l"].tolist() == [[1, 2, 9, 4], [3, 2, 3, 12]]


def test_balanced_weights_are_one_until_they_are_counted() -> None:
    lines: list[str] = []
    known: dict[str, Any] = {}
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


# ------------------------------------------------------------------------------------------ carried state


def test_state_is_carried_until_it_is_reset() -> None:
    state = CarriedState({"h": (2, 0, 3)}, [CPU], torch.float64)
    batch = Batch(None, 4)
    state.fill_in(batch)
    assert batch.slots["h"].dtype == torch.float64 and torch.equal(
        batch.slots["h"], torch.zeros(2, 4, 3).double()
    )
    output = nn.Parameter(torch.ones(2, 4, 3))
    state.keep(batch, [{"h": output, "o": X}])
    state.keep(Batch(None, 0), [])  # a rank without samples keeps what it has
    with torch.no_grad():
        output.zero_()
    after = Batch(None, 4)
    state.fill_in(after)
    assert torch.equal(after.slots["h"], torch.ones(2, 4, 3).double()) and not after.slots["h"].requires_grad
    restored = CarriedState({"h": (2, 0, 3)}, [CPU], torch.float64)
    restored.load(state.state())
    restored.fill_in(batch)
    assert torch.equal(batch.slots["h"], after.slots["h"])
    with pytest.raises(
        DataError, match="gets 3 samples of a batch, but the state of the previous batch has 4"
    ):
        state.fill_in(Batch(None, 3))
    state.reset()
    assert state.state() == []
    with pytest.raises(
        SpecError, match=r'state: "h" is \(2, 4, 3\) float64 as an input, but the output "h" is'
    ):
        state.keep(after, [{"h": X}])
