"""The check of the first batch: it changes nothing, casts what needs it, and knows what gradients reach."""

from __future__ import annotations

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
from multifit.spec.terms import by_reference
from multifit.torch.check import leaves_of, preserved
from multifit.torch.loss_calls import by_value, call_loss, present_share

from .faulty import BOTH, CE, MSE, Setup, around, arrays, new_setup


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
        return self.dropout(self.norm(self.dense(x))) * (random.random() + np.random.rand() + 1)


def states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("layers", [False, True])
def test_a_check_changes_nothing(layers: bool) -> None:
    net = Noisy()
    net.dense.weight.grad = gradient = torch.ones(3, 6)
    net.dropout.eval()
    buffer, setup = net.calls, around(lambda dense, x: x).but(net=net)
    setup = setup.but(val_data=setup.data)
    estimator = setup.make()
    before, modes, drawn = setup.parameters(), [m.training for m in net.modules()], states()
    estimator.check(setup.data, setup.data, layers=layers)
    assert not setup.moved(before) and states() == drawn
    assert [m.training for m in net.modules()] == modes
    assert net.calls is buffer and net.dense.weight.grad is gradient and bool((gradient == 1).all())
    assert estimator.figures() == {}
    assert not any(m._forward_hooks for m in net.modules())


@pytest.mark.parametrize("fault", [False, True])
def test_a_fit_trains_the_first_batch_like_any_other(fault: bool) -> None:
    """Also after one that was refused."""
    torch.manual_seed(0)
    net, hand = TwoDrops(), TwoDrops()
    hand.load_state_dict(net.state_dict())
    setup = around(lambda dense, x: x).but(net=net, data=[arrays()[:2]] * 3)
    estimator = setup.with_trainers(TrainerSpec(".*", "sgd", {"lr": 0.1})).make()
    if fault:
        with pytest.raises(SpecError):
            estimator.fit([[arrays()[0], arrays()[1] + 9]], epochs=1)
    torch.manual_seed(1)
    estimator.fit(setup.data, epochs=1)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(hand.parameters(), 0.1)
    for x, digit in setup.data:
        optimizer.zero_grad()
        F.cross_entropy(hand(torch.tensor(x)), torch.tensor(digit)).backward()
        optimizer.step()
    for name, value in hand.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, msg=name)


class TwoDrops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        return self.net(x)


