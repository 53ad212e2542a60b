"""Tasks that are not compared have no cosine: they branch at different places, or their labels never meet."""

import json
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LogTo, LossSpec, MultiEstimator
from multifit.balance import Sum, UPGrad
from multifit.balance.means import GradientFigures
from multifit.plots import task_curves
from tests.common.compared import APART, CASES, FULL, WHOLE, assert_compared, figures, fitted, lacking
from tests.common.data import digit_batches
from tests.common.grids import TWO
from tests.common.hand_loop import SILENT
from tests.common.joint_training import assert_as_alone
from tests.common.nets import hybridized
from tests.common.shared_nets import Chain, two_heads
from tests.common.specs import CE, L2, digit_spec
from tests.numerics.test_waiting import Waits, placed, waits  # noqa: F401

import mxnet as mx  # isort: skip


@pytest.mark.parametrize("devices", [None, TWO], ids=["one device", "two devices"])
@pytest.mark.parametrize("on", ["features", "parameters"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_not_compared_is_nan(case: str, on: str, devices: Any) -> None:
    *_, on_features, on_parameters = CASES[case]
    history = fitted(case, on, devices=devices).history
    assert_compared(history, on_features if on == "features" else on_parameters)
    if devices is not None:
        alone = figures(fitted(case, on).history)
        for name, values in figures(history).items():
            np.testing.assert_allclose(values, alone[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("on", ["features", "parameters"])
@pytest.mark.parametrize(
    "case", ["a pair that shares nothing", "labels that meet in one half", "each half with labels of its own"]
)
def test_ranks_compare_what_one_process_does(case: str, on: str) -> None:
    assert_as_alone(lambda world: figures(fitted(case, on, world=world).history))


def test_conflict_is_the_share_of_the_pairs_that_were_compared() -> None:
    """Two of three pairs are; the last two tasks pull apart, as one loss is to grow."""
    mx.random.seed(1)
    net, opposed = hybridized(Chain()), LossSpec(mx.gluon.loss.L2Loss(weight=-1), "size", "parity")
    net.initialize(mx.init.Xavier())
    losses = {"digit": CE, "parity": LossSpec(L2, "parity", "parity"), "size": opposed}
    spec = digit_spec(outputs=["digit", "parity", "size"], losses=losses)
    batches = digit_batches([8])
    estimator = MultiEstimator(net, spec, balance=Sum(on="features"))
    history = estimator.fit(batches, epochs=30, event_handlers=SILENT)
    cosines = np.array([history[f"train_cosine_{pair}"] for pair in ("digit_parity", "parity_size")])
    assert history["train_conflict"] == ((cosines < -0.1).mean(axis=0)).tolist()
    assert max(history["train_conflict"]) >= 0.5


@pytest.mark.parametrize(("cosine", "conflict"), [(-0.2, 1), (-0.11, 1), (-0.09, 0), (1e-9, 0), (0.9, 0)])
def test_tasks_conflict_if_they_pull_apart(cosine: float, conflict: float) -> None:
    read = GradientFigures(["a", "b"])
    read.add_gramian(np.array([[4, 2 * cosine], [2 * cosine, 1]]))
    assert read.read()["conflict"] == conflict and read.read()["cosine_a_b"] == pytest.approx(cosine)


def test_nan_reaches_whoever_reads_figures() -> None:
    """JSON has null, a tracker gets nothing, and the map a dash."""

    seen: set[str] = set()

    class Tracker:
        def log_figures(self, figures: Any, step: int, epoch: Any) -> None:
            seen.update(figures)

    *_, batches, _, _ = CASES["labels that never meet in a sample"]
    spec = digit_spec(labels=[LabelSpec(name, missing="nan") for name in ("digit", "parity")])
    net = hybridized(two_heads())
    estimator = MultiEstimator(net, spec, initializer=mx.init.Xavier(), balance=Sum(on="features"))
    history = estimator.fit(batches, epochs=1, event_handlers=[LogTo(Tracker())])
    saved = json.loads(history.to_json())
    assert saved["train_cosine_digit_parity"] == [None] == saved["train_conflict"]
    assert "train_gradnorm_digit" in seen
    assert not {"train_cosine_digit_parity", "train_conflict"} & seen
    axes = task_curves(history).axes
    (drawn,) = [each for each in axes if each.get_title() == "cosines of gradients"]
    assert [text.get_text() for text in drawn.texts] == ["1.00", "-", "-", "1.00"]


WARNED = {
    "labels that never meet in a sample": ("features", 1),
    "each half with labels of its own": ("features", 1),
    "labels that meet in one batch": ("features", 0),
    "labels that are in different batches": ("features", 0),
    "branches at two places": ("features", 0),
    "a pair that shares nothing": ("parameters", 0),
}


@pytest.mark.parametrize("case", WARNED)
def test_tasks_that_never_meet_in_an_epoch_are_named_once(case: str, caplog: Any) -> None:
    on, count = WARNED[case]
    estimator = fitted(case, on)
    estimator.fit(CASES[case][2], epochs=1, event_handlers=SILENT)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (
        warnings
        == [
            'balance: Sum compares gradients of features, and in a whole epoch those of "digit" and "parity" '
            'never met, as if no sample had labels of both; on="parameters" compares them'
        ]
        * count
    )


def test_an_epoch_that_is_cut_short_is_not_judged(caplog: Any) -> None:
    spec = digit_spec(labels=[LabelSpec(name, missing="nan") for name in ("digit", "parity")])
    net = hybridized(two_heads())
    estimator = MultiEstimator(net, spec, initializer=mx.init.Xavier(), balance=UPGrad(on="features"))
    data = lacking(APART, FULL)
    estimator.fit(data, batches=1, event_handlers=SILENT)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_one_read_a_batch_also_where_a_task_is_absent(waits: Waits) -> None:  # noqa: F811
    spec = digit_spec(labels=["digit", LabelSpec("parity", missing="nan")])
    batches = placed(lacking(*[FULL, (None, WHOLE)] * 4))
    net = hybridized(two_heads())
    estimator = MultiEstimator(net, spec, initializer=mx.init.Xavier(), balance=UPGrad(on="features"))
    estimator.fit(batches, epochs=1, event_handlers=[*SILENT, waits])
    assert waits.count == 7
