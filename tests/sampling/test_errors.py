"""Loaders and samplings that cannot be used are named, all at once, and nothing moves."""

from typing import Any

import pytest

from multifit import (
    DataError,
    LossSpec,
    MultiEstimator,
    Sharded,
    SpecError,
    TaskSpec,
    TrainerSpec,
    ValidationHandler,
)
from multifit.sampling import Proportional, Ratios, RoundRobin
from tests.common.compare import assert_unchanged, snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import SILENT
from tests.common.nets import Heads, two_heads
from tests.common.specs import CE, L2, two_head_spec

from .runs import SGD, parts

import mxnet as mx  # isort: skip


class Unknown:
    """An iterable that does not know its length."""

    def __iter__(self) -> Any:
        return iter(parts()["digit"])


class Short(Unknown):
    """An iterable that yields fewer batches than its length says."""

    def __len__(self) -> int:
        return 5


class Once:
    """An iterable that can be read once, besides the check."""

    def __init__(self) -> None:
        self.reads = 0

    def __iter__(self) -> Any:
        self.reads += 1
        return iter(parts()["digit"] if self.reads < 3 else [])

    def __len__(self) -> int:
        return 3


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
        {"train_data": {"digit": Sharded(Unknown()), "size": Unknown()}},
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


def make(spec: TaskSpec | None = None, hybrid: bool = False, **options: Any) -> MultiEstimator:
    net = two_heads("hybridized" if hybrid else "hybrid")
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(ONE[0][0]))
    return MultiEstimator(net, two_head_spec() if spec is None else spec, SGD, **options)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_named(fault: str) -> None:
    changes, messages = FAULTS[fault]
    changes = {"train_data": GOOD, "epochs": 1, **changes}
    estimator = make(changes.pop("spec", None))
    before = snapshot(estimator.net)
    with pytest.raises((SpecError, DataError)) as caught:
        estimator.fit(event_handlers=SILENT, **changes)
    for message in messages:
        assert message in str(caught.value)
    assert len(caught.value.problems) == len(messages)
    assert_unchanged(estimator.net, before)
    if not {"epochs", "val_data"} & set(FAULTS[fault][0]):
        data, sampling = changes["train_data"], changes.get("sampling")
        with pytest.raises((SpecError, DataError)):
            estimator.check(data, sampling=sampling)


def test_the_same_fits_without_the_faults() -> None:
    make().fit(GOOD, GOOD, epochs=1, event_handlers=SILENT)
    data = {"digits": GOOD["digit"], "sizes": GOOD["size"]}
    make(combined()).fit(data, epochs=1, event_handlers=SILENT, sampling=RoundRobin())


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (Short, "ended after 3 batches, and its length is 5 batches; give one whose"),
        (Once, "yields no batch in pass 2 of the epoch: it can be read only once"),
    ],
)
def test_a_loader_with_fewer_batches_than_its_length(loader: Any, message: str) -> None:
    with pytest.raises(DataError, match=f'the loader "digit" {message}'):
        make().fit({**GOOD, "digit": loader()}, epochs=1, event_handlers=SILENT, sampling=RoundRobin())


def test_an_evaluation_names_the_loader_that_is_empty() -> None:
    with pytest.raises(DataError, match='data\\["digit"\\] is empty: it yields no batch'):
        make().evaluate({"digit": iter([]), "size": GOOD["size"]})
    reads = Once()
    reads.reads = 1
    with pytest.raises(DataError, match='the loader "digit" is empty'):
        make().evaluate({"digit": reads, "size": GOOD["size"]})
    with pytest.raises(DataError, match="data is an empty dict"):
        make().evaluate({})


def test_a_handlers_validation_data_must_be_read_in_every_epoch() -> None:
    data = {**GOOD, "digit": iter(list(GOOD["digit"]))}
    with pytest.raises(
        DataError, match=r'val_data\["digit"\] is a list_iterator, which can be read only once'
    ):
        make().fit(GOOD, epochs=2, event_handlers=[ValidationHandler(data)])


def test_a_later_batch_that_does_not_fit_names_its_loader() -> None:
    data = parts()
    data["size"][1] = (data["size"][1][0], data["size"][1][1], data["size"][1][1])
    with pytest.raises(DataError, match="epoch 1, batch 4, size: 1 problem found"):
        make().fit(data, epochs=1, event_handlers=SILENT, sampling=RoundRobin())


def test_a_hybridized_net_that_is_not_traced_is_refused() -> None:
    class Own(Heads):
        def forward(self, image: Any) -> Any:
            return super().forward(image)

    net = Own(digit=3, size=1)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    message = "sampling: loaders cannot take turns, as a hybridized net with a forward or hooks of"
    with pytest.raises(SpecError, match=message):
        MultiEstimator(net, two_head_spec(), SGD).fit(parts(), epochs=1, event_handlers=SILENT)


def test_a_graph_that_cannot_be_traced_is_refused() -> None:
    class Loss(mx.gluon.HybridBlock):
        __module__ = "gluoncv.loss"

        def hybrid_forward(self, F: Any, output: Any, label: Any) -> Any:
            return F.sum(F.square(output - label), axis=1) / output.shape[1]

    spec = two_head_spec(losses={"digit": CE, "size": Loss()})
    make(spec).fit(parts(), epochs=1, event_handlers=SILENT)
    estimator = make(spec, hybrid=True)
    with pytest.raises(SpecError) as caught:
        estimator.fit(parts(), epochs=1, event_handlers=SILENT)
    assert "do not hybridize the net itself but its parts" in str(caught.value)


def test_tools_for_one_loader_say_so() -> None:
    for tool in (make().find_learning_rate, make().profile):
        with pytest.raises(
            DataError, match="is a dict, not a loader; only fit, check and evaluate take dicts"
        ):
            tool(GOOD)


def test_a_figure_that_two_would_bear_is_refused() -> None:
    losses = {"digit": CE, "size": L2, "batches_size": LossSpec(L2, "size", "size")}
    estimator = MultiEstimator(two_heads(), two_head_spec(losses=losses), TrainerSpec(".*", "sgd"))
    with pytest.raises(SpecError, match='the figure "batches_size" is also that of a loss or metric'):
        estimator.fit(GOOD, epochs=1)
