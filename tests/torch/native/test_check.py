"""The check of the first batch and the plan: nothing changes, labels are cast, gradients reach parameters."""

from __future__ import annotations

import copy
import json
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from multifit import (
    DataError,
    LabelSpec,
    LossSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
    TrainerError,
    TrainerSpec,
)

from .faulty import CE, MSE, Setup, around, arrays, new_setup
from .nets import Given, assert_equal_parameters


class Noisy(nn.Module):
    """Draws from all random generators, and changes what a forward pass may change, but must not."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm, self.dropout = nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x: Any) -> Any:
        self.calls = self.calls + 1  # another tensor
        self.dense.bias.data.add_(1)
        self.zero_grad()
        return self.dropout(self.norm(self.dense(x))) * (random.random() + np.random.rand() + 1)


def states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def of_net(net: nn.Module, **changes: Any) -> Setup:
    """Return a setup of one cross entropy around a net."""
    return around(lambda dense, x: x).but(net=net, **changes)


@pytest.mark.parametrize("layers", [False, True])
def test_a_check_changes_nothing(layers: bool) -> None:
    net = Noisy()
    net.dense.weight.grad = gradient = torch.ones(3, 6)
    net.dropout.eval()
    buffer, setup = net.calls, of_net(net)
    estimator, before = setup.make(), setup.parameters()
    modes, drawn = [m.training for m in net.modules()], states()
    estimator.check(setup.data, setup.data, layers=layers)
    assert not setup.moved(before) and states() == drawn
    assert [m.training for m in net.modules()] == modes
    assert net.calls is buffer and net.dense.weight.grad is gradient and bool((gradient == 1).all())
    assert estimator.figures() == {} and not any(m._forward_hooks for m in net.modules())


def test_a_fit_trains_the_first_batch_like_any_other_also_after_one_that_was_refused() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    hand, data = copy.deepcopy(net), [arrays()[:2]] * 3
    estimator = of_net(net).with_trainers(TrainerSpec(".*", "sgd", {"lr": 0.1})).make()
    with pytest.raises(SpecError):
        estimator.fit([[arrays()[0], arrays()[1] + 9]], epochs=1)
    torch.manual_seed(1)
    estimator.fit(data, epochs=1)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(hand.parameters(), 0.1)
    for x, digit in data:
        optimizer.zero_grad()
        F.cross_entropy(hand(torch.tensor(x)), torch.tensor(digit)).backward()
        optimizer.step()
    assert_equal_parameters(net, hand, 1e-6)


class Late(nn.Module):
    """A net that does not call one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.late = nn.Linear(6, 3), nn.LazyLinear(2)

    def forward(self, x: Any) -> Any:
        return self.net(x)


def test_lazy_modules_get_the_shapes_of_the_first_batch() -> None:
    setup = of_net(nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 3)))
    assert setup.check().trainers[0].size == 6 * 4 + 4 + 8 + 15
    setup.trains()
    with pytest.raises(DataError, match="1 problem found:\n  1. the batch has 3 arrays"):
        of_net(nn.Sequential(nn.LazyLinear(3)), data=[arrays()]).fit()
    of_net(Late()).refused(TrainerError, "the forward pass never reached")
    setup = of_net(Late(), estimator={"frozen": ["late.*"]})
    assert [layer.parameters for layer in setup.check(layers=True).layers] == [21, 0]


# ---- casts

DIGIT, ONE_HOT = arrays()[1], np.eye(3, dtype="int64")[arrays()[1]]
# a loss, its label, and the dtypes before and after the cast that is logged
CASTS: dict[str, tuple[Any, Any, str, str | None]] = {
    "classes in float32": (CE(), DIGIT.astype("float32"), "float32", "int64"),
    "classes in int32": (CE(), DIGIT.astype("int32"), "int64", None),
    "a function on classes in float32": (F.cross_entropy, DIGIT.astype("float32"), "float32", "int64"),
    "one-hot integers": (CE(), ONE_HOT, "int64", "float32"),
    "logits of integers": (nn.BCEWithLogitsLoss(), ONE_HOT, "int64", "float32"),
    "logits of bool": (nn.BCEWithLogitsLoss(), ONE_HOT.astype(bool), "bool", "float32"),
    "squares of integers": (MSE(), ONE_HOT, "int64", None),
    "squares of doubles": (MSE(), ONE_HOT.astype("float64"), "float32", None),
}


