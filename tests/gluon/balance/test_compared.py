"""Tasks that are not compared have no cosine: they branch at different places, or their labels never meet."""

import json
from typing import Any

import numpy as np
import pytest

from multifit import LogTo
from multifit.handlers.plots import task_curves
from tests.common.compared import CASES, assert_compared, figures, fitted
from tests.common.grids import TWO
from tests.common.hand_loop import SILENT
from tests.common.joint_training import assert_as_alone

of_both = pytest.mark.parametrize("on", ["features", "parameters"])


@of_both
@pytest.mark.parametrize("case", CASES)
def test_what_was_not_compared_is_nan(case: str, on: str) -> None:
    """On one device, and on two alike."""
    *_, on_features, on_parameters = CASES[case]
    one, two = (fitted(case, on, devices=devices).history for devices in (None, TWO))
    for history in (one, two):
        assert_compared(history, on_features if on == "features" else on_parameters)
    for name, values in figures(one).items():
        np.testing.assert_allclose(two[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@of_both
@pytest.mark.parametrize(
    "case", ["a pair that shares nothing", "labels that meet in one half", "each half with labels of its own"]
)
def test_ranks_compare_what_one_process_does(case: str, on: str) -> None:
    assert_as_alone(lambda world: figures(fitted(case, on, world=world).history))


NEVER = "labels that never meet in a sample"
WARNED = {
    NEVER: ("features", 1),
    "each half with labels of its own": ("features", 1),
    "labels that meet in one batch": ("features", 0),
    "labels that are in different batches": ("features", 0),
    "branches at two places": ("features", 0),
    "a pair that shares nothing": ("parameters", 0),
}


def warnings(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("case", WARNED)
def test_tasks_that_never_meet_in_an_epoch_are_named_once(case: str, caplog: Any) -> None:
    on, count = WARNED[case]
    estimator = fitted(case, on, epochs=1)
    estimator.fit(CASES[case][2], epochs=1, event_handlers=SILENT)
    message = (
        'balance: Sum compares gradients of features, and in a whole epoch those of "digit" and "parity" '
        'never met, as if no sample had labels of both; on="parameters" compares them'
    )
    assert warnings(caplog) == [message] * count


def test_an_epoch_that_is_cut_short_is_not_judged_and_nan_reaches_who_reads_figures(caplog: Any) -> None:
    """JSON has null, a tracker gets nothing, and the map a dash."""
    seen: set[str] = set()

    class Tracker:
        def log_figures(self, figures: Any, step: int, epoch: Any) -> None:
            seen.update(figures)

    estimator = fitted(NEVER, "features", batches=1)
    assert not warnings(caplog)
    history = estimator.fit(CASES[NEVER][2], epochs=1, event_handlers=[LogTo(Tracker())])
    saved = json.loads(history.to_json())
    assert saved["train_cosine_digit_parity"] == [None] == saved["train_conflict"]
    assert "train_gradnorm_digit" in seen
    assert not {"train_cosine_digit_parity", "train_conflict"} & seen
    axes = task_curves(history).axes
    (drawn,) = [each for each in axes if each.get_title() == "cosines of gradients"]
    assert [text.get_text() for text in drawn.texts] == ["1.00", "-", "-", "1.00"]
