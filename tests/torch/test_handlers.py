"""Handlers of bridged nets, where a table of trainings (`test_engine.py`) does not show what they do."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit import (
    CheckpointHandler,
    EarlyStoppingHandler,
    Interpretation,
    LabelSpec,
    MultiEstimator,
    SkipNonFinite,
    SpecError,
    TerminateOnNaN,
    WeightAveraging,
)
from multifit.gluon.compat import mx
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import TWO_HEADS, Heads, sequential
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import ADAM, BATCHES, assert_equal, estimator_of


def test_values_that_a_handler_sets_count_for_predictions_and_exports_at_once(tmp_path: Path) -> None:
    image = BATCHES[0][0]

    class Sets:
        def batch_end(self, estimator: Any) -> None:
            zeros = {name: 0 * value for name, value in estimator.values().items()}
            estimator.set_values(zeros)
            assert not estimator.predict(image)["digit"].any()
            ones = {"body.bias": np.ones(8, "float32"), "digit.weight": np.ones((3, 8), "float32")}
            estimator.set_values(ones)
            assert (estimator.predict(image)["digit"] == 8).all()
            estimator.export(tmp_path / str(estimator.state.step), format="torch")

    estimator_of().fit(BATCHES, batches=2, event_handlers=[Sets()])
    for folder in (tmp_path / "1", tmp_path / "2"):
        exported = runpy.run_path(str(folder / "net.py"))["load"]()(torch.from_numpy(image))
        assert (exported["digit"] == 8).all()


@pytest.mark.parametrize("handler", [SkipNonFinite, TerminateOnNaN])
def test_batches_with_nan(handler: Any) -> None:
    arrays = two_head_arrays(40)
    arrays["image"][20] = np.nan

    def fit(engine: str) -> Any:
        # without relu, which makes 0 of NaN in MXNet's operator for CPUs
        body = sequential(mx.gluon.nn.Dense(8, use_bias=False), mx.gluon.nn.BatchNorm())
        seed_everything(5)
        estimator = MultiEstimator(Heads(body=body, **TWO_HEADS), two_head_spec(), ADAM, engine=engine)
        estimator.fit(in_batches(arrays.values()), epochs=1, event_handlers=[handler()])
        return estimator.values(), estimator.state.stop_reason

    (one, reason), (other, same) = fit("mxnet"), fit("torch")
    assert_equal(one, other, 1e-4)
    assert reason == same


def test_a_checkpoint_and_the_restored_net_have_the_averages(tmp_path: Path) -> None:
    estimator, other = estimator_of("float64"), estimator_of("float64")
    handlers = [
        WeightAveraging("ema", decay=0.8),
        CheckpointHandler(tmp_path, monitor="val_loss"),
        EarlyStoppingHandler("val_loss", patience=9, restore_best=True),
    ]
    history = estimator.fit(BATCHES, BATCHES, epochs=3, event_handlers=handlers)
    other.load(tmp_path, "best")
    for each in (estimator, other):
        loss = each.evaluate(BATCHES, event_handlers=[])["loss"]
        np.testing.assert_allclose(loss, min(history["val_loss"]), rtol=1e-10)


def test_confusions_and_pairs_are_those_of_mxnet() -> None:
    spec = two_head_spec(labels=[LabelSpec("digit", missing=1), "size"])

    def interpret(engine: str) -> Any:
        found = Interpretation()
        estimator_of("float64", engine, spec=spec).evaluate(BATCHES, event_handlers=[found])
        assert 0 < found.confusion["digit"].sum() < sum(len(batch[0]) for batch in BATCHES)
        assert found.confusion["digit"][1].sum() == 0
        return [found.confusion, found.scatter]

    assert_engines_agree(interpret)


class Detached:
    def change_objective(self, estimator: Any, objectives: Any) -> Any:
        return [objective.detach() for objective in objectives]


class Transposed:
    """Returns other forms, but for the first batch, in which it is called by the check and by the step."""

    calls = 0

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        self.calls += 1
        return {"size": outputs["size"].T} if self.calls > 2 else {}


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (Detached, "losses: the objective has no gradient"),
        (Transposed, 'outputs: the net returns "size" as .1, 8. .* in the first batch'),
    ],
)
def test_errors_move_no_parameter(handler: Any, message: str) -> None:
    estimator, seen = estimator_of(), []

    class Watch:
        def batch_begin(self, estimator: Any) -> None:
            seen.append(estimator.values())

    with pytest.raises(SpecError, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=[handler(), Watch()])
    np.testing.assert_equal(estimator.values(), seen[-1])