@pytest.mark.parametrize("name", CASTS)
def test_labels_are_cast_if_the_loss_needs_that(name: str, caplog: Any) -> None:
    loss, label, before, after = CASTS[name]
    setup = around(lambda dense, x: dense(x), losses={"digit": LossSpec(loss)})
    with caplog.at_level(logging.INFO, "multifit"):
        setup.but(data=[[arrays()[0], label]] * 2, val_data=[[arrays()[0], label]]).trains()
    assert (f'"digit" is {before} and is cast to {after}' in caplog.text) == (after is not None)


def test_a_declared_dtype_is_kept() -> None:
    setup = around(lambda dense, x: dense(x), labels=[LabelSpec("digit", dtype="float32")])
    setup.but(data=[[arrays()[0], DIGIT]]).refused(RuntimeError, 'raised in losses["digit"], called with')


def test_inputs_are_cast_if_the_net_needs_that(caplog: Any) -> None:
    pixels = np.arange(48, dtype="uint8").reshape(8, 6)
    setup = around(lambda dense, x, index: dense(x) + index[:, None].bitwise_and(1), inputs=["x", "index"])
    with caplog.at_level(logging.INFO, "multifit"):
        setup.but(data=[[pixels, np.arange(8), DIGIT]]).trains()
    assert '"x" is uint8 and is cast to float32' in caplog.text and '"index"' not in caplog.text


# ---- losses, value by value

OUTPUT, LABEL, OTHER = (torch.randn(4, size, dtype=torch.float64) for size in (3, 3, 2))
MASK = torch.arange(12).reshape(4, 3) % 3 > 0  # whose samples all have a part
ROWS, THERE = torch.tensor([1.0, 0.0, 2.0, 4.0]).double(), torch.tensor([True, False, False, True])


def figure(loss: LossSpec, labels: list[Any], *columns: Any) -> float:
    unused = ["w"] * ("w" in labels and loss.sample_weight is loss.normalize_by is None)
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=labels, losses={"l": loss}, unused=unused)
    return MultiEstimator(Given(), spec).evaluate([(OUTPUT, *columns)])["l"]


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(), nn.BCEWithLogitsLoss()], ids=str)
def test_values_that_are_missing_or_weighed(loss: nn.Module) -> None:
    label, values = LABEL.sigmoid(), copy.deepcopy(loss)
    values.reduction = "none"
    each, missing = values(OUTPUT, label), torch.where(MASK, label, torch.nan)
    weighed = LossSpec(loss, "o", "y", sample_weight="w")
    found = [
        figure(LossSpec(loss, "o", "y"), [LabelSpec("y", missing="nan")], missing),
        figure(weighed, ["y", "w"], label, ROWS),
        figure(weighed, ["y", "w"], label, MASK.double()),
        figure(LossSpec(loss, "o", "y", normalize_by="w"), ["y", "w"], label, ROWS),
    ]
    by_hand = each[MASK].mean(), (each.mean(1) * ROWS).mean(), (each * MASK).mean(), each.sum() / ROWS.sum()
    assert found == pytest.approx([*map(float, by_hand)], rel=1e-12)
    assert loss.reduction == "mean"


