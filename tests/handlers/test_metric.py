"""MetricHandler."""

from __future__ import annotations

from typing import Any

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
