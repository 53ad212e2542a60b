"""A figure is that of the whole pass: it does not depend on how samples are cut into batches or devices."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from multifit import MultiEstimator
from tests.common.grids import ONE, TWO, two_settings
from tests.common.whole_pass import SAMPLES, assert_whole, cut, estimator

CUTS = st.lists(st.integers(1, 20), min_size=1, max_size=12)
DRAWN = settings(
    max_examples=12, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


@pytest.fixture(scope="module", params=[(ONE, True), (TWO, False)], ids=["one device", "two devices"])
def evaluating(request: pytest.FixtureRequest) -> MultiEstimator:
    return estimator(*request.param)


@DRAWN
@given(cuts=CUTS)
@example(cuts=[8, 8, 8, 8, 8])
@example(cuts=[SAMPLES])
@example(cuts=[1] * SAMPLES)
def test_an_evaluation_does_not_depend_on_its_batches(evaluating: MultiEstimator, cuts: list[int]) -> None:
    assert_whole(evaluating.evaluate(cut(cuts), event_handlers=[]))


@two_settings
def test_so_does_no_epoch(devices: list, hybrid: bool) -> None:
    history = estimator(devices, hybrid).fit(cut([8, 8, 1, 12]), cut([5, 20]), epochs=2, event_handlers=[])
    for prefix in ("train_", "val_"):
        for epoch in range(2):
            assert_whole(
                {
                    name.removeprefix(prefix): history[name][epoch]
                    for name in history
                    if name.startswith(prefix)
                }
            )
