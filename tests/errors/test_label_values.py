"""Labels that are no class, which a softmax loss would truncate or clip, or not finite."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, MultiEstimator, SkipNonFinite, SpecError
from multifit.losses import SegmentationCELoss, SequenceCELoss

import mxnet as mx  # isort: skip

from .setups import CE, L2, Setup, around, new_setup

# fmt: off
VALUES = {
    "below": (-2, 'the label "digit" (8,) float32 holds -2, which would be taken for class 0'),
    "past the last": (3, "holds 3, which would be taken for class 2"),
    "real": (1.9, "holds 1.9, which is not a class index and would be truncated"),
    "NaN": (float("nan"), "holds nan, which is not a class index"),
}
# fmt: on


def with_label(setup: Setup, value: float) -> Any:
    x, digit, *rest = setup.data[0]
    changed = digit.copy()
    changed[3] = value
    return setup.but(data=[[x, changed, *rest]])


@pytest.mark.parametrize(("value", "text"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kind", ["loss", "LabelSpec"])
def test_values_outside_the_classes(setup: Setup, value: float, text: str, kind: str) -> None:
    faulty = with_label(setup, value)
    if kind == "LabelSpec":
        squares = LossSpec(lambda a, b: mx.nd.square(a - b.reshape((-1, 1))).sum(axis=1), "digit", "digit")
        losses = {**setup.spec["losses"], "digit": squares}
        faulty = faulty.but(labels=[LabelSpec("digit", classes=3), "amount"], losses=losses)
    where = 'losses["digit"]: ' if kind == "loss" else 'labels["digit"]: '
    faulty.refused(SpecError, where, text, "classes are 0 … 2")


@pytest.mark.parametrize("labels", [["digit", "amount"], [LabelSpec("digit", classes=3), "amount"]])
def test_labels_of_every_device_are_checked(labels: list) -> None:
    setup = new_setup()
    setup.net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    x, digit, amount = setup.data[0]
    last = digit.copy()
    last[-1] = 3
    faulty = setup.but(labels=labels, data=[[x, last, amount]])
    faulty.refused(SpecError, 'the label "digit" (8,) float32 holds 3, which would be taken for class 2')


def test_a_label_spec_alone_makes_no_loss_ignore_anything(setup: Setup) -> None:
    faulty = with_label(setup.but(labels=[LabelSpec("digit", ignore=-1), "amount"]), -1)
    faulty.refused(SpecError, "holds -1, which would be taken for class 0", "use a loss that ignores it")


def test_an_ignored_value_is_no_class() -> None:
    losses = {"digit": SegmentationCELoss(ignore_label=-1)}
    net = around(lambda dense, x: dense(x).reshape((-1, 3, 1, 1)), losses=losses)
    labels = np.array([0, 1, 2, -1] * 2, "float32").reshape(8, 1, 1)
    net.but(data=[[net.data[0][0], labels]]).trains()
    net.but(data=[[net.data[0][0], labels - 1]]).refused(SpecError, "holds -2")


def test_labels_of_weight_0_do_not_count() -> None:
    labels, losses = [LabelSpec("digit", ignore=-1), "mask"], LossSpec(CE(), "digit", ["digit", "mask"])
    net = around(lambda dense, x: dense(x), labels=labels, losses={"digit": losses})
    x, digit = net.data[0]
    mask = np.ones((8, 1), "float32")
    mask[3] = 0
    with_label(net.but(data=[[x, digit, mask]]), 7).trains()
    faulty = with_label(net.but(data=[[x, digit, mask * 0 + 1]]), 7)
    faulty.refused(SpecError, "holds 7, which would be taken for class 2")


def test_labels_past_a_sequences_end_do_not_count() -> None:
    net = around(
        lambda dense, x: mx.nd.stack(dense(x), dense(x), axis=1),
        labels=["digit", "length"],
        losses={"digit": LossSpec(SequenceCELoss(), "digit", ["digit", "length"], normalize_by="length")},
    )
    labels = np.array([[0, 1], [2, -1]] * 4, "float32")
    lengths = np.array([2, 1] * 4, "float32")
    net.but(data=[[net.data[0][0], labels, lengths]]).trains()
    net.but(data=[[net.data[0][0], labels, lengths * 0 + 2]]).refused(SpecError, "holds -1")


# ---- in later batches, where they are counted on the devices ---------------------------------------------


def later(data: Any, slot: int, values: dict[int, list[float]], batches: int = 8) -> Any:
    """Return copies of a batch, with values at the end of a slot in some of them, by number."""
    copies = [[array.copy() for array in data[0]] for _ in range(batches)]
    for number, wrong in values.items():
        copies[number - 1][slot].flat[-len(wrong) :] = wrong
    return copies


def own(output: Any, label: Any) -> Any:
    return CE()(output, label)


WRONG = [3, -1, 0.5, float("nan")]


def own_loop(estimator: MultiEstimator, data: Any) -> None:
    for batch in data:
        estimator.fit_batch(batch)
    estimator.figures()


@pytest.mark.parametrize(
    ("devices", "kind"), [(1, "not hybrid"), (2, "hybrid"), (1, "LabelSpec"), (2, "own")]
)
def test_classes_that_do_not_exist(kind: str, devices: int) -> None:
    """Each of the wrong values is counted."""
    setup = new_setup()
    setup.net.collect_params().reset_ctx([mx.cpu(i) for i in range(devices)])
    if kind != "not hybrid":
        setup.net.hybridize()
    if kind == "own":
        setup = setup.but(losses={"digit": own, "amount": LossSpec(lambda a, b: L2()(a, b))}, metrics={})
    if kind in ("LabelSpec", "own"):
        setup = setup.but(labels=[LabelSpec("digit", classes=3), "amount"])
    data = later(setup.data, 1, {6: WRONG, 8: WRONG})
    data[2] = [array[:3] for array in data[2]]
    where = 'losses["digit"]' if "hybrid" in kind else 'labels["digit"]'
    held = f'the label "digit" held {2 * len(WRONG)} values not among the classes 0 … 2'
    uses = [
        ("training", setup.but(data=data).fit),
        ("training", partial(own_loop, setup.make(), data)),
        ("evaluation", partial(setup.make().evaluate, data, [])),
        ("evaluation", setup.but(val_data=data).fit),
    ]
    for stage, use in uses:
        with pytest.raises(DataError, match=re.escape(f"{where}: in {stage}, {held}")):
            use()
    setup.but(data=later(setup.data, 1, {6: [2, 0]}), epochs=2).trains()


@pytest.mark.parametrize("batch", [1, 2])
def test_numbers_that_are_not_finite(batch: int) -> None:
    setup = new_setup()
    faulty = setup.but(data=later(setup.data, 2, {batch: [float("nan"), float("inf")]}, 3))
    with pytest.raises(DataError) as raised:
        faulty.fit()
    held = "holds NaN and infinity 2 times, in samples 6, 7 (from 0); mend the data"
    if batch == 2:
        held = "held NaN or infinity in 2 rows, in training; mend the data"
    assert f'labels["amount"] {held}' in str(raised.value)
    setup = new_setup()
    setup.but(data=faulty.data, handlers=(SkipNonFinite(),)).trains()


def test_as_many_classes_as_a_batch_has_samples() -> None:
    """The scores of every pair of samples, as in contrastive learning: the last batches are larger."""
    net = around(lambda dense, x: mx.nd.dot(dense(x), dense(x), transpose_b=True))
    batches = [[net.data[0][0][:size], np.arange(size, dtype="float32")] for size in (3, 3, 3, 8, 5)]
    net.but(data=batches).trains()
    batches[-1][1][0] = 5
    with pytest.raises(DataError, match="held 1 value not"):
        net.but(data=batches).fit()


@pytest.mark.parametrize("last", [3, 1])
def test_sequences_of_which_the_first_have_one_step(last: int) -> None:
    net = around(lambda dense, x: dense(x.reshape((-3, 0))).reshape((2, -1, 3)))
    batches = []
    for steps in (1, 3, 2, 1, last):
        labels = np.arange(2 * steps).reshape(2, steps) % 3
        batches.append([np.ones((2, steps, 6), "float32"), labels.astype("float32")])
    net.but(data=batches).trains()
    batches[-1][1][1, -1] = 3
    with pytest.raises(DataError, match="held 1 value not"):
        net.but(data=batches).fit()


@pytest.mark.parametrize("buffers", [1, 2])
def test_labels_whose_memory_is_written_again(buffers: int) -> None:
    """Each wrong value counts once."""
    setup = new_setup()
    data = later(setup.data, 1, {2: [3], 7: [-1, 9]})
    arrays = [[mx.nd.zeros(array.shape) for array in data[0]] for _ in range(buffers)]

    def reusing() -> Any:
        for number, batch in enumerate(data):
            slots = arrays[number % buffers]
            for array, values in zip(slots, batch):
                array[:] = values
            yield slots

    estimator = setup.make()
    with pytest.raises(DataError, match='"digit" held 3 values'):
        own_loop(estimator, reusing())


def test_labels_whose_dtype_changes() -> None:
    setup = new_setup()
    data = later(setup.data, 1, {5: [7]})
    for number, batch in enumerate(data):
        batch[:] = map(mx.nd.array, batch)
        batch[1] = batch[1].astype("int64" if number == 3 else "int32")
    with pytest.raises(DataError, match='"digit" held 1 value not'):
        setup.but(data=data).fit()
