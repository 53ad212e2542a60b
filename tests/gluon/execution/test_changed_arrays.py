"""What MXNet differentiates for another engine: what handlers make of outputs and objectives."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import SpecError
from multifit.events import EventDispatcher, TrainingHooks
from multifit.gluon.compat import mx
from multifit.gluon.execution.changed_objective import ChangedObjective, ChangedOutputs
from multifit.gluon.execution.loss_separation import TOGETHER
from multifit.state import RunState
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec
from tests.engines import new_engine


class Penalty:
    def change_objective(self, estimator: Any, objectives: Any, pred: Any) -> Any:
        return [2 * objectives[0], mx.nd.sum(pred["size"][0] ** 2)]

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        return {"size": outputs["size"] * slots["by"], "digit": mx.nd.zeros((2,))}


@pytest.fixture
def hooks() -> TrainingHooks:
    return TrainingHooks(EventDispatcher(SimpleNamespace(state=RunState()), [Penalty()]))


def test_gradients_of_a_changed_objective(hooks: TrainingHooks) -> None:
    engine = new_engine(two_heads(), two_head_spec())
    batch = engine.splitter("train").split(in_batches(two_head_arrays(8).values())[0])
    outputs = {"size": mx.nd.array([1.0, -3.0]), "digit": mx.nd.array([1, 2], dtype="int32")}
    objectives = [mx.nd.array([5.0]), mx.nd.array([7.0])]
    changed = ChangedObjective(engine.spec, batch, outputs, {"digit": mx.nd.ones((2,))}, objectives, None)
    changed.change(hooks, TOGETHER)
    of_outputs, of_parts, of_objectives = changed.gradients()
    assert list(of_outputs) == ["size"] and not of_parts and list(of_objectives) == [0]
    np.testing.assert_array_equal(of_outputs["size"].asnumpy(), [2, -6])
    assert of_objectives[0].asscalar() == 2
    assert hooks.takes("change_objective", "pred") and not hooks.takes("change_objective", "loss")


def test_gradients_of_changed_outputs(hooks: TrainingHooks) -> None:
    outputs = {"size": mx.nd.array([1.0, -3.0]), "digit": mx.nd.array([1.0, 2.0])}
    changed = ChangedOutputs(hooks.change_outputs, outputs, {"by": mx.nd.array([2.0, 3.0])})
    np.testing.assert_array_equal(changed.arrays["size"].asnumpy(), [2, -9])
    heads = {"size": mx.nd.array([10.0, 100.0]), "digit": mx.nd.ones((2,))}
    (reached,) = changed.gradients(heads).items()
    assert reached[0] == "size"
    np.testing.assert_array_equal(reached[1].asnumpy(), [20, 300])


def test_outputs_are_held_to_their_form() -> None:
    engine = new_engine(two_heads(), two_head_spec())
    stage = engine.stages["train"]
    batch = engine.splitter("train").split(in_batches(two_head_arrays(8).values())[0])
    assert stage.network.change_outputs is None
    stage.check_outputs(batch, {"size": mx.nd.zeros((8, 1))})
    with pytest.raises(SpecError, match='the net returns "size" as .8,'):
        stage.check_outputs(batch, {"size": mx.nd.zeros((8,))})