def test_masks_of_two_shapes_leave_samples_out() -> None:
    labels = [LabelSpec("a", missing="nan"), LabelSpec("b", missing="nan")]
    first, second = LABEL.clone(), OTHER.clone()
    first[1], second[2] = torch.nan, torch.nan
    loss = LossSpec(lambda y, a, b: y.sum(dim=1), "o", ["a", "b"])
    assert figure(loss, labels, first, second) == pytest.approx(float(OUTPUT.sum(1)[THERE].mean()))


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.SmoothL1Loss(), CE()], ids=str)
def test_with_nothing_missing_it_is_the_loss(loss: nn.Module) -> None:
    x, label = arrays()[0].astype("float64"), DIGIT if isinstance(loss, CE) else np.eye(3)[DIGIT]
    nets, ones = [], np.ones(8)
    for rule, weight in (("y", None), (LabelSpec("y", missing=-9), None), ("y", "w")):
        torch.manual_seed(0)
        nets.append(nn.Linear(6, 3).double())
        losses, unused = {"l": LossSpec(loss, "o", "y", sample_weight=weight)}, [] if weight else ["w"]
        spec = TaskSpec(inputs=["x"], outputs=["o"], labels=[rule, "w"], losses=losses, unused=unused)
        estimator = MultiEstimator(nets[-1], spec, TrainerSpec(".*", "sgd", {"lr": 0.1}))
        batches = [[each[rows] for each in (x, label, ones)] for rows in (slice(5), slice(5, 8))]
        estimator.fit(batches, epochs=2, event_handlers=[])
    assert_equal_parameters(nets[0], nets[1])
    assert_equal_parameters(nets[0], nets[2])


def test_a_loss_that_the_net_returns() -> None:
    spec = TaskSpec(inputs=["x"], outputs=["loss"], losses={"own": LossSpec(outputs="loss")})
    history = MultiEstimator(nn.Linear(6, 1), spec).fit([{"x": arrays()[0]}], epochs=2)
    assert history["train_own"][1] < history["train_own"][0]


# ---- what gradients reach


