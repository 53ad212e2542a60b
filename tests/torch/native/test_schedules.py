"""Rates: schedules of torch and of multifit, set at any time, and exact when they are resumed."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as of_torch

from multifit import CheckpointHandler, Every, MultiEstimator, TrainerError, TrainerSpec
from multifit.schedules import OneCycle, WarmUp

from .nets import SGD, batches, heads, spec_of_heads
from .test_fits import SCHEDULES

ALL = {**SCHEDULES, "of multifit": OneCycle(0.1, 9)}


class Sets:
    """Sets rates before some updates, and notes those of all."""

    def __init__(self, sets: dict[int, float] | None = None) -> None:
        self.sets, self.rates = sets or {}, list[float]()

    def batch_begin(self, estimator: Any) -> None:
        if estimator.state.step in self.sets:
            estimator.trainers["trainer"].learning_rate = self.sets[estimator.state.step]
        self.rates.append(estimator.learning_rates()["lr"])


def estimator_of(schedule: Any = None, options: Any = SGD, optimizer: Any = "sgd") -> MultiEstimator:
    return MultiEstimator(heads(), spec_of_heads(), TrainerSpec(".*", optimizer, options, schedule))


def rates_of(schedule: Any, count: int, options: Any = SGD, sets: Any = None) -> list[float]:
    """Return the rates of the updates and the one after them; `sets` are rates that are set before some."""
    estimator, noting = estimator_of(schedule, options), Sets(sets)
    estimator.fit(batches(*[4] * count), epochs=1, event_handlers=[noting])
    return [*noting.rates, estimator.learning_rates()["lr"]]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rate_that_is_set_scales_a_schedule_of_torch(name: str) -> None:
    plain, changed = rates_of(SCHEDULES[name], 6), rates_of(SCHEDULES[name], 6, sets={2: 0.5, 4: 0.25})
    assert changed[:2] == plain[:2] and (changed[2], changed[4]) == (0.5, 0.25)
    expected = [0.5, 0.5 * plain[3] / plain[2], 0.25, 0.25 * plain[5] / plain[4]]
    assert changed[2:6] == pytest.approx(expected, rel=1e-12)


def test_a_rate_that_is_set_scales_a_schedule_of_multifit() -> None:
    schedule = OneCycle(0.1, 8)
    plain, changed = rates_of(schedule, 6, None), rates_of(schedule, 6, None, {2: 0.5})
    assert plain == [schedule(number) for number in range(7)]
    assert changed[2] == 0.5  # but the schedule counts the next update
    assert changed[3:] == pytest.approx([0.5 * rate / plain[2] for rate in plain[3:]], rel=1e-12)


def test_a_rate_in_the_options_replaces_the_schedule_s() -> None:
    used = OneCycle(0.1, 8)
    assert rates_of(used, 3, {"learning_rate": 0.2}) == [OneCycle(0.2, 8)(n) for n in range(4)]
    assert used.base_lr == 0.1


def test_a_rate_that_is_set_while_the_schedule_is_at_0_holds_until_it_leaves_0() -> None:
    late = partial(of_torch.LambdaLR, lr_lambda=lambda n: float(n > 2))
    assert rates_of(late, 5, {"lr": 0.1}, {1: 0.5}) == [0.0, 0.5, 0.5, 0.1, 0.1, 0.1]
    assert rates_of(WarmUp(OneCycle(0.1, 8), 2), 1, None, {0: 0.5})[0] == 0.5


def test_a_rate_without_a_schedule_stays_as_it_was_set() -> None:
    assert rates_of(None, 2, {"lr": 0.1}, {1: 0.3}) == [0.1, 0.3, 0.3]


def in_groups(parameters: Any) -> Any:
    return torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02}], lr=0.1)


def test_groups_keep_the_ratios_of_their_rates() -> None:
    rates = lambda handle: [group["lr"] for group in handle.param_groups]  # noqa: E731
    handle: Any = estimator_of(None, None, in_groups).trainers["trainer"]
    for rate, expected in ((0.5, [0.5, 0.1]), (1.0, [1.0, 0.2]), (0, [0, 0]), (0.3, [0.3, 0.3])):
        handle.learning_rate = rate
        assert rates(handle) == pytest.approx(expected)
    handle.param_groups[1]["lr"] = 0.15
    handle.set_learning_rate(1.0)
    assert rates(handle) == pytest.approx([1.0, 0.5])
    estimator = estimator_of(OneCycle(0.4, 10), None, in_groups)
    estimator.fit(batches(4), epochs=1)
    rate = OneCycle(0.4, 10)(1)
    assert rates(estimator.trainers["trainer"]) == pytest.approx([rate, rate / 5])


def test_a_rate_that_is_a_tensor_is_written_in_place() -> None:
    rate = torch.tensor(0.1)
    estimator = estimator_of(SCHEDULES["step"], {"lr": rate, "foreach": False}, "adam")
    estimator.fit(batches(4, 4), epochs=1, event_handlers=[Sets({1: 0.5})])
    (group,) = estimator.trainers["trainer"].param_groups
    assert isinstance(group["lr"], torch.Tensor) and float(group["lr"]) == pytest.approx(0.05)
    assert estimator.learning_rates() == {"lr": float(group["lr"])}


@pytest.mark.parametrize("name", ["lambda", "one_cycle", "sequential", "of multifit"])
def test_a_schedule_continues_after_a_resume_and_after_a_search_for_a_rate(name: str, tmp_path: Path) -> None:
    def fit(folder: Path, count: int, **options: Any) -> MultiEstimator:
        saves = CheckpointHandler(tmp_path / folder, Every(3, "batch"))
        estimator.fit(data, batches=count, event_handlers=[Sets({2: 0.02}), saves], **options)
        return estimator

    data, estimator = batches(4, 3, 2, 5, 4, 6), estimator_of(ALL[name])
    whole = fit(Path("whole"), 6)
    estimator = estimator_of(ALL[name])
    fit(Path("cut"), 3)
    rate = estimator.learning_rates()
    search = estimator.find_learning_rate(data, 1e-3, 0.1, 10)
    assert search.rates == pytest.approx(np.geomspace(1e-3, 0.1, 10)) and len(set(search.losses)) == 10
    assert estimator.learning_rates() == rate
    estimator.fit(data[3:], batches=3, event_handlers=[])
    searched, estimator = estimator, estimator_of(ALL[name])
    resumed = fit(Path("cut"), 6, resume=tmp_path / "cut")
    for each in (searched, resumed):
        assert each.learning_rates() == whole.learning_rates()
        np.testing.assert_equal(each.values(), whole.values())


OF_ANOTHER = of_torch.StepLR(torch.optim.SGD(heads().parameters()), 1)
# fmt: off
REFUSED: dict[str, tuple[Any, str]] = {
    "of another optimizer": (OF_ANOTHER, ": lr_scheduler is <torch.optim.lr_scheduler.StepLR object"),
    "a name": ("cosine", ": lr_scheduler is 'cosine'; give a function of the optimizer, such as"),
    "too few arguments": (of_torch.StepLR,
        ": StepLR does not take {}: StepLR.__init__() missing 1 required positional argument"),
    "unknown arguments": (partial(of_torch.StepLR, step=3),
        ": StepLR does not take {}: StepLR.__init__() got an unexpected keyword argument 'step'"),
    "of a figure": (of_torch.ReduceLROnPlateau,
        ": ReduceLROnPlateau reads a figure; use the handler multifit.PlateauHandler"),
    "no scheduler": (lambda optimizer: 0.1,
        ": lr_scheduler returned 0.1 for the optimizer; it must return a scheduler of"),
}
# fmt: on


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_schedule_is_refused(name: str) -> None:
    schedule, message = REFUSED[name]
    with pytest.raises(TrainerError) as raised:
        estimator_of(schedule).check(batches(4))
    (problem,) = raised.value.problems
    assert problem.message.startswith("trainers") and message in problem.message


def test_errors_of_a_schedule_of_the_user_s_own_say_where() -> None:
    def fails(optimizer: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as raised:
        estimator_of(fails).check(batches(4))
    assert "raised in trainers: lr_scheduler: <function" in raised.value.__notes__[0]
    late = partial(of_torch.LambdaLR, lr_lambda=lambda number: 0.1 if number < 2 else 1 / 0)
    with pytest.raises(ZeroDivisionError) as of_step:
        estimator_of(late).fit(batches(4, 4, 4), epochs=1)
    assert of_step.value.__notes__ == ['raised in trainers["trainer"] (epoch 1, batch 2)']


def test_an_optimizer_without_a_rate_has_no_figure() -> None:
    class Fixed(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self) -> None:
            pass

    history = estimator_of(None, None, Fixed).fit(batches(4), epochs=1)
    assert "lr" not in history and "train_loss" in history
