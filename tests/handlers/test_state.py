"""The counters of a run and the reason to stop."""

from typing import Any

import pytest

from multifit.handlers.state import RunState
from tests.common.ranks import run_ranks


@pytest.mark.parametrize("first", ["val_loss rises", ""])
def test_the_first_reason_to_stop_counts_until_the_next_fit(first: str) -> None:
    state = RunState(epoch=19, batch=3, step=80, samples=640, interrupted=True)
    state.stop(first)
    state.stop("20 epochs")
    assert state.stopped and state.stop_reason == first
    state.start()
    assert state == RunState(epoch=19, batch=3, step=80, samples=640)


def test_a_checkpoint_holds_the_counters_and_the_seed() -> None:
    state, restored = RunState(epoch=2, batch=7, step=27, samples=216, seed=3), RunState()
    restored.load(state.to_dict())
    assert restored == state and state.place == "epoch 3, batch 8"


@pytest.mark.parametrize(
    ("asked", "reason", "interrupted"),
    [
        ([["interrupt"], []], "SIGINT (rank 0)", True),
        ([[], ["stop", "interrupt"]], "20 epochs (rank 1)", False),
        ([["interrupt"], ["stop"]], "20 epochs (rank 1)", False),
        ([["stop"], ["interrupt"]], "20 epochs (rank 0)", False),
        ([["interrupt", "interrupt"], ["interrupt"]], "SIGINT", True),
    ],
)
def test_ranks_agree_on_a_handlers_reason_before_an_interrupt(asked, reason, interrupted):
    def agree(world: Any) -> tuple[str | None, bool]:
        state = RunState(world=world)
        for how in asked[world.rank]:
            state.stop("SIGINT" if how == "interrupt" else "20 epochs", interrupted=how == "interrupt")
        assert not state.stopped
        state.agree()
        return state.stop_reason, state.interrupted

    assert run_ranks(2, agree) == [(reason, interrupted)] * 2
