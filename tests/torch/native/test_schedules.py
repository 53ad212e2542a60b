"""Rates: schedules of torch and of multifit, set at any time, and exact when they are resumed."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from multifit import TrainerSpec
from multifit.schedules import OneCycle, WarmUp
from multifit.torch.handle import TrainerHandle
from tests.torch.native.steps import batches_of, messages, small_net, train, trainers_of, values


def rates_of(schedule: Any, count: int, options: Any = None, sets: Any = None) -> list[float]:
    """The rates of the updates and the one after them; `sets` are rates that are set before some."""
    net, rates = small_net(), []
    trainers = trainers_of(net, TrainerSpec(".*", "sgd", options, schedule))
    for step in range(count):
        if step in (sets or {}):
            trainers["trainer"].learning_rate = sets[step]
        rates.append(trainers.learning_rates()["lr"])
        train(trainers, net, batches_of(4), start=step)
    return [*rates, trainers["trainer"].learning_rate]


def of_torch(schedule: Any, count: int, rate: float) -> list[float]:
    optimizer = torch.optim.SGD(small_net().parameters(), lr=rate)
    scheduler, rates = schedule(optimizer), []
    for _ in range(count + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


OF_TORCH: dict[str, Any] = {
    "step": partial(StepLR, step_size=2),
    "exponential": partial(ExponentialLR, gamma=0.7),
    "multi_step": partial(MultiStepLR, milestones=[2, 4]),
    "cosine": partial(CosineAnnealingLR, T_max=5, eta_min=0.01),
    "lambda": partial(LambdaLR, lr_lambda=lambda n: 1 / (n + 1)),
    "one_cycle": partial(OneCycleLR, max_lr=0.3, total_steps=20),
    "sequential": lambda optimizer: SequentialLR(
        optimizer, [ConstantLR(optimizer, 0.1, 3), MultiStepLR(optimizer, [2])], milestones=[3]
    ),
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_a_schedule_of_torch_sets_the_rates_of_torch_s_loop(name):
    assert rates_of(OF_TORCH[name], 6, {"lr": 0.1, "momentum": 0.5}) == pytest.approx(
        of_torch(OF_TORCH[name], 6, 0.1) if name != "one_cycle" else rates_of_cycle(), rel=1e-12
    )


def rates_of_cycle() -> list[float]:
    optimizer = torch.optim.SGD(small_net().parameters(), lr=0.1, momentum=0.5)
    scheduler, rates = OneCycleLR(optimizer, max_lr=0.3, total_steps=20), []
    for _ in range(7):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("name", OF_TORCH)
def test_a_rate_that_is_set_scales_a_schedule_of_torch(name):
    plain = rates_of(OF_TORCH[name], 6, {"lr": 0.1, "momentum": 0.5})
    changed = rates_of(OF_TORCH[name], 6, {"lr": 0.1, "momentum": 0.5}, {2: 0.5, 4: 0.25})
    assert changed[:2] == plain[:2] and (changed[2], changed[4]) == (0.5, 0.25)
    expected = [0.5, 0.5 * plain[3] / plain[2], 0.25, 0.25 * plain[5] / plain[4]]
    assert changed[2:6] == pytest.approx(expected, rel=1e-12)


def test_a_rate_that_is_set_scales_a_schedule_of_multifit():
    schedule = OneCycle(0.1, 8)
    plain = rates_of(schedule, 6)
    assert plain == [schedule(number) for number in range(7)]
    changed = rates_of(schedule, 6, sets={2: 0.5})
    assert changed[2] == 0.5  # but the schedule counts the next update
    assert changed[3:] == pytest.approx([0.5 * rate / plain[2] for rate in plain[3:]], rel=1e-12)


def test_a_rate_in_the_options_replaces_the_schedule_s():
    assert rates_of(OneCycle(0.1, 8), 3, {"learning_rate": 0.2}) == [OneCycle(0.2, 8)(n) for n in range(4)]
    used = OneCycle(0.1, 8)
    rates_of(used, 1, {"lr": 0.2})
    assert used.base_lr == 0.1


def test_a_rate_that_is_set_while_the_schedule_is_at_0_holds_until_it_leaves_0():
    late = partial(LambdaLR, lr_lambda=lambda n: float(n > 2))
    assert rates_of(late, 5, {"lr": 0.1}, {1: 0.5}) == [0.0, 0.5, 0.5, 0.1, 0.1, 0.1]
    assert rates_of(WarmUp(OneCycle(0.1, 8), 2), 1, sets={0: 0.5})[0] == 0.5


def test_a_rate_without_a_schedule_stays_as_it_was_set():
    assert rates_of(None, 2, {"lr": 0.1}, {1: 0.3}) == [0.1, 0.3, 0.3]


def test_groups_keep_the_ratios_of_their_rates():
    net = small_net()

    def groups(parameters: Any) -> Any:
        return torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02}], lr=0.1)

    trainers = trainers_of(net, TrainerSpec(".*", groups))
    rates = lambda: [group["lr"] for group in trainers["trainer"].param_groups]  # noqa: E731
    trainers["trainer"].learning_rate = 0.5
    assert rates() == pytest.approx([0.5, 0.1])
    trainers["trainer"].param_groups[1]["lr"] = 0.25
    trainers["trainer"].set_learning_rate(1.0)
    assert rates() == pytest.approx([1.0, 0.5])
    trainers["trainer"].learning_rate = 0
    assert rates() == [0, 0]
    trainers["trainer"].learning_rate = 0.3
    assert rates() == [0.3, 0.3]
    trainers = trainers_of(net, TrainerSpec(".*", groups, lr_scheduler=OneCycle(0.4, 10)))
    train(trainers, net, batches_of(4))
    rate = OneCycle(0.4, 10)(1)
    assert rates() == pytest.approx([rate, rate / 5])


def test_a_rate_that_is_a_tensor_is_written_in_place():
    net, rate = small_net(), torch.tensor(0.1)
    trainers = trainers_of(net, TrainerSpec(".*", "adam", {"lr": rate, "foreach": False}, OF_TORCH["step"]))
    train(trainers, net, batches_of(4, 4))
    trainers["trainer"].learning_rate = 0.5
    group = trainers["trainer"].param_groups[0]
    assert isinstance(group["lr"], torch.Tensor) and trainers.learning_rates() == {"lr": 0.5}


@pytest.mark.parametrize("name", [*OF_TORCH, "multifit"])
@pytest.mark.parametrize("rate", [None, 0.02])
def test_a_schedule_continues_where_it_was_saved(name, rate):
    schedule = {**OF_TORCH, "multifit": OneCycle(0.1, 9)}[name]
    spec = TrainerSpec(".*", "sgd", {"lr": 0.1, "momentum": 0.9}, schedule)
    nets, batches = [small_net(), small_net()], batches_of(4, 3, 2, 5, 4, 6)
    first = trainers_of(nets[0], spec)
    train(first, nets[0], batches[:3])
    if rate is not None:
        first["trainer"].learning_rate = rate
    nets[1].load_state_dict(nets[0].state_dict())
    second = trainers_of(nets[1], spec)
    second.load(first.state())
    assert second.learning_rates() == first.learning_rates()
    for trainers, net in zip((first, second), nets):
        train(trainers, net, batches[3:], start=3)
    assert torch.equal(values(nets[0]), values(nets[1]))
    assert second.learning_rates() == first.learning_rates()


@pytest.mark.parametrize("name", [*OF_TORCH, "multifit"])
def test_a_rate_that_is_held_is_changed_by_no_schedule(name):
    schedule = {**OF_TORCH, "multifit": OneCycle(0.1, 9)}[name]
    net = small_net()
    trainers = trainers_of(net, TrainerSpec(".*", "sgd", {"lr": 0.1, "momentum": 0.9}, schedule))
    train(trainers, net, batches_of(4))
    before, state = trainers.learning_rates(), copy.deepcopy(trainers.state())
    for rate in (0.5, 0.25):
        trainers["trainer"].hold(rate)
        train(trainers, net, batches_of(4))
        assert trainers.learning_rates() == {"lr": rate}
    trainers.load(state)  # as after a trial
    assert trainers.learning_rates() == before
    train(trainers, net, batches_of(4))
    assert trainers.learning_rates()["lr"] == rates_of(schedule, 2, {"lr": 0.1, "momentum": 0.9})[2]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            StepLR(torch.optim.SGD(small_net().parameters()), 1),
            ": lr_scheduler is <torch.optim.lr_scheduler.StepLR object",
        ),
        ("cosine", ": lr_scheduler is 'cosine'; give a function of the optimizer, such as functools.partial"),
        (StepLR, ": StepLR does not take {}: StepLR.__init__() missing 1 required positional argument"),
        (
            partial(StepLR, step=3),
            ": StepLR does not take {}: StepLR.__init__() got an unexpected keyword argument 'step'",
        ),
        (ReduceLROnPlateau, ": ReduceLROnPlateau reads a figure; use the handler multifit.PlateauHandler"),
        (
            lambda optimizer: 0.1,
            ": lr_scheduler returned 0.1 for the optimizer; it must return a scheduler of",
        ),
    ],
    ids=range(6),
)
def test_what_is_no_schedule_is_refused(schedule, message):
    (found,) = messages(small_net(), TrainerSpec(".*", "sgd", lr_scheduler=schedule))
    assert found.startswith("trainers") and message in found


def test_errors_of_a_schedule_of_the_user_s_own_say_where():
    def fails(optimizer: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as raised:
        messages(small_net(), TrainerSpec(".*", "sgd", lr_scheduler=fails))
    assert "raised in trainers: lr_scheduler: <function" in raised.value.__notes__[0]

    def late(number: int) -> float:
        return 0.1 if number < 2 else 1 / 0

    net = small_net()
    trainers = trainers_of(net, {"all": TrainerSpec(".*", "sgd", {}, partial(LambdaLR, lr_lambda=late))})
    train(trainers, net, batches_of(4))
    with pytest.raises(ZeroDivisionError) as raised:
        train(trainers, net, batches_of(4))
    assert raised.value.__notes__ == ['raised in trainers["all"]']


def test_an_optimizer_without_a_rate_has_no_figure():
    class Fixed(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self) -> None:
            pass

    trainers = trainers_of(small_net(), TrainerSpec(".*", Fixed))
    assert trainers.learning_rates() == {} and isinstance(trainers["trainer"], TrainerHandle)
