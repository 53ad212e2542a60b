"""MetricHandler."""

import math
from typing import Any

import pytest

from multifit.handlers import MetricHandler

from .conftest import At


def test_figures_and_rates_are_recorded_where_other_handlers_read_them(run: Any) -> None:
    seen: list[dict[str, float]] = []
    look = At("epoch_end", lambda run: seen.append(run.history.last))
    history = run.fit(look, MetricHandler(), epochs=2)
    assert dict(history) == {"train_loss": [1 / 3, 1 / 6], "lr": [0.001, 0.001]}
    assert seen == [{"train_loss": 1 / 3, "lr": 0.001}, {"train_loss": 1 / 6, "lr": 0.001}]
    assert run.read == [("train", 3), ("train", 6)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_objective_that_is_not_finite_is_one_warning_per_fit(run: Any, log: Any, value: float) -> None:
    run.train = lambda state: {"train_loss": 1.0 if state.epoch == 0 else value, "train_kind": value}
    metrics = MetricHandler()
    run.fit(metrics, epochs=4)
    run.fit(metrics)
    starts = [(record.levelname, record.getMessage().split(": ")[0]) for record in log.records]
    assert starts == [("WARNING", f"train_loss is {value} in epoch {epoch}") for epoch in (2, 5)]
