"""Loaders and samplings that cannot be used are named, all at once, and nothing moves."""

from collections.abc import Callable
from typing import Any

import pytest

from multifit import (
    DataError,
    LossSpec,
    MultiEstimator,
    Sharded,
    SpecError,
    TaskSpec,
    ValidationHandler,
)
from multifit.sampling import Proportional, Ratios, RoundRobin
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import SILENT
from tests.common.nets import Heads, hybridized, two_heads
from tests.common.specs import CE, L2, two_head_spec

from .runs import estimator_of, fit, parts

import mxnet as mx  # isort: skip


class Loader:
    """An iterable of three batches that can be read `reads` times, and says that it has `length` batches."""

    def __init__(self, length: int, reads: int = 99) -> None:
        self.length, self.reads = length, reads

    def __iter__(self) -> Any:
        self.reads -= 1
        return iter(parts()["digit"] if self.reads >= 0 else [])

    def __len__(self) -> int:
        return self.length


class Unknown(Loader):
    """An iterable that does not know its length."""

    __len__ = None  # type: ignore[assignment]


def combined() -> TaskSpec:
    digit = TaskSpec(outputs="class", labels=["class"], losses={"class": CE}, inputs=["image"])
    size = TaskSpec(outputs="size", labels=["size"], losses={"size": L2}, inputs=["image"])
    return TaskSpec.combine(shared=["image"], digits=digit, sizes=size)


GOOD = parts()
ONE = in_batches(two_head_arrays().values())
WITHOUT = [(image,) for image, _ in GOOD["digit"]]
NO_LENGTH = "is a Unknown that does not know how many batches it has; give a DataLoader, a list"
DICTS = [{"image": image, "digt": digit} for image, digit in GOOD["digit"]]
BOTH = LossSpec(lambda output, digit, size: (output - size) * digit, "size", ["digit", "size"])
OWN_INPUTS = [{"digit": digit} for _, digit in GOOD["digit"]]

# what differs from a good fit, and what the message says
FAULTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an empty dict": ({"train_data": {}}, ["train_data is an empty dict; give a loader for each task"]),
    "keys that are no names": (
        {"train_data": {1: ONE}}, ['train_data is a dict with the keys "1"; give strings']),
    "several loaders": (
        {"train_data": {"digit": [], "size": 3}, "val_data": {"digit": iter(ONE), "size": []}, "epochs": 2,
         "sampling": Ratios(digit=1, sizes=2)},
        ['train_data["digit"] is empty: it yields no batch', 'train_data["size"] is 3, which yields no bat',
         'there is no loader "sizes" (did you mean "size"?)', 'the loader "size" has no ratio',
         'val_data["digit"] is a list_iterator, which can be read only once', 'val_data["size"] is empty']),
    "a loader in a dict": (
        {"train_data": {"digit": {"a": ONE}}}, ['train_data["digit"] is a dict, not a loader; only fit']),
    "unknown length": (
        {"train_data": {"digit": Sharded(Unknown(3)), "size": Unknown(3)}},
        [f'train_data["{name}"] {NO_LENGTH}' for name in ("digit", "size")]),
    "too few batches": ({"sampling": Proportional(batches=1)}, ["batches is 1, fewer than the 2 loaders"]),
    "no sampling": (
        {"sampling": RoundRobin}, ["RoundRobin'>; valid are Proportional(), RoundRobin(), Ratios(...)"]),
    "one loader": (
        {"train_data": ONE, "sampling": RoundRobin()},
        ["sampling is RoundRobin, which mixes several loaders, but train_data is a single one; give a "]),
    "an unknown task": (
        {"train_data": {"digt": GOOD["digit"], "size": GOOD["size"]}},
        ['train_data["digt"]: there is no task "digt" (did you mean "digit"?); tasks are the losses: '
         '"digit", "size", and its batches have 2 arrays, not all 3 slots']),
    "an unknown part": (
        {"spec": combined(), "train_data": {"digits": GOOD["digit"], "size": GOOD["size"]}},
        ['train_data["size"]: there is no task "size" (did you mean "sizes"?); tasks are the parts of th']),
    "an unknown slot": (
        {"train_data": {**GOOD, "digit": DICTS}},
        ['train_data["digit"]: its batches have "digt" (did you mean "digit"?), which the spec']),
    "too few arrays": (
        {"train_data": {**GOOD, "digit": WITHOUT}},
        ['train_data "digit": the batch has 1 array: (8, 6) float32; declared 2 slots: "image", "digit"']),
    "a label in no loader": (
        {"train_data": {"digit": GOOD["digit"]}},
        ['losses["size"]: no loader has "size", which it takes: digit has "image", "digit"; add it']),
    "inputs in one loader": (
        {"train_data": {**GOOD, "digit": OWN_INPUTS}},
        ['train_data["digit"] has no "image", which the net is called with; let all loaders have all inpu']),
    "labels that no loader has together": (
        {"spec": two_head_spec(losses={"digit": CE, "size": L2, "both": BOTH})},
        ['losses["both"]: it takes "digit", "size", which no loader has together']),
    "val_data": (
        {"val_data": {"digit": WITHOUT, "sze": GOOD["size"]}},
        ['val_data["sze"]: there is no task "sze" (did you mean "size"?)']),
    "arrays of val_data": (
        {"val_data": {"digit": WITHOUT}}, ['val_data "digit": the batch has 1 array: (8, 6) float32; decl']),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_named(fault: str) -> None:
    changes, messages = FAULTS[fault]
    changes = {"train_data": GOOD, "epochs": 1, **changes}
    estimator = estimator_of(spec=changes.pop("spec", None))
    estimator.net.initialize(mx.init.Xavier())
    estimator.net(mx.nd.array(ONE[0][0]))
    before = snapshot(estimator.net)
    with pytest.raises((SpecError, DataError)) as caught:
        estimator.fit(event_handlers=SILENT, **changes)
    for message in messages:
        assert message in str(caught.value)
    assert len(caught.value.problems) == len(messages)
    assert_unchanged(estimator.net, before)
    if not {"epochs", "val_data"} & set(FAULTS[fault][0]):
        with pytest.raises((SpecError, DataError)):
            estimator.check(changes["train_data"], sampling=changes.get("sampling"))


