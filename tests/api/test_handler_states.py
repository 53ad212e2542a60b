"""A resumed fit gives each handler the state that is its own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multifit import EarlyStoppingHandler, Every, StoppingHandler
from multifit.handlers import WeightAveraging

from .resume_runs import simple_run


class Named:
    """Remembers the name that it was given first."""

    def __init__(self, monitor: Any = None, width: int = 1, log: Any = None, **others: Any) -> None:
        self.monitor, self.width, self.log = monitor, width, log
        self.first = self.name = others.get("name")

    mode = "min"

    def epoch_end(self, estimator: Any) -> None:
        """An event, so that it is a handler."""

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.first}

    def load_state_dict(self, state: Any) -> None:
        self.first = state["name"]


def bare(name: str) -> Any:
    """Return a handler of a class without a signature."""
    made = SimpleNamespace(epoch_end=lambda estimator: None, first=name, name=name)
    made.state_dict = lambda: {"name": made.first}
    made.load_state_dict = lambda state: vars(made).update(first=state["name"])
    return made


def named(name: str, *arguments: Any, **options: Any) -> Any:
    return Named(*arguments, **options, name=name)


VAL, TRAIN, BOTH = "val_loss", "train_loss", ["val_loss", "train_loss"]


def best(figures: Any) -> float:
    return figures[VAL]


# What was saved, what resumes, and the name of the state that each of these has then.
CASES: dict[str, tuple[list[Any], list[Any], list[str]]] = {
    "the same": ([named("a", VAL), named("b", TRAIN)], [named("c", VAL), named("d", TRAIN)], ["a", "b"]),
    "another order": ([named("a", VAL), named("b", BOTH)], [named("c", BOTH), named("d", VAL)], ["b", "a"]),
    "one left out": ([named("a", VAL), named("b", TRAIN)], [named("c", TRAIN)], ["b"]),
    "another one": ([named("a", VAL)], [named("c", TRAIN)], ["c"]),
    "one more": ([named("a", best)], [named("c", VAL), named("d", best)], ["c", "a"]),
    "other options": ([named("a", VAL, 2)], [named("c", VAL, 3)], ["a"]),
    "alike": ([named("a"), named("b")], [named("c"), named("d")], ["a", "b"]),
    "without a signature": ([bare("a"), bare("b")], [bare("c"), bare("d")], ["a", "b"]),
    "in Every": ([Every(1, "epoch", named("a", VAL))], [Every(2, "epoch", named("c", VAL))], ["a"]),
}  # fmt: skip


@pytest.mark.parametrize(("saved", "here", "expected"), CASES.values(), ids=CASES)
def test_a_state_goes_to_the_handler_that_is_the_same(tmp_path, log, saved, here, expected):
    run = simple_run(tmp_path, Every(1, "epoch"))
    run.fit(*saved, epochs=1)
    run.resume(*here, epochs=2)
    assert [handler.first for handler in here] == expected
    lost = len(saved) - sum(handler.first != handler.name for handler in here)
    assert sum("which this fit does not have" in line for line in log()) == lost


def test_the_log_names_the_figure_of_a_handler_that_was_left_out(tmp_path: Path, log: Any) -> None:
    run = simple_run(tmp_path, Every(1, "epoch"))
    stops = [EarlyStoppingHandler(VAL, patience=9), EarlyStoppingHandler(TRAIN, patience=9, baseline=0.001)]
    run.fit(*stops, StoppingHandler(max_seconds=1e9), WeightAveraging(), WeightAveraging("swa"), epochs=2)
    stop, ema = EarlyStoppingHandler(TRAIN, patience=9, baseline=0.001), WeightAveraging()
    run.resume(stop, ema, epochs=3)
    assert run.estimator.state.epoch == 3  # the default StoppingHandler has its own counts
    assert stop.state_dict()["best"] == {TRAIN: 0.001} and stop.state_dict()["waited"] == 3
    assert ema.state_dict()["count"] == 15
    lost = sorted(line for line in log() if "which this fit does not have" in line)
    assert [line[len("the checkpoint holds the state of ") :].split(",")[0] for line in lost] == [
        "EarlyStoppingHandler('val_loss')",
        "StoppingHandler#2",
        "WeightAveraging#2",
    ]
