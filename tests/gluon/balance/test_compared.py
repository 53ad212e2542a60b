"""Tasks that are not compared have no cosine: they branch at different places, or their labels never meet."""

import json
from typing import Any

import numpy as np
import pytest

from multifit import LogTo
from multifit.handlers.plots import task_curves
from tests.common.compared import CASES, assert_compared, figures, fitted
from tests.common.grids import TWO
from tests.common.joint_training import assert_as_alone

NEVER = "labels that never meet in a sample"
WARNING = (
    'balance: Sum compares gradients of features, and in a whole epoch those of "digit" and "parity" '
    'never met, as if no sample had labels of both; on="parameters" compares them'
)


def warnings(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("on", ["features", "parameters"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_not_compared_is_nan(case: str, on: str, caplog: Any) -> None:
    """Also on two devices that halve the batch. Tasks whose samples never meet in an epoch are named once."""
    *_, on_features, on_parameters = CASES[case]
    one = fitted(case, on).history
    warns = on == "features" and case in (NEVER, "each half with labels of its own")
    assert warnings(caplog) == [WARNING] * warns
    assert_compared(one, on_features if on == "features" else on_parameters)
    if "half" not in case:
        return
    two = fitted(case, on, devices=TWO).history
    for name, values in figures(one).items():
        np.testing.assert_allclose(two[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("case", "on"),
    [
        ("labels that meet in one half", "features"),
        ("each half with labels of its own", "parameters"),
    ],
)
def test_ranks_compare_what_one_process_does(case: str, on: str) -> None:
    assert_as_alone(lambda world: figures(fitted(case, on, world=world).history))


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
    assert "train_gradnorm_digit" in seen and not {"train_cosine_digit_parity", "train_conflict"} & seen
    (drawn,) = [each for each in task_curves(history).axes if each.get_title() == "cosines of gradients"]
    assert [text.get_text() for text in drawn.texts] == ["1.00", "-", "-", "1.00"]