class Branches(nn.Module):
    """Heads of which some are detached, unused, or only measured."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side = nn.Linear(6, 4), nn.Linear(4, 3)
        self.digit, self.amount, self.unused = nn.Linear(4, 3), nn.Linear(4, 1), nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        return self.digit(hidden) + self.side(hidden).detach(), self.amount(hidden)


def branches(**changes: Any) -> Setup:
    return new_setup().but(net=Branches(), **changes)


def test_parameters_that_no_loss_reaches_are_logged(caplog: Any) -> None:
    branches(unused=["amount"], losses={"digit": CE()}).check()
    named = caplog.text.partition("no loss's gradient reaches")[2].partition("so nothing")[0]
    assert '"amount.weight"' in named and "side" not in named and "unused" not in named


def test_losses_that_reach_each_trainer_and_tasks_that_are_left_out() -> None:
    patterns = {"body": "body.*", "digit": "digit.*", "rest": "[asu].*"}
    trainers = {name: TrainerSpec(pattern) for name, pattern in patterns.items()}
    reached = {each.name: each.losses for each in branches().with_trainers(trainers).check().trainers}
    assert reached == {"body": ("digit", "amount"), "digit": ("digit",), "rest": ("amount",)}
    setup = branches()
    plan = MultiEstimator(setup.net, TaskSpec(**setup.spec).only("digit")).check([arrays()])
    assert {"amount.weight", "amount.bias"} <= set(plan.frozen)


# ---- doubtful values

NLL, BCE, KL = nn.NLLLoss(), nn.BCEWithLogitsLoss(), nn.KLDivLoss(reduction="batchmean")
THIRDS, TARGET = np.full((8, 3), 1 / 3, "f"), np.eye(3, dtype="f")[DIGIT]
# a loss, what the net returns, the label, and what is logged
# fmt: off
DOUBTS: dict[str, tuple[Any, Callable[..., Any], Any, str]] = {
    "softmax": (CE(), lambda d, x: d(x).softmax(1), DIGIT,
        'the output "digit" adds up to 1 over its classes, as after a softmax, and CrossEntropyLoss applies'),
    "scores": (NLL, lambda d, x: d(x), DIGIT, 'the output "digit" is not the logarithm of'),
    "sigmoid": (BCE, lambda d, x: d(x).sigmoid(), TARGET,
        'the output "digit" is what a sigmoid returns, and BCEWithLogitsLoss applies sigmoid itself'),
    "no shares": (BCE, lambda d, x: d(x), arrays()[0][:, :3],
        'but BCEWithLogitsLoss takes 0 … 1, and has no lower bound for others'),
    "divergence": (KL, lambda d, x: d(x).exp(), THIRDS, "and KLDivLoss takes the logarithm of probabilities"),
    "right scores": (CE(), lambda d, x: d(x), DIGIT, ""),
    "right logarithms": (NLL, lambda d, x: d(x).log_softmax(1), DIGIT, ""),
    "right logits": (BCE, lambda d, x: d(x), TARGET, ""),
    "right shares": (KL, lambda d, x: d(x).log_softmax(1), THIRDS, ""),
    "a loss of the output alone": (lambda output, label: output.square(), lambda d, x: d(x), DIGIT, ""),
}
# fmt: on


@pytest.mark.parametrize("name", DOUBTS)
def test_values_for_which_a_loss_was_hardly_meant_are_logged(name: str, caplog: Any) -> None:
    loss, function, label, text = DOUBTS[name]
    around(function, losses={"digit": LossSpec(loss)}).but(data=[[arrays()[0], label]]).check()
    assert text in caplog.text and ("WARNING" in caplog.text) == bool(text)


@pytest.mark.parametrize("moves", [False, True])
def test_channels_that_lie_last_are_logged(moves: bool, caplog: Any) -> None:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.LazyConv2d(3, 3)

        def forward(self, x: Any) -> Any:
            return self.conv(x.permute(0, 3, 1, 2) if moves else x).mean(dim=(2, 3))

    of_net(Conv(), data=[[np.ones((2, 8, 8, 3), "float32"), np.zeros(2, "int64")]]).check()
    assert ("a convolution takes the 8 rows for channels; images are (N, C" in caplog.text) != moves


# ---- the plan

TRAINERS = {
    "body": TrainerSpec("body.*", "adamw", {"lr": 0.01}, clip_norm=2.0),
    "heads": TrainerSpec("(digit|amount).weight", "sgd", {"lr": 0.1}, every=2),
}


def values_of(plan: Any) -> dict[tuple[str, str], str]:
    return {(row.what, row.name): row.value for row in plan.train.rows}


def test_a_plan() -> None:
    setup = new_setup().but(val_data=[arrays()])
    plan = setup.with_trainers(TRAINERS, frozen=["(digit|amount).bias"], context="cpu").check()
    assert plan.devices == ("cpu",) and plan.samples == 8 and plan.precision == "float32"
    assert values_of(plan) == {
        ("input", "x"): "(8, 6) float32", ("output", "digit"): "(8, 3) float32",
        ("output", "amount"): "(8, 1) float32", ("label", "digit"): "(8,) int64",
        ("label", "amount"): "(8, 1) float32", ("loss", "digit"): "() float32",
        ("loss", "amount"): "() float32", ("metric", "accuracy"): "accuracy",
    }  # fmt: skip
    body, heads = plan.trainers
    assert (body.optimizer, body.learning_rate, body.size, body.clip_norm) == ("AdamW", 0.01, 45, 2.0)
    assert (heads.optimizer, heads.learning_rate, heads.every) == ("SGD", 0.1, 2)
    assert body.losses == heads.losses == ("digit", "amount")
    assert set(plan.frozen) == {"digit.bias", "amount.bias"}
    text, parts = plan.to_text(120), ["training, evaluating and predicting\n", "gradients clipped to norm 2"]
    assert all(part in text for part in [*parts, "0.5 x MSELoss", "summed on the device"])
    json.dumps(plan.to_dict())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(1, 1)
        self.other.weight = self.one.weight
        self.own = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.other(self.one(x)) * self.own
        return y[:, :3], y[:, 3:4]


def test_a_plan_with_layers() -> None:
    layers = new_setup().but(net=Tied()).check(layers=True).layers
    assert [tuple(layer) for layer in layers] == [
        ("net", "Tied", "[(8, 3) float32, (8, 1) float32]", 6), ("one", "Linear", "(8, 6) float32", 42),
        ("other", "Linear", "(8, 6) float32", 6), ("unused", "Linear", "-", 2),
    ]  # fmt: skip