class Kept(nn.Module):
    """A net that does not call one of its layers."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.late = net[:1], net.late

    def forward(self, x: Any) -> Any:
        return self.net(x)


def test_a_check_keeps_figures_and_carried_states() -> None:
    """As when a run is resumed within an epoch."""
    net = nn.LSTMCell(6, 3)
    setup = Setup(net, {
        "inputs": ["x", "h"], "outputs": ["h", "digit"], "labels": ["digit"], "state": {"h": (0, 3)},
        "losses": {"digit": CE()}, "unused": ["outputs.h"],
        "forward": lambda net, slots: (net(slots["x"], (slots["h"], slots["h"]))[0],) * 2,
    }, data=[arrays()[:2]])  # fmt: skip
    estimator = setup.make()
    estimator.fit_batch(setup.data[0])
    engine = estimator._session
    figures, carried = engine.stages["train"].figures.state(), engine.stages["train"].carried.state()
    net.weight_hh.grad = gradient = torch.ones(12, 3)
    with preserved(engine):
        engine.stages["train"].run(engine.splitter("train").split(setup.data[0]), engine.state)
        engine.stages["train"].reset()
        gradient.add_(1)
        net.zero_grad()
    assert str(engine.stages["train"].figures.state()) == str(figures)
    assert torch.equal(engine.stages["train"].carried.state()[0]["h"], carried[0]["h"])
    assert net.weight_hh.grad is gradient and bool((gradient == 1).all())


def test_lazy_modules_get_the_shapes_of_the_first_batch() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 3))
    setup = around(lambda dense, x: x).but(net=net)
    plan = setup.check()
    assert plan.trainers[0].size == 6 * 4 + 4 + 8 + 15
    setup.trains()
    faulty = around(lambda dense, x: x).but(net=nn.Sequential(nn.LazyLinear(3)), data=[arrays()])
    with pytest.raises(DataError, match="1 problem found:\n  1. the batch has 3 arrays"):
        faulty.fit()
    net = nn.Sequential(nn.Linear(6, 3))
    net.late = nn.LazyLinear(2)
    around(lambda dense, x: x).but(net=Kept(net)).refused(
        TrainerError, "the forward pass never reached", way="fit"
    )
    setup = around(lambda dense, x: x).but(net=Kept(net), estimator={"frozen": ["late.*"]})
    assert [layer.parameters for layer in setup.check(layers=True).layers] == [0, 21, 0]


# ---------------------------------------------------------------------------------------------- casts

CASTS: dict[str, tuple[Any, Any, str, str | None]] = {
    "classes in float32": (CE(), arrays()[1].astype("float32"), "float32", "int64"),
    "classes in int32": (CE(), arrays()[1].astype("int32"), "int64", None),
    "a function on classes in float32": (F.cross_entropy, arrays()[1].astype("float32"), "float32", "int64"),
    "one-hot integers": (CE(), np.eye(3, dtype="int64")[arrays()[1]], "int64", "float32"),
    "logits of integers": (nn.BCEWithLogitsLoss(), np.eye(3, dtype="int64")[arrays()[1]], "int64", "float32"),
    "logits of bool": (nn.BCEWithLogitsLoss(), np.eye(3, dtype=bool)[arrays()[1]], "bool", "float32"),
    "squares of integers": (MSE(), np.eye(3, dtype="int64")[arrays()[1]], "int64", None),
    "squares of doubles": (MSE(), np.eye(3)[arrays()[1]], "float32", None),
}


@pytest.mark.parametrize("name", CASTS)
def test_labels_are_cast_if_the_loss_needs_that(name: str, caplog: Any) -> None:
    loss, label, before, after = CASTS[name]
    setup = around(lambda dense, x: dense(x), losses={"digit": LossSpec(loss)})
    setup = setup.but(data=[[arrays()[0], label]] * 2, val_data=[[arrays()[0], label]])
    with caplog.at_level(logging.INFO, "multifit"):
        setup.trains()
    assert (f'"digit" is {before} and is cast to {after}' in caplog.text) == (after is not None)


def test_a_declared_dtype_is_kept() -> None:
    label = arrays()[1].astype("float32")
    setup = around(lambda dense, x: dense(x), labels=[LabelSpec("digit", dtype="float32")])
    setup.but(data=[[arrays()[0], label]]).refused(RuntimeError, 'raised in losses["digit"], called with')


def test_inputs_are_cast_if_the_net_needs_that(caplog: Any) -> None:
    pixels = np.arange(48, dtype="uint8").reshape(8, 6)
    setup = around(lambda dense, x, index: dense(x) + index[:, None].bitwise_and(1), inputs=["x", "index"])
    with caplog.at_level(logging.INFO, "multifit"):
        setup.but(data=[[pixels, np.arange(8), arrays()[1]]]).trains()
    assert '"x" is uint8 and is cast to float32' in caplog.text and '"index"' not in caplog.text


# --------------------------------------------------------------------------------- calls, value by value


def term_of(loss: Any, label: LabelSpec | str = "digit", **fields: Any) -> Any:
    spec = TaskSpec(inputs=["x"], outputs=["digit"], labels=[label, "w"], unused=["w"],
                    losses={"digit": LossSpec(loss, "digit", "digit", **fields)})  # fmt: skip
    return spec.terms[0]


OUTPUT = torch.randn(4, 3, dtype=torch.float64)
LABEL = torch.randn(4, 3, dtype=torch.float64)
MASK = (torch.arange(12).reshape(4, 3) % 3 > 0).double()


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(), nn.BCEWithLogitsLoss()])
def test_what_is_missing_does_not_count(loss: nn.Module) -> None:
    """The sum over the share that is present is the mean over the values that are."""
    term = term_of(loss, LabelSpec("digit", missing="nan"))
    label = LABEL.sigmoid()
    arrays = by_reference({"digit": OUTPUT}, {"digit": label, "present.digit": MASK})
    (values,) = call_loss(term, arrays)
    share = present_share(term, {"present.digit": MASK}).sum()
    expected = loss(OUTPUT[MASK > 0], label[MASK > 0])
    torch.testing.assert_close(values.sum() / share, expected)
    assert loss.reduction == "mean"


def test_masks_of_two_shapes_leave_samples_out() -> None:
    spec = TaskSpec(
        inputs=["x"], outputs=["digit"], unused=["w"],
        labels=[LabelSpec("a", missing=-1), LabelSpec("b", missing=-1), "w"],
        losses={"digit": LossSpec(lambda y, a, b: y.sum(dim=1), "digit", ["a", "b"])},
    )  # fmt: skip
    masks = {"present.a": MASK, "present.b": torch.tensor([[1.0, 1], [0, 1], [1, 1], [1, 1]]).double()}
    masks["present.a"] = torch.tensor([[1.0] * 3, [1] * 3, [0, 1, 1], [1] * 3]).double()
    given = {"a": LABEL, "b": LABEL[:, :2], **masks}
    (values,) = call_loss(spec.terms[0], by_reference({"digit": OUTPUT}, given))
    torch.testing.assert_close(values, OUTPUT.sum(dim=1) * torch.tensor([1.0, 0, 0, 1]).double())
    torch.testing.assert_close(present_share(spec.terms[0], given), torch.tensor([1.0, 0, 0, 1]).double())


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.SmoothL1Loss(), CE()], ids=str)
@pytest.mark.parametrize("way", ["missing", "weights"])
def test_with_nothing_missing_it_is_the_loss(loss: nn.Module, way: str) -> None:
    nets, figures = [], []
    x, digit = arrays()[:2]
    label = digit if isinstance(loss, CE) else np.eye(3)[digit]
    for changed in (False, True):
        torch.manual_seed(0)
        nets.append(nn.Linear(6, 3).double())
        rule = LabelSpec("digit", missing=-9) if changed and way == "missing" else "digit"
        weight = "w" if changed and way == "weights" else None
        spec = TaskSpec(inputs=["x"], outputs=["digit"], labels=[rule, "w"], unused=[] if weight else ["w"],
                        losses={"digit": LossSpec(loss, sample_weight=weight)})  # fmt: skip
        estimator = MultiEstimator(nets[-1], spec, TrainerSpec(".*", "sgd", {"lr": 0.1}))
        batches = [[x[:5], label[:5], np.ones(5)], [x[5:], label[5:], np.ones(3)]]
        figures.append(estimator.fit(batches, epochs=2, event_handlers=[])["train_loss"])
    assert figures[0] == pytest.approx(figures[1], rel=1e-12)
    for one, other in zip(*(net.parameters() for net in nets)):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_normalizer_divides_the_values() -> None:
    term = term_of(nn.MSELoss(), normalize_by="w")
    (values,) = call_loss(term, by_reference({"digit": OUTPUT}, {"digit": LABEL}))
    torch.testing.assert_close(values, (OUTPUT - LABEL).square())


def test_weights_of_samples_and_of_values() -> None:
    term = term_of(nn.MSELoss(), sample_weight="w")
    for weight in (torch.arange(4.0).double(), MASK):
        given = by_reference({"digit": OUTPUT}, {"digit": LABEL, term.weights.name: weight})
        (values,) = call_loss(term, given)
        expected = (OUTPUT - LABEL).square() * weight.reshape(4, -1) / 3
        torch.testing.assert_close(values, expected)


def test_a_loss_that_the_net_returns() -> None:
    spec = TaskSpec(inputs=["x"], outputs=["loss"], losses={"own": LossSpec(outputs="loss")})
    net = nn.Linear(6, 1)
    MultiEstimator(net, spec).fit([{"x": arrays()[0]}], epochs=1)
    term = spec.terms[0]
    assert call_loss(term, by_reference({"loss": OUTPUT}, {}))[0] is OUTPUT


def test_a_copy_by_value_has_the_parameters_of_the_loss() -> None:
    loss = nn.CrossEntropyLoss(torch.ones(3))
    copy = by_value(torch.compile(loss))
    assert copy.reduction == "none" and copy.weight is loss.weight and loss.reduction == "mean"
    assert by_value(loss) is copy and by_value(copy) is copy and by_value(F.l1_loss) is F.l1_loss


# --------------------------------------------------------------------------- what gradients reach


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


def test_parameters_that_no_loss_reaches(caplog: Any) -> None:
    setup = branches(unused=["amount"], losses={"digit": CE()})
    setup.check()
    assert "no loss's gradient reaches" in caplog.text
    named = caplog.text.partition("reaches")[2].partition("so nothing")[0]
    assert '"amount.weight"' in named and "side" not in named and "unused" not in named


def test_handlers_may_train_what_no_loss_reaches(caplog: Any) -> None:
    class Adds:
        def change_objective(self, estimator: Any, objectives: Any, pred: Any) -> Any:
            return [*objectives, pred["amount"][0].square().mean()]

    setup = branches(unused=["amount"], losses={"digit": CE()}, handlers=(Adds(),))
    before = setup.net.amount.weight.detach().clone()
    setup.fit()
    assert "gradient reaches" not in caplog.text and not torch.equal(before, setup.net.amount.weight)


def test_leaves_are_found_in_autograds_graph() -> None:
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    names = {id(a): "a", id(b): "b"}
    assert leaves_of([(a * b.detach()).sum()], names) == {"a"}
    assert leaves_of([torch.stack([a, b]), torch.ones(1)], names) == {"a", "b"}
    assert leaves_of([a], names) == {"a"}


def test_losses_that_reach_each_trainer() -> None:
    trainers = {
        "body": TrainerSpec("body.*"),
        "digit": TrainerSpec("digit.*"),
        "rest": TrainerSpec("[asu].*"),
    }
    plan = branches().with_trainers(trainers).check()
    assert {each.name: each.losses for each in plan.trainers} == {
        "body": ("digit", "amount"), "digit": ("digit",), "rest": ("amount",)
    }  # fmt: skip


def test_tasks_that_are_left_out_are_frozen() -> None:
    setup = branches()
    spec = TaskSpec(**setup.spec).only("digit")
    estimator = MultiEstimator(setup.net, spec)
    plan = estimator.check([arrays()])
    assert {"amount.weight", "amount.bias"} <= set(plan.frozen)


# ------------------------------------------------------------------------------------- doubtful values

# fmt: off
DOUBTS: dict[str, tuple[Any, Callable[..., Any], Any, str]] = {
    "softmax": (CE(), lambda d, x: d(x).softmax(1), arrays()[1],
        'the output "digit" adds up to 1 over its classes, as after a softmax, and CrossEntropyLoss applies'),
    "scores": (nn.NLLLoss(), lambda d, x: d(x), arrays()[1], 'the output "digit" is not the logarithm of'),
    "sigmoid": (nn.BCEWithLogitsLoss(), lambda d, x: d(x).sigmoid(), np.eye(3, dtype="f")[arrays()[1]],
        'the output "digit" is what a sigmoid returns, and BCEWithLogitsLoss applies sigmoid itself'),
    "no shares": (nn.BCEWithLogitsLoss(), lambda d, x: d(x), arrays()[0][:, :3],
        'but BCEWithLogitsLoss takes 0 … 1, and has no lower bound for others'),
    "divergence": (nn.KLDivLoss(reduction="batchmean"), lambda d, x: d(x).exp(), np.full((8, 3), 1 / 3, "f"),
        "and KLDivLoss takes the logarithm of probabilities"),
}
RIGHT: dict[str, tuple[Any, Callable[..., Any], Any]] = {
    "scores": (CE(), lambda d, x: d(x), arrays()[1]),
    "logarithms": (nn.NLLLoss(), lambda d, x: d(x).log_softmax(1), arrays()[1]),
    "logits": (nn.BCEWithLogitsLoss(), lambda d, x: d(x), np.eye(3, dtype="f")[arrays()[1]]),
    "shares": (nn.KLDivLoss(reduction="batchmean"), lambda d, x: d(x).log_softmax(1), np.ones((8, 3))),
}
# fmt: on


@pytest.mark.parametrize("name", DOUBTS)
def test_values_for_which_a_loss_was_hardly_meant(name: str, caplog: Any) -> None:
    loss, function, label, text = DOUBTS[name]
    around(function, losses={"digit": LossSpec(loss)}).but(data=[[arrays()[0], label]]).check()
    assert 'losses["digit"]: ' in caplog.text and text in caplog.text


@pytest.mark.parametrize("name", RIGHT)
def test_values_for_which_a_loss_is_meant(name: str, caplog: Any) -> None:
    loss, function, label = RIGHT[name]
    around(function, losses={"digit": LossSpec(loss)}).but(data=[[arrays()[0], label]]).check()
    assert "WARNING" not in caplog.text


@pytest.mark.parametrize("moves", [False, True])
def test_channels_last(moves: bool, caplog: Any) -> None:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.LazyConv2d(3, 3)

        def forward(self, x: Any) -> Any:
            return self.conv(x.permute(0, 3, 1, 2) if moves else x).mean(dim=(2, 3))

    images = np.ones((2, 8, 8, 3), "float32")
    around(lambda dense, x: x).but(net=Conv(), data=[[images, np.zeros(2, "int64")]]).check()
    assert ("a convolution takes the 8 rows for channels; images are (N, C" in caplog.text) != moves


def test_losses_of_outputs_alone_are_not_doubted() -> None:
    around(lambda dense, x: dense(x), losses={"digit": LossSpec(lambda a: a.square(), "digit")},
           unused=["digit"]).check()  # fmt: skip


def test_a_metric_that_cannot_compare() -> None:
    fine = lambda self: None  # noqa: E731
    faulty = new_setup().with_metric("mse", **BOTH)
    faulty.refused(SpecError, 'metrics["figure"]: ', "(8, 3) float32")
    faulty = new_setup().with_metric(lambda a: 0.0, **BOTH)
    faulty.refused(
        SpecError, 'metrics["figure"]: is called with 2 arguments ("labels", "outputs")', "take both"
    )
    own = type("Own", (), {"update": lambda self, y: None, "reset": fine, "get": lambda self: 0.0})()
    faulty = new_setup().with_metric(own, **BOTH)
    faulty.refused(SpecError, 'metrics["figure"].update: is called with 2 arguments ("labels", "outputs")')
    faulty = new_setup().with_metric("accuracy", **BOTH, transform=lambda a: a)
    faulty.refused(SpecError, 'metrics["figure"].transform: is called with 2 arguments')
