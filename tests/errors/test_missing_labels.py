"""Labels that may be missing: what is refused."""

from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec

import mxnet as mx  # isort: skip

from .setups import CE, L2, Setup, arrays, new_setup

VALID = 'valid are "nan", a number, '
NAM = f'labels["digit"]: missing is \'nam\' (did you mean "nan"?); {VALID}or a slot ("x", "amount")'
INFINITE = f"missing is inf; {VALID}or the name of a slot"


@pytest.mark.parametrize(
    ("rule", "message"), [("nam", NAM), (float("inf"), INFINITE)], ids=["word", "number"]
)
def test_rules(rule: Any, message: str) -> None:
    missing(rule).refused(SpecError, message)


def missing(rule: Any, **changes: Any) -> Setup:
    return new_setup().but(labels=[LabelSpec("digit", missing=rule), "amount"], **changes)


def mean(output: Any, label: Any) -> Any:
    return CE()(output, label).mean()


def test_none_for_a_label(setup: Setup) -> None:
    x, digit, amount = setup.data[0]
    data = [[x, None, amount], [x, digit, amount]]
    text = 'the slot "digit" is None, and its shape is not known before a batch has it; begin with'
    missing("nan", data=data).refused(DataError, text)


def test_a_loss_that_returns_one_number(setup: Setup) -> None:
    faulty = missing("nan", losses={"digit": mean, "amount": L2()})
    faulty.refused(SpecError, 'losses["digit"]: its label may be missing', "return a value for each sample")


def test_a_mask_of_another_shape(setup: Setup) -> None:
    labels = [LabelSpec("digit", missing="known"), "amount", "known"]
    data = [[*setup.data[0], np.ones((8, 3), "float32")]]
    message = 'labels["digit"]: "known" is (8, 3) float32, and the label is (8,) float32; give one number'
    setup.but(labels=labels, data=data).refused(DataError, message)


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


class Own(mx.metric.Accuracy):
    """An accuracy with an update of its own, which may compare anything."""

    def update(self, labels: Any, preds: Any) -> None:
        super().update(labels, preds)


def row_sums(output: Any, label: Any) -> Any:
    return mx.nd.abs(output - label).sum(axis=1)


def of_all_columns(output: Any, label: Any) -> Any:
    """A loss of the label's shape, in which each value depends on all values of the sample."""
    return mx.nd.abs(output - label) / (1 + mx.nd.abs(label).sum(axis=1, keepdims=True))


def three_columns(loss: Any = None, metric: Any = None, **fields: Any) -> Setup:
    """A setup whose label has three values, of which some may be missing."""
    metrics = {"figure": MetricSpec(metric, "digit", "answers", **fields)} if metric else {}
    return new_setup().but(
        labels=[LabelSpec("answers", missing="nan")], unused=["amount"], metrics=metrics,
        losses={"digit": LossSpec(loss or L2(), "digit", "answers")},
    )  # fmt: skip


def answers(*missing: tuple[int, int, int]) -> list[list[np.ndarray]]:
    """Three batches in which values are missing: each given by its batch, its sample and its column."""
    data = [[arrays()[0], np.full((8, 3), 0.5, "float32")] for _ in range(3)]
    for batch, sample, column in missing:
        data[batch][1][sample, column] = np.nan
    return data


ROWS = [(0, 7, column) for column in range(3)]  # a sample without any value is left out as a whole
PART = 'values of "answers" are missing in samples that have others'
MASK = 'or let it take the mask too and leave them out: LabelSpec("answers", missing="known"), labels=['
WHOLE: dict[str, dict[str, Any]] = {
    "a loss of samples": {"loss": row_sums},
    "a loss that mixes values": {"loss": of_all_columns},
    "a stock loss of samples": {"loss": CE(sparse_label=False)},
    "a function": {"metric": lambda labels, outputs: 0.0},
    "a metric of one's own": {"metric": Own()},
    "a transformed metric": {"metric": mx.metric.MAE(), "transform": lambda out, label: (label, out)},
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_part_of_a_label_is_missing_where_whole_samples_are_needed(name: str) -> None:
    """On the second of two devices."""
    where = 'losses["digit"]' if "loss" in name else 'metrics["figure"]'
    fix = 'use a metric that compares value by value, such as "binary_accuracy" or "mae"; '
    if "loss" in name:
        fix = (
            "return a loss for each value, in the label's shape, or use one that does, as L2Loss or MSELoss; "
        )
    faulty = three_columns(**WHOLE[name]).but(data=answers(*ROWS, (0, 6, 1), (0, 5, 0), (0, 5, 1)))
    faulty.net.collect_params().reset_ctx([mx.cpu(0), mx.cpu(1)])
    faulty.refused(DataError, f"{where}: 3 {PART}, and it takes whole samples; {fix}{MASK}")


@pytest.mark.parametrize("name", WHOLE)
def test_a_part_of_a_label_is_missing_in_a_later_batch(name: str) -> None:
    """Losses count such values to the end of the epoch, and metrics stop."""
    setup = three_columns(**WHOLE[name]).but(data=answers(*ROWS))
    setup.trains()
    setup = setup.but(data=answers(*ROWS, (1, 6, 1), (1, 5, 0), (2, 5, 1), (2, 4, 0)))
    ways = {"training": setup.fit, "evaluation": lambda: setup.make().evaluate(setup.data, [])}
    for kind, way in ways.items():
        found = f"4 {PART} (in {kind})" if "loss" in name else f"2 {PART}"
        with pytest.raises(DataError) as caught:
            way()
        assert f"{found}, and it takes whole samples" in str(caught.value)


def test_a_metric_of_losses_takes_whole_samples() -> None:
    setup = three_columns().but(metrics={"mean": MetricSpec(mx.metric.Loss(), losses="digit")})
    setup.but(data=answers((0, 6, 1))).refused(DataError, 'metrics["mean"]: 1 value of "answers" is missing')
