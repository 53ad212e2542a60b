"""Labels that may be missing: what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, MultiEstimator, SpecError, TaskSpec

import mxnet as mx  # isort: skip

from .setups import CE, L2, Setup, new_setup

VALID = 'valid are "nan", a number, '
RULES = {
    "another word": (
        "nam",
        'labels["digit"]: missing is \'nam\' (did you mean "nan"?); '
        + VALID
        + 'a slot ("data", "amount") or a function',
    ),
    "no number": (float("inf"), f"missing is inf; {VALID}the name of a slot or a function"),
    "a function of nothing": (lambda: 1, "missing: is called with 1 argument"),
}


@pytest.mark.parametrize(("rule", "message"), RULES.values(), ids=RULES)
def test_rules(rule: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        TaskSpec(
            outputs=["digit", "amount"],
            labels=[LabelSpec("digit", missing=rule), "amount"],
            losses={"digit": CE(), "amount": L2()},
        )
    assert message in str(caught.value)


def test_other_declarations_that_do_not_fit() -> None:
    with pytest.raises(SpecError) as caught:
        TaskSpec(
            outputs=["digit", "coverage_digit"],
            labels=[LabelSpec("digit", missing="nan"), "coverage_digit"],
            losses={"digit": LossSpec(CE(), scope="batch"), "coverage_digit": L2()},
        )
    assert 'losses["digit"]: takes "digit", which may be missing, with scope="batch"' in str(caught.value)
    assert 'the figure "coverage_digit" is produced by losses["coverage_digit"] and labels["digit"]' in str(
        caught.value
    )


def missing(rule: Any, **changes: Any) -> Setup:
    return new_setup().but(labels=[LabelSpec("digit", missing=rule), "amount"], **changes)


def mean(output: Any, label: Any) -> Any:
    return CE()(output, label).mean()


@pytest.mark.parametrize("batch", [1, 2])
def test_none_for_a_label(setup: Setup, batch: int) -> None:
    x, digit, amount = setup.data[0]
    data = [[x, None if number == batch else digit, amount] for number in (1, 2, 3)]
    if batch == 1:
        missing("nan", data=data).refused(
            DataError,
            'the slot "digit" is None, and its shape is not known before a batch has it; begin with',
        )
    with pytest.raises(DataError, match='the slot "digit" is None, and its missing= is a function'):
        missing(lambda label: label < 0, data=[[x, digit, amount], *data[batch - 1 :]]).fit()


def test_none_for_a_label_beside_arrays_without_samples(setup: Setup) -> None:
    data = [setup.data[0], [np.float32(1), None, np.float32(2)]]
    with pytest.raises(DataError, match=r'batch 2: 2 problems.*\n.*"x" is \(\) float32, which has no'):
        missing("nan", data=data).fit()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16"])
def test_weights_of_another_dtype_are_refused_as_without_missing_labels(setup: Setup, dtype: str) -> None:
    weighted = {"losses": {"amount": LossSpec(L2(), "amount", ["amount", "weight"])}, "unused": ["digit"]}
    data = [[*setup.data[0], np.ones((8, 1), dtype)]]
    for label in ("amount", LabelSpec("amount", missing="nan")):
        faulty = setup.but(data=data, labels=["digit", label, "weight"], metrics={}, **weighted)
        faulty.refused(mx.MXNetError, 'raised in losses["amount"]', f"labels.weight (8, 1) {dtype}")


def test_a_loss_that_returns_one_number(setup: Setup) -> None:
    faulty = missing("nan", losses={"digit": mean, "amount": L2()})
    faulty.refused(SpecError, 'losses["digit"]: its label may be missing', "return a value for each sample")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda label: mx.nd.ones((3, 1)), "what missing= returned is (3, 1) float32, and the label is (8,)"),
        (lambda label: True, 'labels["digit"].missing returned True; it must return an array'),
    ],
)
def test_what_a_function_returns(rule: Any, message: str) -> None:
    missing(rule).refused(DataError, message)


def test_another_batch_axis(setup: Setup) -> None:
    faulty = missing("nan")
    x, digit, amount = setup.data[0]
    with pytest.raises(DataError, match="need samples along axis 0, and batch_axis is 1"):
        faulty.make().fit([[x.T, digit[None], amount.T]], epochs=1, batch_axis=1)


def test_labels_that_look_as_if_they_were_missing(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    unknown, negative = amount.copy(), digit.copy()
    unknown[0], negative[0] = np.nan, -1
    setup.but(data=[[x, digit, unknown]]).refused(DataError, 'declare LabelSpec("amount", missing="nan")')
    setup.but(data=[[x, negative, amount]]).refused(SpecError, 'declare LabelSpec("digit", missing=-1), or')


def test_masks_of_combined_specs() -> None:
    part = TaskSpec(
        outputs="y", labels=[LabelSpec("y", missing="known"), "known"], losses={"y": L2()}, inputs=["x"]
    )
    spec = TaskSpec.combine(a=part, b=part, shared=["x"])
    assert [label.missing for label in spec.label_specs.values() if label.missing] == ["a/known", "b/known"]
    assert MultiEstimator(mx.gluon.nn.Dense(1), part).spec.terms[0].present
