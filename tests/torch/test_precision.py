"""bfloat16 and float16, in which torch alone computes; gradients of the latter are scaled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit import MultiEstimator, TerminateOnNaN, TrainerSpec
from multifit.gluon import precision as precisions
from multifit.torch.traced.backward_pass import AutogradPass
from multifit.torch.traced.scaling import Scaled, Scaling, Unscaled
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec
from tests.torch.fits import codes_of
from tests.torch.runs import BATCHES, assert_equal, assert_resumes, estimator_of, values

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_net_alone_is_lowered(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "cpu_supports_bfloat16", lambda: False)

    def fit(precision: str) -> tuple[dict[str, Any], str]:
        estimator = estimator_of(precision=precision)
        estimator._runner.load({**estimator._runner.state(), "scale": 64.0})  # with which nothing overflows
        history = estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[])
        assert {array.dtype.name for array in estimator.predict(BATCHES).values()} == {"float32"}
        assert {value.dtype.name for value in values(estimator).values()} == {"float32"}
        (code,) = codes_of(estimator)
        return {name: history[name] for name in ("train_loss", "val_loss")}, code

    (full, of_full), (low, of_low) = fit("float32"), fit(precision)
    assert of_low.count(f"torch.{precision}") and "float16" not in of_full
    assert_equal(full, low, 0.02)
    assert low["train_loss"] != full["train_loss"]


def test_mxnet_does_not_train_in_float16() -> None:
    message = 'precision is "float16", which MXNet cannot train in; give .* or engine="torch"'
    with pytest.raises(ValueError, match=message):
        MultiEstimator(two_heads("hybridized"), two_head_spec(), precision="float16")


def test_gradients_that_overflow_in_float16_do_not_end_a_fit() -> None:
    estimator = estimator_of(precision="float16")
    estimator._runner.load({**estimator._runner.state(), "scale": 2.0**60})
    estimator.fit(BATCHES, epochs=2, event_handlers=[TerminateOnNaN()])
    assert estimator.state.stop_reason == "2 epochs"
    assert estimator._runner.state()["scale"] < 2.0**60


# ---- scaled gradients --------------------------------------------------------------------------------------

INPUTS = [[1.0, 2.0], [float("inf"), 1.0], [0.5, -1.0], [3.0, 0.0]]


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.tensor(value)) for value in ([1.0, 2.0], [0.5, 0.5], [3.0])]


def objective(of: Any, inputs: list[float]) -> torch.Tensor:
    """Return one that reaches the first two of three parameters; the second's gradient is an expanded 1."""
    return (of[0] ** 2 * torch.tensor(inputs)).sum() + of[1].sum()


def gradients_of(scaling: Scaling, objectives: list[Any], moved: list[Any]) -> list[torch.Tensor]:
    return scaling.gradients(AutogradPass(objectives, moved))


def trained(scaling: Scaling, inputs: list[list[float]]) -> tuple[list[torch.nn.Parameter], list[int]]:
    """Return the parameters after steps of SGD, and which steps were taken."""
    moved, taken = parameters(), []
    for number, each in enumerate(inputs):
        gradients = gradients_of(scaling, [objective(moved, each)], moved)
        overflowed = scaling.overflowed()
        if not overflowed:
            taken.append(number)
            with torch.no_grad():
                torch._foreach_sub_(moved, gradients, alpha=0.1)
        scaling.update(overflowed)
    return moved, taken


def test_steps_are_those_of_a_loop_with_torchs_scaler() -> None:
    theirs, scaler = parameters(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(theirs, lr=0.1)
    for each in INPUTS:
        optimizer.zero_grad()
        scaler.scale(objective(theirs, each)).backward()
        scaler.step(optimizer)
        scaler.update()
    scaled = Scaled(CPU)
    ours, taken = trained(scaled, INPUTS)
    assert taken == [0, 2, 3] and scaled.state() == {**scaler.state_dict(), "overflowed": False}
    for one, other in zip(theirs, ours):
        assert torch.equal(one, other) and other.grad is None
    plain, taken = trained(Unscaled(), [INPUTS[at] for at in (0, 2, 3)])
    assert taken == [0, 1, 2]
    for one, other in zip(plain, ours):
        assert torch.allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("scaling", [Scaled(CPU), Unscaled()], ids=["scaled", "unscaled"])
def test_objectives_that_reach_nothing(scaling: Scaling) -> None:
    moved = parameters()
    gradients = gradients_of(scaling, [], moved)
    assert not any(gradient.any() for gradient in gradients) and not scaling.overflowed()
    scaling.update(False)


# ---- a fit in float16 --------------------------------------------------------------------------------------


def test_a_batch_that_overflows_moves_nothing_and_is_no_update() -> None:
    arrays = two_head_arrays(40)
    arrays["image"][20] = 1e30  # in the third batch; infinite in float16
    counts: list[Any] = []

    class Watch:
        def batch_end(self, estimator: Any) -> None:
            counts.append(
                (estimator.trainers["trainer"].optimizer.num_update, values(estimator)["body.bias"])
            )

    estimator = estimator_of(precision="float16", trainers=TrainerSpec(".*", "adam"))
    estimator._runner.load({**estimator._runner.state(), "scale": 64.0})
    estimator.fit(in_batches(arrays.values()), epochs=1, event_handlers=[Watch()])
    assert [count for count, _ in counts] == [1, 2, 2, 3, 4]
    assert_equal({"bias": counts[1][1]}, {"bias": counts[2][1]})
    assert all(np.isfinite(value).all() for _, value in counts)
    assert estimator._runner.state()["scale"] == 32.0 and estimator.state.step == 5


@pytest.mark.parametrize("held", [False, True], ids=["accumulate", "held"])
def test_a_batch_that_overflows_takes_with_it_what_was_added_up(held: bool) -> None:
    arrays = two_head_arrays(64)
    arrays["image"][20] = 1e30  # in the third batch; infinite in float16

    class Hold:
        def train_begin(self, estimator: Any) -> None:
            for parameter in estimator.net.collect_params().values():
                parameter.grad_req = "add"

        def hold_update(self, estimator: Any, loss: Any) -> bool:
            return estimator.state.step % 4 < 3

    counts = []

    class Watch:
        def batch_end(self, estimator: Any) -> None:
            counts.append(estimator.trainers["trainer"].optimizer.num_update)

    rhythm = {} if held else {"every": 4, "accumulate": True}
    estimator = estimator_of(precision="float16", trainers=TrainerSpec(".*", "adam", **rhythm))
    estimator._runner.load({**estimator._runner.state(), "scale": 64.0})
    handlers = [Watch(), Hold()] if held else [Watch()]
    estimator.fit(in_batches(arrays.values()), epochs=1, event_handlers=handlers)
    # of a window in which updates are held, nothing is left; a trainer's begins anew after the third batch
    assert counts == ([0, 0, 0, 0, 0, 0, 0, 1] if held else [0, 0, 0, 1, 1, 1, 1, 2])
    assert all(np.isfinite(value).all() for value in values(estimator).values())


def test_a_run_resumes_with_its_scale(tmp_path: Path) -> None:
    made = []

    def make(engine: str) -> MultiEstimator:
        made.append(estimator_of(precision="float16", engine=engine))
        return made[-1]

    assert_resumes(make, tmp_path, stop=3)
    whole, _, resumed = made
    assert whole._runner.state() == resumed._runner.state() != Scaled(CPU).state()
