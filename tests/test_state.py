"""multifit.state: the counters and the reason to stop."""

from __future__ import annotations

from multifit.state import RunState


def test_a_new_run_stands_at_its_begin() -> None:
    state = RunState()
    assert (state.epoch, state.batch, state.step, state.samples) == (0, 0, 0, 0)
    assert not state.stopped


def test_the_first_reason_counts() -> None:
    state = RunState()
    state.stop("val_loss rises")
    state.stop("20 epochs")
    assert state.stopped
    assert state.stop_reason == "val_loss rises"


def test_an_empty_reason_stops_too() -> None:
    state = RunState()
    state.stop("")
    assert state.stopped


def test_a_second_fit_goes_on_counting_and_is_not_stopped() -> None:
    state = RunState(epoch=19, batch=3, step=80, samples=640, stop_reason="20 epochs")
    state.start()
    assert state == RunState(epoch=19, batch=3, step=80, samples=640)


def test_place_counts_from_one() -> None:
    assert RunState(epoch=2, batch=7).place == "epoch 3, batch 8"
