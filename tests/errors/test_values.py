"""Values of inputs and labels: no class, not finite, missing; in a first batch, and counted in later ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, MetricSpec, MultiEstimator, SkipNonFinite, SpecError
from multifit.losses import SegmentationCELoss, SequenceCELoss

import mxnet as mx  # isort: skip
from mxnet import nd  # isort: skip

from .setups import CE, L2, Setup, around, arrays, later, new_setup, on, stops

NAN, INF = float("nan"), float("inf")
DIGIT = ["digit", "amount"]
OF_3 = [LabelSpec("digit", classes=3), "amount"]


# ---- classes -----------------------------------------------------------------------------------------------


def with_label(setup: Setup, value: float) -> Any:
    x, digit, *rest = setup.data[0]
    changed = digit.copy()
    changed[3] = value
    return setup.but(data=[[x, changed, *rest]])


@pytest.mark.parametrize("kind", ["loss", "LabelSpec"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-2, 'the label "digit" (8,) float32 holds -2, which would be taken for class 0'),
        (3, "holds 3, which would be taken for class 2"),
        (1.9, "holds 1.9, which is not a class index and would be truncated"),
        (NAN, "holds nan, which is not a class index"),
    ],
)
def test_values_outside_the_classes(setup: Setup, value: float, text: str, kind: str) -> None:
    faulty = with_label(setup, value)
    if kind == "LabelSpec":
        squares = LossSpec(lambda a, b: nd.square(a - b.reshape((-1, 1))).sum(axis=1), "digit", "digit")
        faulty = faulty.but(labels=OF_3, losses={**setup.spec["losses"], "digit": squares})
    where = 'losses["digit"]: ' if kind == "loss" else 'labels["digit"]: '
    faulty.refused(SpecError, where, text, "classes are 0 … 2")


@pytest.mark.parametrize("labels", [DIGIT, OF_3])
def test_labels_of_every_device_are_checked(labels: list) -> None:
    setup = on(2)
    faulty = setup.but(labels=labels, data=later(setup.data, 1, {1: [3]}, 1))
    faulty.refused(SpecError, 'the label "digit" (8,) float32 holds 3, which would be taken for class 2')


LENGTHS = np.array([2, 1] * 4, "float32")
MASK = np.where(np.arange(8)[:, None] == 3, 0, 1).astype("float32")
SEQUENCES = np.array([[0, 1], [2, -1]] * 4, "float32")
MAPS = np.array([0, 1, 2, -1] * 2, "float32").reshape(8, 1, 1)
X, Y = arrays()[:2]
MASKED = [LabelSpec("digit", ignore=-1), "mask"]
# the loss, its labels, the shape of outputs, a batch as it should be, a wrong one, and the message
COUNTED: dict[str, tuple[Any, Any, Any, list[Any], list[Any], str]] = {
    "ignored by the loss": (
        LossSpec(SegmentationCELoss(ignore_label=-1)), ["digit"], (-1, 3, 1, 1), [MAPS], [MAPS - 1],
        "holds -2",
    ),
    "ignored by a label alone": (
        LossSpec(CE()), MASKED[:1], (-1, 3), [Y], [np.where(Y == 0, -1, Y)],
        "holds -1, which would be taken for class 0; classes are 0 … 2; use a loss that ignores it",
    ),
    "of weight 0": (
        LossSpec(CE(), "digit", ["digit", "mask"]), MASKED, (-1, 3),
        [np.where(MASK[:, 0] == 0, 7, Y), MASK], [np.where(MASK[:, 0] == 0, 7, Y), MASK * 0 + 1],
        "holds 7, which would be taken for class 2",
    ),
    "past a sequence's end": (
        LossSpec(SequenceCELoss(), "digit", ["digit", "length"], normalize_by="length"), ["digit", "length"],
        (-1, 1, 3), [SEQUENCES, LENGTHS], [SEQUENCES, LENGTHS * 0 + 2], "holds -1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED)
def test_only_labels_that_count_must_be_classes(case: str) -> None:
    loss, labels, shape, right, wrong, text = COUNTED[case]

    def forward(dense: Any, x: Any) -> Any:
        scores = dense(x).reshape(shape)
        return nd.concat(scores, scores, dim=1) if shape == (-1, 1, 3) else scores

    net = around(forward, labels=labels, losses={"digit": loss})
    net.but(data=[[X, *right]]).trains()
    net.but(data=[[X, *wrong]]).refused(SpecError, *text.split("; "))


def own(output: Any, label: Any) -> Any:
    return CE()(output, label)


def own_loop(estimator: MultiEstimator, data: Any) -> None:
    for batch in data:
        estimator.fit_batch(batch)
    estimator.figures()


def ways(setup: Setup, data: Any) -> list[tuple[str, Callable[[], Any]]]:
    """Return what reads data for training and for evaluation."""
    return [
        ("training", setup.but(data=data).fit),
        ("training", partial(own_loop, setup.make(), data)),
        ("evaluation", partial(setup.make().evaluate, data, [])),
        ("evaluation", setup.but(val_data=data).fit),
    ]


WRONG = [3, -1, 0.5, NAN]


@pytest.mark.parametrize(
    ("devices", "kind"), [(1, "not hybrid"), (2, "hybrid"), (1, "LabelSpec"), (2, "own")]
)
def test_classes_that_do_not_exist_are_counted_in_later_batches(kind: str, devices: int) -> None:
    setup = on(devices, kind != "not hybrid")
    if kind == "own":
        setup = setup.but(losses={"digit": own, "amount": LossSpec(lambda a, b: L2()(a, b))}, metrics={})
    setup = setup if "hybrid" in kind else setup.but(labels=OF_3)
    data = later(setup.data, 1, {6: WRONG, 8: WRONG})
    data[2] = [array[:3] for array in data[2]]
    where = 'losses["digit"]' if "hybrid" in kind else 'labels["digit"]'
    held = f'the label "digit" held {2 * len(WRONG)} values not among the classes 0 … 2'
    for stage, use in ways(setup, data)[:: 1 if kind == "hybrid" else 2]:
        stops(use, DataError, f"{where}: in {stage}, {held}")
    setup.but(data=later(setup.data, 1, {6: [2, 0]})).trains()


def test_as_many_classes_as_a_batch_has_samples() -> None:
    """The scores of every pair of samples, as in contrastive learning: the last batches are larger."""
    net = around(lambda dense, x: nd.dot(dense(x), dense(x), transpose_b=True))
    batches = [[X[:size], np.arange(size, dtype="float32")] for size in (3, 3, 3, 8, 5)]
    net.but(data=batches).trains()
    batches[-1][1][0] = 5
    stops(net.but(data=batches).fit, DataError, "held 1 value not")


@pytest.mark.parametrize("buffers", [1, 2])
def test_labels_whose_memory_is_written_again(buffers: int) -> None:
    """Each wrong value counts once."""
    setup = new_setup()
    slots = [[nd.zeros(array.shape) for array in setup.data[0]] for _ in range(buffers)]

    def reusing() -> Any:
        for number, batch in enumerate(later(setup.data, 1, {2: [3], 7: [-1, 9]})):
            for array, values in zip(slots[number % buffers], batch):
                array[:] = values
            yield slots[number % buffers]

    stops(partial(own_loop, setup.make(), reusing()), DataError, '"digit" held 3 values')


def test_labels_whose_dtype_changes() -> None:
    setup = new_setup()
    data = later(setup.data, 1, {5: [7]})
    for number, batch in enumerate(data):
        batch[:] = map(nd.array, batch)
        batch[1] = batch[1].astype("int64" if number == 3 else "int32")
    stops(setup.but(data=data).fit, DataError, '"digit" held 1 value not')


# ---- NaN and infinity --------------------------------------------------------------------------------------

WAY_OUT = "; mend the data, or leave the samples out; if "


def spoiled(batch: Any, slot: int, *values: float) -> list[np.ndarray]:
    """Return a copy of a batch; the first of a sample's numbers are `values`, in samples 2, 4, ..."""
    copies = [array.copy() for array in batch]
    for at, value in enumerate(values, start=1):
        copies[slot][2 * at].flat[0] = value
    return copies


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "NumPy": np.asarray,
    "float64": lambda array: array.astype("float64"),
    "float16": lambda array: array.astype("float16"),
    "NDArray": nd.array,
    "CSR": lambda array: nd.array(array).tostype("csr"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_are_not_finite(kind: str) -> None:
    setup, convert = on(2), KINDS[kind]
    first, *rest = later(setup.data, 0, {})
    x, *labels = spoiled(first, 0, NAN, INF, NAN)
    held = f'inputs["x"] holds NaN and infinity 3 times, in samples 2, 4, 6 (from 0){WAY_OUT}infinity is'
    spoilt = [[convert(x), *labels]]
    setup.but(data=spoilt).refused(DataError, f"1. {held}")
    setup.but(data=spoilt).refused(DataError, f"1. {held}", way="check")
    setup.but(val_data=spoilt).refused(DataError, f"1. val_data: {held}")
    data = [[convert(x), *labels] for x, *labels in (first, *rest[:4], spoiled(rest[4], 0, NAN, INF))]
    held = 'inputs["x"] held NaN or infinity in 2 rows, in training;'
    stops(new_setup().but(data=data).fit, DataError, held)


@pytest.mark.parametrize(("value", "kind"), [(NAN, "NaN"), (-INF, "infinity")])
def test_labels_that_are_not_finite(value: float, kind: str) -> None:
    setup = new_setup()
    squares = LossSpec(lambda output, label: nd.square(output - label).sum(axis=1))
    ours = setup.but(losses={**setup.spec["losses"], "amount": squares}, metrics={})
    held = f'labels["amount"] holds {kind} 1 time, in sample 2 (from 0){WAY_OUT}NaN means "no label"'
    ours.but(data=[spoiled(setup.data[0], 2, value)]).refused(DataError, held)
    data = later(setup.data, 2, {2: [value, INF]}, 3)
    held = 'labels["amount"] held NaN or infinity in 2 rows, in training; mend the data'
    stops(setup.but(data=data).fit, DataError, held)
    new_setup().but(data=data, handlers=(SkipNonFinite(),)).trains()


def test_weights_and_slots_that_only_metrics_take() -> None:
    setup = new_setup()
    takes = LossSpec(L2(), "amount", ["amount", "weight"])
    figure = MetricSpec(lambda labels, outputs: 0.0, "digit", "extra")
    setup = setup.but(
        labels=[*DIGIT, "weight", "extra"], losses={**setup.spec["losses"], "amount": takes},
        metrics={"f": figure},
    )  # fmt: skip
    ones = np.ones((8, 1), "float32")
    setup.but(data=[[*setup.data[0], ones, ones]]).trains()
    faulty = setup.but(data=[[*setup.data[0], ones * NAN, ones * INF]])
    faulty.refused(DataError, "2 problems", 'labels["weight"] holds NaN 8', 'labels["extra"] holds infinity')


def test_what_nothing_takes_or_is_declared_missing_does_not_count(setup: Setup) -> None:
    data = [spoiled([*setup.data[0], setup.data[0][2]], 3, NAN, INF)]
    setup.but(labels=[*DIGIT, "extra"], unused=["extra"], data=data).trains()
    missable = ["digit", LabelSpec("amount", missing="nan")]
    setup.but(labels=missable, data=[spoiled(setup.data[0], 2, NAN)]).trains()
    spoilt = [setup.data[0], spoiled(setup.data[0], 0, NAN)]
    setup.but(data=spoilt, handlers=(SkipNonFinite(),)).trains()


@pytest.mark.parametrize(("devices", "hybridized"), [(1, False), (2, True)])
def test_later_inputs_are_counted(devices: int, hybridized: bool) -> None:
    """Also in the batches of other sizes; behind a relu, the loss shows nothing."""
    setup = on(devices, hybridized)
    data = later(setup.data, 0, {})
    data[4], data[6] = spoiled(data[4], 0, NAN, INF), spoiled([array[:5] for array in data[6]], 0, -INF)
    data[6][0][0, 1] = NAN
    for stage, use in ways(setup, data)[:: 1 if hybridized else 2]:
        stops(use, DataError, f'inputs["x"] held NaN or infinity in 4 rows, in {stage}{WAY_OUT}')
    on(devices, hybridized).but(data=later(setup.data, 0, {3: [1.0]})).trains()


# ---- labels that may be missing ----------------------------------------------------------------------------


def missing(rule: Any, **changes: Any) -> Setup:
    return new_setup().but(labels=[LabelSpec("digit", missing=rule), "amount"], **changes)


VALID = 'valid are "nan", a number, '
NAM = f'labels["digit"]: missing is \'nam\' (did you mean "nan"?); {VALID}or a slot ("x", "amount")'
BATCH = arrays()
MEAN = {"digit": lambda output, label: CE()(output, label).mean(), "amount": L2()}
KNOWN = {"labels": [LabelSpec("digit", missing="known"), "amount", "known"]}
REFUSED: dict[str, tuple[Callable[[], Setup], type[Exception], list[str]]] = {
    "a word": (lambda: missing("nam"), SpecError, [NAM]),
    "infinity": (lambda: missing(INF), SpecError, [f"missing is inf; {VALID}or the name of a slot"]),
    "no label in the first batch": (lambda: missing("nan", data=[[X, None, BATCH[2]], BATCH]), DataError,
        ['the slot "digit" is None, and its shape is not known before a batch has it; begin with']),
    "a loss of one number": (lambda: missing("nan", losses=MEAN), SpecError,
        ['losses["digit"]: its label may be missing', "return a value for each sample"]),
    "a mask of another shape": (lambda: new_setup().but(data=[[*BATCH, np.ones((8, 3), "float32")]], **KNOWN),
        DataError, ['"known" is (8, 3) float32, and the label is (8,) float32; give one number']),
    "NaN that is not declared": (lambda: new_setup().but(data=[spoiled(BATCH, 2, NAN)]), DataError,
        ['declare LabelSpec("amount", missing="nan")']),
    "-1 that is not declared": (lambda: with_label(new_setup(), -1), SpecError,
        ['declare LabelSpec("digit", missing=-1), or']),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_labels_that_may_be_missing(case: str) -> None:
    make, error, texts = REFUSED[case]
    make().refused(error, *texts)


def test_labels_that_may_be_missing_along_another_axis() -> None:
    run = partial(missing("nan").make().fit, [[X.T, Y[None], BATCH[2].T]], epochs=1, batch_axis=1)
    stops(run, DataError, "need samples along axis 0, and batch_axis is 1")


class Own(mx.metric.Accuracy):
    """An accuracy with an update of its own, which may compare anything."""

    def update(self, labels: Any, preds: Any) -> None:
        super().update(labels, preds)


def of_all_columns(output: Any, label: Any) -> Any:
    """A loss of the label's shape, in which each value depends on all values of the sample."""
    return nd.abs(output - label) / (1 + nd.abs(label).sum(axis=1, keepdims=True))


def three_columns(loss: Any = None, metric: Any = None, **fields: Any) -> Setup:
    """A setup whose label has three values, of which some may be missing."""
    metrics = {"figure": MetricSpec(metric, "digit", "answers", **fields)} if metric else {}
    return new_setup().but(
        labels=[LabelSpec("answers", missing="nan")], unused=["amount"], metrics=metrics,
        losses={"digit": LossSpec(loss or L2(), "digit", "answers")},
    )  # fmt: skip


def answers(*places: tuple[int, int, int]) -> list[list[np.ndarray]]:
    """Three batches in which values are missing: each given by its batch, its sample and its column."""
    data = [[X, np.full((8, 3), 0.5, "float32")] for _ in range(3)]
    for batch, sample, column in places:
        data[batch][1][sample, column] = NAN
    return data


ROWS = [(0, 7, column) for column in range(3)]  # a sample without any value is left out as a whole
PART = 'values of "answers" are missing in samples that have others'
TAKE_MASK = 'or let it take the mask too and leave them out: LabelSpec("answers", missing="known"), labels=['
METRIC_FIX = 'use a metric that compares value by value, such as "binary_accuracy" or "mae"; '
LOSS_FIX = "return a loss for each value, in the label's shape, or use one that does, as L2Loss or MSELoss; "
WHOLE: dict[str, dict[str, Any]] = {
    "a loss of samples": {"loss": lambda output, label: nd.abs(output - label).sum(axis=1)},
    "a loss that mixes values": {"loss": of_all_columns},
    "a stock loss of samples": {"loss": CE(sparse_label=False)},
    "a function": {"metric": lambda labels, outputs: 0.0},
    "a metric of one's own": {"metric": Own()},
    "a transformed metric": {"metric": mx.metric.MAE(), "transform": lambda out, label: (label, out)},
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_part_of_a_label_is_missing_where_whole_samples_are_needed(name: str) -> None:
    """In a first batch, on the second of two devices; later, losses count to the end, and metrics stop."""
    is_loss = "loss" in name
    where, fix = ('losses["digit"]', LOSS_FIX) if is_loss else ('metrics["figure"]', METRIC_FIX)
    faulty = three_columns(**WHOLE[name]).but(data=answers(*ROWS, (0, 6, 1), (0, 5, 0), (0, 5, 1)))
    faulty.net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    faulty.refused(DataError, f"{where}: 3 {PART}, and it takes whole samples; {fix}{TAKE_MASK}")
    setup = three_columns(**WHOLE[name]).but(data=answers(*ROWS))
    setup.trains()
    setup = setup.but(data=answers(*ROWS, (1, 6, 1), (1, 5, 0), (2, 5, 1), (2, 4, 0)))
    for kind, use in (("training", setup.fit), ("evaluation", lambda: setup.make().evaluate(setup.data, []))):
        found = f"4 {PART} (in {kind})" if is_loss else f"2 {PART}"
        stops(use, DataError, f"{found}, and it takes whole samples")


def test_a_metric_of_losses_takes_whole_samples() -> None:
    setup = three_columns().but(metrics={"mean": MetricSpec(mx.metric.Loss(), losses="digit")})
    setup.but(data=answers((0, 6, 1))).refused(DataError, 'metrics["mean"]: 1 value of "answers" is missing')
