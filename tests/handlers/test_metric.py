"""MetricHandler."""

import math
from typing import Any

import pytest

from multifit.handlers import MetricHandler

from .conftest import At


def test_figures_and_rates_are_recorded_at_the_end_of_each_epoch(run: Any) -> None:
    history = run.fit(MetricHandler(), epochs=2)
    assert dict(history) == {"train_loss": [1 / 3, 1 / 6], "lr": [0.001, 0.001]}
    assert run.read == [("train", 3), ("train", 6)]


def test_other_handlers_can_read_the_figures_from_the_history(run: Any) -> None:
    last_values: list[dict[str, float]] = []
    run.fit(At("epoch_end", lambda run: last_values.append(run.history.last)), MetricHandler())
    assert last_values == [{"train_loss": 1 / 3, "lr": 0.001}]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_objective_that_is_not_finite_is_one_warning_per_fit(run: Any, log: Any, value: float) -> None:
    run.train = lambda state: {"train_loss": 1.0 if state.epoch == 0 else value, "train_kind": value}
    handler = MetricHandler()
    run.fit(handler, epochs=4)
    (record,) = log.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"train_loss is {value} in epoch 2: ")
    run.fit(handler)
    assert len(log.records) == 2 and " in epoch 5: " in log.records[1].getMessage()
