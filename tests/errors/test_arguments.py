"""Arguments of the estimator, its fit, and the figures that handlers monitor."""

from __future__ import annotations

from typing import Any

import pytest
from mxnet import gluon

from multifit import EarlyStoppingHandler, MetricSpec, MultiEstimator, SpecError, TaskSpec
from multifit.errors import suggest

LENGTHS = [
    ({}, "fit was given epochs=None and batches=None; give exactly one: epochs=10, or batches=1000"),
    ({"epochs": 1, "batches": 1}, "fit was given epochs=1 and batches=1; give exactly one"),
    ({"epochs": 0}, "epochs is 0; valid is a whole number of at least 1"),
    ({"epochs": -1}, "epochs is -1"),
    ({"epochs": 1.5}, "epochs is 1.5"),
    ({"epochs": "2"}, "epochs is '2'"),
    ({"batches": float("nan")}, "batches is nan"),
    ({"batches": True}, "batches is True"),
]


@pytest.mark.parametrize(("lengths", "text"), LENGTHS, ids=[str(lengths) for lengths, _ in LENGTHS])
def test_epochs_and_batches(setup: Any, lengths: dict, text: str) -> None:
    estimator, before = setup.make(), setup.parameters()
    with pytest.raises(ValueError, match="epochs|batches") as raised:
        estimator.fit(setup.data, **lengths)
    assert type(raised.value) is ValueError
    assert text in str(raised.value)
    assert all((setup.parameters()[name] == value).all() for name, value in before.items())
    estimator.fit(setup.data, batches=1)


@pytest.mark.parametrize("net", [None, "net", gluon.nn.Dense, lambda x: x])
def test_the_net_must_be_one(setup: Any, net: Any) -> None:
    with pytest.raises(SpecError, match="which is no gluon.Block; give the net itself, an instance"):
        MultiEstimator(net, TaskSpec(**setup.spec))


@pytest.mark.parametrize("spec", [None, "softmax", {}, gluon.loss.L2Loss])
def test_the_spec_must_be_one(setup: Any, spec: Any) -> None:
    with pytest.raises(SpecError, match="give a TaskSpec, or one loss for a net with one input"):
        MultiEstimator(setup.net, spec)


def monitoring(setup: Any, *handlers: Any, **spec: Any) -> Any:
    changed = setup.but(**spec)

    class Monitored(type(changed)):  # type: ignore[misc]
        def fit(self) -> None:
            self.make().fit(self.data, self.val_data, epochs=1, event_handlers=list(handlers))

    return Monitored(**vars(changed))


def test_a_figure_that_nobody_measures(setup: Any) -> None:
    handler = EarlyStoppingHandler("val_acuracy")
    message = monitoring(setup, handler, val_data=setup.data).refused(ValueError, ways=("fit",))
    assert 'EarlyStoppingHandler: there is no figure "val_acuracy" (did you mean "val_accuracy"?)' in message
    assert 'figures are "train_loss", "train_digit", "train_amount", "train_accuracy"' in message
    setup.trains()


def test_a_figure_of_validation_data_that_is_not_there(setup: Any) -> None:
    faulty = monitoring(setup, EarlyStoppingHandler("val_loss"))
    faulty.refused(
        ValueError, 'there is no figure "val_loss"', "val_ figures need validation data", ways=("fit",)
    )
    monitoring(setup, EarlyStoppingHandler("val_loss"), val_data=setup.data).trains()


def test_a_figure_of_unknown_direction(setup: Any) -> None:
    metrics = {"own": MetricSpec(lambda labels, outputs: 1.0, outputs="digit", labels="digit")}
    handler = EarlyStoppingHandler("train_own")
    monitoring(setup, handler, metrics=metrics).refused(
        ValueError,
        'EarlyStoppingHandler: whether "train_own" is better low or high is not known',
        'say mode="min" or "max" in the MetricSpec or in the handler',
        ways=("fit",),
    )
    metrics = {"own": MetricSpec(lambda labels, outputs: 1.0, outputs="digit", labels="digit", mode="max")}
    monitoring(setup, EarlyStoppingHandler("train_own"), metrics=metrics).trains()


def test_two_monitors_are_told_together(setup: Any) -> None:
    handlers = EarlyStoppingHandler("train_lss"), Watching("train_amont")
    message = monitoring(setup, *handlers).refused(ValueError, "EarlyStoppingHandler: ", ways=("fit",))
    assert 'Watching: there is no figure "train_amont" (did you mean "train_amount"?)' in message


class Watching:
    """A handler of the user's own that monitors a figure by name."""

    mode = "min"

    def __init__(self, monitor: str) -> None:
        self.monitor = monitor

    def epoch_end(self, estimator: Any) -> None:
        pass


def test_a_learning_rate_can_be_watched(setup: Any) -> None:
    monitoring(setup, Watching("lr")).trains()


def test_suggestions() -> None:
    assert suggest("digt", ["digit", "amount"]) == ' (did you mean "digit"?)'
    assert suggest("zzz", ["digit"]) == ""
    assert suggest("digit", ["digit"]) == ""
    assert suggest(3, [3, None, "a"]) == ""
