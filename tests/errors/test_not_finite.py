"""NaN and infinity in inputs and labels: named in the first batch, counted on the devices in later ones."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, MetricSpec, SkipNonFinite

import mxnet as mx  # isort: skip
from mxnet import nd  # isort: skip

from .setups import L2, Setup, around, new_setup
from .test_label_values import later

NAN, INF = float("nan"), float("inf")
WAY_OUT = "; mend the data, or leave the samples out; if "


def own(output: Any, label: Any) -> Any:
    return nd.square(output - label).sum(axis=1)


def spoiled(batch: Any, slot: int, *values: float) -> list[np.ndarray]:
    """Return a copy of a batch; the first of a sample's numbers are `values`, in samples 2, 4, ..."""
    copies = [array.copy() for array in batch]
    for at, value in enumerate(values, start=1):
        copies[slot][2 * at].flat[0] = value
    return copies


def on(devices: int, hybridized: bool = True) -> Setup:
    setup = new_setup()
    setup.net.collect_params().reset_ctx([mx.cpu(i) for i in range(devices)])
    setup.net.hybridize(hybridized)
    return setup


ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "NumPy": np.asarray,
    "float64": lambda array: array.astype("float64"),
    "float16": lambda array: array.astype("float16"),
    "NDArray": nd.array,
    "CSR": lambda array: nd.array(array).tostype("csr"),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize(("where", "way"), [("data", "fit"), ("val_data", "fit"), ("data", "check")])
def test_in_the_inputs_of_a_first_batch(kind: str, where: str, way: str) -> None:
    """Nothing moves, running statistics neither."""
    setup, convert = on(2), ARRAYS[kind]
    x, *labels = spoiled(setup.data[0], 0, NAN, INF, NAN)
    held = f'inputs["x"] holds NaN and infinity 3 times, in samples 2, 4, 6 (from 0){WAY_OUT}infinity is'
    held = f"1. {'val_data: ' * (where == 'val_data')}{held}"
    setup.but(**{where: [[convert(x), *labels]]}).refused(DataError, held, way=way)


@pytest.mark.parametrize(("value", "kind"), [(NAN, "NaN"), (-INF, "infinity")])
def test_in_the_labels_of_a_loss_of_ones_own(value: float, kind: str) -> None:
    setup = new_setup()
    setup = setup.but(losses={**setup.spec["losses"], "amount": LossSpec(own)}, metrics={})
    held = f'labels["amount"] holds {kind} 1 time, in sample 2 (from 0){WAY_OUT}NaN means "no label"'
    setup.but(data=[spoiled(setup.data[0], 2, value)]).refused(DataError, held)


def test_in_weights_and_in_slots_that_only_metrics_take() -> None:
    setup = new_setup()
    takes = LossSpec(L2(), "amount", ["amount", "weight"])
    figure = MetricSpec(lambda labels, outputs: 0.0, "digit", "extra")
    setup = setup.but(
        labels=["digit", "amount", "weight", "extra"],
        losses={**setup.spec["losses"], "amount": takes}, metrics={"f": figure},
    )  # fmt: skip
    ones = np.ones((8, 1), "float32")
    setup.but(data=[[*setup.data[0], ones, ones]]).trains()
    message = setup.but(data=[[*setup.data[0], ones * NAN, ones * INF]]).refused(DataError, "2 problems")
    assert 'labels["weight"] holds NaN 8 times' in message and 'labels["extra"] holds infinity' in message


def test_what_nothing_takes_or_is_declared_missing_does_not_count() -> None:
    setup = new_setup()
    data = [spoiled([*setup.data[0], setup.data[0][2]], 3, NAN, INF)]
    setup.but(labels=["digit", "amount", "extra"], unused=["extra"], data=data).trains()
    setup.but(
        labels=["digit", LabelSpec("amount", missing="nan")], data=[spoiled(setup.data[0], 2, NAN)]
    ).trains()
    spoilt = spoiled(setup.data[0], 0, NAN)
    setup.but(data=[setup.data[0], spoilt], handlers=(SkipNonFinite(),)).trains()


@pytest.mark.parametrize(("devices", "hybridized"), [(1, False), (2, True)])
def test_later_inputs_are_counted(devices: int, hybridized: bool) -> None:
    """Also in the batches of other sizes; behind a relu, the loss shows nothing."""
    setup = on(devices, hybridized)
    data = later(setup.data, 0, {})
    data[4], data[6] = spoiled(data[4], 0, NAN, INF), spoiled(data[6][:], 0, -INF)
    data[6] = [array[:5] for array in data[6]]
    data[6][0][0, 1] = NAN
    uses = [
        ("training", setup.but(data=data).fit),
        ("evaluation", lambda: setup.make().evaluate(data, [])),
        ("evaluation", setup.but(val_data=data).fit),
    ]
    for stage, use in uses:
        held = f'inputs["x"] held NaN or infinity in 4 rows, in {stage}{WAY_OUT}'
        with pytest.raises(DataError, match=re.escape(held)):
            use()
    on(devices, hybridized).but(data=later(setup.data, 0, {3: [1.0]}), epochs=2).trains()


@pytest.mark.parametrize("kind", ARRAYS)
def test_later_inputs_of_every_kind(kind: str) -> None:
    setup, convert = new_setup(), ARRAYS[kind]
    data = later(setup.data, 0, {})
    data[5] = spoiled(data[5], 0, NAN, INF)
    data = [[convert(x), *labels] for x, *labels in data]
    with pytest.raises(DataError, match=r'inputs\["x"\] held NaN or infinity in 2 rows, in training;'):
        setup.but(data=data).fit()


def test_samples_along_another_axis() -> None:
    setup = around(lambda dense, x: dense(x.sum(axis=0)))
    x, digit = setup.data[0]
    data = [[np.stack([x, x]), np.stack([digit, digit])] for _ in range(3)]
    spec = setup.but(losses={"digit": LossSpec(lambda y, label: (y.sum(axis=1) - label[0]) ** 2)})
    estimator = spec.make()
    data[0][0][1, 3, 0] = NAN
    with pytest.raises(DataError, match="holds NaN 1 time, in sample 3"):
        estimator.fit(data, epochs=1, batch_axis=1)