def test_the_same_fits_without_the_faults() -> None:
    fit(estimator_of(), GOOD, GOOD, sampling=None)
    fit(estimator_of(spec=combined()), {"digits": GOOD["digit"], "sizes": GOOD["size"]})


class Own(Heads):
    """A hybridized net with a forward of its own."""

    def forward(self, image: Any) -> Any:
        return super().forward(image)


class NotTraced(mx.gluon.HybridBlock):
    """A loss that reads a shape."""

    __module__ = "gluoncv.loss"

    def hybrid_forward(self, F: Any, output: Any, label: Any) -> Any:
        return F.sum(F.square(output - label), axis=1) / output.shape[1]


def too_wide(data: dict[str, list[Any]]) -> dict[str, list[Any]]:
    image, size = data["size"][1]
    return {**data, "size": [data["size"][0], (image, size, size), *data["size"][2:]]}


OWN_LOSS = two_head_spec(losses={"digit": CE, "size": NotTraced()})
BATCHES_SIZE = two_head_spec(losses={"digit": CE, "size": L2, "batches_size": LossSpec(L2, "size", "size")})
# By message: net, spec, and what does something with an estimator.
LATER: dict[str, tuple[Any, Any, Callable[[MultiEstimator], Any]]] = {
    'the loader "digit" ended after 3 batches, and its length is 5 batches; give one whose':
        (None, None, lambda e: fit(e, {**GOOD, "digit": Loader(5)})),
    'the loader "digit" yields no batch in pass 2 of the epoch: it can be read only once':
        (None, None, lambda e: fit(e, {**GOOD, "digit": Loader(3, reads=2)})),
    'data["digit"] is empty: it yields no batch':
        (None, None, lambda e: e.evaluate({**GOOD, "digit": iter([])})),
    'the loader "digit" is empty': (None, None, lambda e: e.evaluate({**GOOD, "digit": Loader(3, reads=1)})),
    "data is an empty dict": (None, None, lambda e: e.evaluate({})),
    'val_data["digit"] is a list_iterator, which can be read only once':
        (None, None, lambda e: fit(
            e, GOOD, None, ValidationHandler({**GOOD, "digit": iter(GOOD["digit"])}), epochs=2)),
    "epoch 1, batch 4, size: 1 problem found": (None, None, lambda e: fit(e, too_wide(GOOD))),
    "sampling: loaders cannot take turns, as a hybridized net with a forward or hooks of":
        (Own(digit=3, size=1), None, fit),
    "do not hybridize the net itself but its parts": (two_heads("hybrid"), OWN_LOSS, fit),
    'the figure "batches_size" is also that of a loss or metric': (None, BATCHES_SIZE, fit),
    "is a dict, not a loader; only fit, check and evaluate take": (None, None, lambda e: e.profile(GOOD)),
    "dict, not a loader; only fit, check and evaluate": (None, None, lambda e: e.find_learning_rate(GOOD)),
}  # fmt: skip


@pytest.mark.parametrize("message", LATER)
def test_what_goes_wrong_later_or_elsewhere_is_named(message: str) -> None:
    net, spec, act = LATER[message]
    with pytest.raises((SpecError, DataError)) as caught:
        act(estimator_of(net and hybridized(net), spec))
    assert message in str(caught.value)


def test_a_loss_that_is_not_traced_is_no_problem_of_a_net_that_is_not_hybridized() -> None:
    fit(estimator_of(spec=OWN_LOSS))
