"""A figure is that of the whole pass: it does not depend on how samples are cut into batches or devices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from multifit import CheckpointHandler, Every, MultiEstimator
from tests.common.grids import ONE, TWO
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.whole_pass import SAMPLES, arrays, assert_whole, cut, estimator

CUTS = st.lists(st.integers(1, 20), min_size=1, max_size=12)
DRAWN = settings(
    max_examples=2, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


@pytest.fixture(scope="module", params=[(ONE, True), (TWO, False)], ids=["one device", "two devices"])
def evaluating(request: pytest.FixtureRequest) -> MultiEstimator:
    return estimator(*request.param)


@DRAWN
@given(cuts=CUTS)
@example(cuts=[SAMPLES])
@example(cuts=[1, 1, 40])
@example(cuts=[20, 21, 1])
def test_an_evaluation_does_not_depend_on_its_batches(evaluating: MultiEstimator, cuts: list[int]) -> None:
    assert_whole(evaluating.evaluate(cut(cuts), event_handlers=[]))


def test_so_does_no_epoch_also_one_that_is_resumed(tmp_path: Path) -> None:
    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        saving = CheckpointHandler(folder, Every(3, "batch"), seed=1)
        trained, handlers = estimator(TWO), (saving, *handlers)
        history = trained.fit(cut([8, 8, 1, 12]), cut([20]), epochs=2, event_handlers=handlers, **options)
        for stage in ("train_", "val_"):
            for epoch in range(2):
                names = [name for name in history if name.startswith(stage)]
                assert_whole({name.removeprefix(stage): history[name][epoch] for name in names})
        for stage in trained._session.stages.values():  # a pass that has ended needs no arrays
            assert not any(len(metric.kept) for metric in stage.figures.metrics)
        return trained

    assert_resumes_bit_for_bit(run, tmp_path, 3)


def test_figures_within_a_pass_are_those_of_the_batches_so_far() -> None:
    """Also several times at once; those that are computed from arrays may be left out."""
    seen: list[dict[str, float]] = []

    class Looks:
        def batch_end(self, estimator: MultiEstimator) -> None:
            quick = estimator.figures(quick=True)
            assert "train_rmse" in quick and not quick.keys() & {"train_median", "train_pearsonr"}
            seen.append(estimator.figures())
            assert {**estimator.figures(), **quick} == seen[-1]

    net = estimator()
    net.fit(cut([8, 20]), epochs=1, event_handlers=[Every(2, "batch", Looks())])
    x, real = arrays()[0][:28, 1:4], arrays()[3][:28]
    assert len(seen) == 1
    assert seen[0]["train_median"] == pytest.approx(np.median(np.abs(x - real)), rel=1e-5)
    assert seen[0]["train_rmse"] == pytest.approx(np.sqrt(np.mean((x - real) ** 2)), rel=1e-5)
    assert net.figures(quick=True) == net.figures()
