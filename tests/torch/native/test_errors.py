"""Wrong specs, nets, batches and trainers: what each is refused with, before anything moves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    MetricSpec,
    SpecError,
    TaskSpec,
    TrainerError,
    TrainerSpec,
)

from .faulty import BOTH, CE, MSE, Setup, around, arrays, fault, new_setup

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def setup() -> Any:
    shared = new_setup()
    yield shared
    shared.trains()


def amounts(shape: tuple[int, ...]) -> list:
    return [[*arrays()[:2], np.arange(np.prod(shape), dtype="float32").reshape(shape)]]


def digits(values: Any) -> list:
    x, _, amount = arrays()
    return [[x, np.asarray(values), amount]]


def changed(value: Any, dtype: str = "int64") -> list:
    digit = arrays()[1].astype(dtype)
    digit[3] = value
    return digits(digit)


def bound(setup: Setup, trainer: str) -> Setup:
    losses = {"digit": LossSpec(CE(), trainers=trainer), "amount": LossSpec(MSE(), trainers="body")}
    trainers = {"body": TrainerSpec("body.*"), "heads": TrainerSpec("(digit|amount).*")}
    return setup.but(losses=losses).with_trainers(trainers)


class IgnoresGradient(torch.autograd.Function):
    """Returns a gradient of its own, whatever it receives."""

    @staticmethod
    def forward(context: Any, a: Any) -> Any:
        context.save_for_backward(a)
        return a.square().sum(dim=1)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return 2 * context.saved_tensors[0]


# fmt: off
LOSSES = [
    fault("too few class weights", lambda s: s.with_loss(CE(), class_weights=[1, 2]),
        'losses["digit"]: class_weights are 2 numbers for 3 classes'),
    fault("class weights of real values", lambda s: s.but(
        losses={"amount": LossSpec(MSE(), class_weights=[1, 2])}, metrics={}, unused=["digit"]),
        'losses["amount"]: class_weights need class indices as labels, which MSELoss does not take; use'),
    fault("weights of a mean", lambda s: s.with_loss(lambda a, b: a.mean(), **BOTH, class_weights=[1, 2, 3]),
        'losses["digit"]: its weights are (8,) float32, and it returns () float32; return a value for'),
    fault("too many arguments", lambda s: s.with_loss(lambda a: a, **BOTH),
        'losses["digit"]: is called with 2 arguments ("outputs.digit", "labels.digit"), but takes (a): too',
        "name as many outputs and labels, in that order"),
    fault("too many arguments of a module", lambda s: s.with_loss(CE(), "digit", ["digit", "amount"]),
        'losses["digit"]: is called with 3 arguments', "but takes (input, target)"),
    fault("parts without names", lambda s: s.with_loss(lambda a, b: (a, b), **BOTH),
        "returns 2 parts, [(8, 3) float32, (8,) int64]; name them with returns=[...]"),
    fault("returns None", lambda s: s.with_loss(lambda a, b: None, **BOTH), "returns None; a loss must"),
    fault("returns None for other shapes", lambda s: s.but(
        data=amounts((8,)), losses={"digit": CE(), "amount": LossSpec(lambda a, b: None)}, metrics={}),
        'losses["amount"]: returns None; a loss must return a tensor'),
    fault("returns integers", lambda s: s.with_loss(lambda a, b: a.int(), **BOTH),
        "returns (8, 3) int32; a loss must return float32: cast it, with to(torch.float32)"),
    fault("a sum", lambda s: s.with_loss(CE(reduction="sum")),
        'losses["digit"]: CrossEntropyLoss has reduction="sum", and a number counts as the mean of the batch',
        'give reduction="none"'),
    fault("normalizer of another kind", lambda s: s.with_loss(CE(), **BOTH, normalize_by=lambda slots: "8"),
        "losses[\"digit\"]: normalize_by is '8'; it must be, or return, a tensor or a finite number"),
    fault("negative normalizer", lambda s: s.with_loss(CE(), **BOTH, normalize_by=lambda slots: -5.0),
        "normalize_by is -5.0; it must be, or return,", "whose sum is at least 0"),
    fault("ignores its weight",
        lambda s: s.with_loss(lambda a, b: IgnoresGradient.apply(a), **BOTH, weight=0.5),
        'losses["digit"]: <lambda> ignores its weight: an incoming gradient four times as large gave the'),
    fault("constant", lambda s: s.with_loss(lambda a, b: torch.ones(8), **BOTH, weight=lambda state: 0.5),
        'losses["digit"]: returns numbers that autograd has not computed from the outputs'),
    # sizes
    fault("sizes differ", lambda s: s.but(data=amounts((8, 2))),
        'losses["amount"]: output "amount" (8, 1) float32 and label "amount" (8, 2) float32 differ in size',
        "element by element: fix the net's last layer or the label"),
    *(fault(f"each with each, {name}", lambda s, loss=loss: s.but(
        data=amounts((8,)), losses={"digit": CE(), "amount": LossSpec(loss)}, metrics={}),
        'losses["amount"]: the output "amount" is (8, 1) float32 and the label "amount" is (8,) float32',
        "which PyTorch compares each value with each other one; give both one shape")
      for name, loss in {
        "module": MSE(), "function of PyTorch": F.l1_loss, "partial": partial(F.mse_loss, reduction="none"),
        "a number": lambda a, b: (a - b).square().mean(), "values": lambda a, b: (a - b).abs()}.items()),
    fault("class labels differ", lambda s: s.but(data=digits(np.ones((8, 2), "int64"))),
        'output "digit" (8, 3) float32 and label "digit" (8, 2) int64 do not fit',
        "the output's 8 rows of 3 classes need one class index each, a label of shape (8,)"),
    # the values of class labels
    *(fault(f"label {value}", lambda s, value=value, dtype=dtype: s.but(data=changed(value, dtype)),
        f'losses["digit"]: the label "digit" (8,) {dtype} holds {text}', "classes are 0 … 2")
      for value, dtype, text in (
        (3, "int64", "3, which is none of the classes"), (1.9, "float32", "1.9, which is not a class"))),
    fault("only declared as ignored", lambda s: s.but(
        labels=[LabelSpec("digit", ignore=-1), "amount"], data=changed(-1)),
        "holds -1, which is none of the classes", "use a loss that ignores it"),
    fault("declared classes", lambda s: s.but(
        labels=[LabelSpec("digit", classes=2), "amount"], data=changed(2),
        losses={"digit": LossSpec(lambda a, b: a.sum(dim=1)), "amount": MSE()}, metrics={}),
        'labels["digit"]: the label "digit" (8,) int64 holds 2'),
    # labels that are missing, and trainers
    fault("one number where labels are missing", lambda s: missing(
        s, losses={"digit": lambda a, b: F.cross_entropy(a, b), "amount": MSE()}),
        'losses["digit"]: its label may be missing', "return a value for each sample"),
    fault("an unknown trainer", lambda s: bound(s, "heds"),
        'losses["digit"]: there is no trainer "heds" (did you mean "heads"?)'),
    fault("a trainer without a loss", lambda s: bound(s, "body"),
        'trainers["heads"]: no loss trains its parameters'),
]
# fmt: on


@pytest.mark.parametrize(("change", "texts"), LOSSES)
def test_a_wrong_loss(setup: Setup, change: Any, texts: tuple) -> None:
    change(setup).refused(SpecError, *texts)


def pairs(a: Any, b: Any) -> Any:
    """Compares all pairs of a batch on purpose, as contrastive losses do."""
    return ((a - a.T).abs() - (b - b[:, None]).abs()).square().mean()


def with_amounts(setup: Setup, loss: Any, amount: Any) -> Setup:
    return setup.but(losses={"digit": CE(), "amount": LossSpec(loss)}, data=[[*arrays()[:2], amount]])


def missing(setup: Setup, **changes: Any) -> Setup:
    return setup.but(labels=[LabelSpec("digit", missing=-1), "amount"], data=changed(-1), **changes)


NUMBERS = arrays()[2][:, 0]
ACCEPTED: dict[str, Callable[[Setup], Setup]] = {
    "flat": lambda s: s.with_loss(lambda a, b: (a - 100).relu().sum(dim=1), **BOTH),
    "in part detached": lambda s: s.with_loss(lambda a, b: a.sum(dim=1) + a.detach().sum(dim=1), **BOTH),
    "nothing to learn": lambda s: s.with_loss(lambda a, b: torch.zeros(8), **BOTH),
    "constant, without a weight": lambda s: s.with_loss(lambda a, b: torch.ones(8), **BOTH, weight=0),
    "all pairs": lambda s: with_amounts(s, pairs, NUMBERS),
    "without the label": lambda s: with_amounts(s, lambda a, b: a.square().mean(), NUMBERS),
    "equal labels": lambda s: with_amounts(s, lambda a, b: (a - b).square().mean(), np.ones(8, "float32")),
    "values, with missing labels": lambda s: missing(
        s, losses={"digit": partial(F.cross_entropy, reduction="none"), "amount": MSE()}
    ),
    "a module, with missing labels": missing,
}


@pytest.mark.parametrize("change", ACCEPTED.values(), ids=ACCEPTED)
def test_a_loss_that_may_look_wrong_is_accepted(setup: Setup, change: Any) -> None:
    change(setup).trains()


def test_a_loss_without_a_gradient_may_be_measured(setup: Setup) -> None:
    constant = setup.with_loss(lambda a, b: torch.ones(8), **BOTH)
    assert constant.make().evaluate(setup.data, [])["digit"] == 1


PART = 'values of "answers" are missing in samples that have others'
WHOLE: dict[str, Callable[..., Any]] = {
    "a loss of samples": lambda a, b: (a - b).abs().sum(dim=1),
    "a loss that mixes values": lambda a, b: (a - b).abs() / (1 + b.abs().sum(dim=1, keepdim=True)),
    "probabilities": CE(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_part_of_a_label_is_missing_where_whole_samples_are_needed(name: str) -> None:
    answers = np.full((8, 3), 0.5, "float32")
    answers[7] = answers[6, 1] = answers[5, :2] = NAN
    setup = new_setup().but(
        labels=[LabelSpec("answers", missing="nan")], unused=["amount"], metrics={},
        losses={"digit": LossSpec(WHOLE[name], "digit", "answers")}, data=[[arrays()[0], answers]],
    )  # fmt: skip
    fix = "return a loss for each value, in the label's shape"
    setup.refused(DataError, f'losses["digit"]: 3 {PART}, and it takes whole samples; {fix}')
    setup.but(losses={"digit": LossSpec(MSE(), "digit", "answers")}).trains()


# ---- the net

PAIR = {"outputs": ["digit", "amount"], "unused": ["outputs.amount"]}
# fmt: off
RETURNED = {
    "fewer": (lambda d, x: d(x),
        "outputs: 2 declared (digit, amount), the net returns 1 array: (8, 3) float32; name as many"),
    "numpy": (lambda d, x: (d(x), d(x).detach().numpy()),
        '"amount" as ndarray; every declared output must be a tensor'),
    "key missing": (lambda d, x: {"digit": d(x), "amont": d(x)},
        '1 problem found:\n  1. outputs: the net returns no "amount" (did you mean "amont"?); ',
        'it returns "digit", "amont"'),
    "integers": (lambda d, x: (d(x).int(), d(x)),
        'losses["digit"]: the output "digit" is (8, 3) int32; a loss needs real numbers'),
    "detached": (lambda d, x: (d(x).detach(), d(x).detach()),
        "outputs: autograd has computed none of them from parameters that are trained"),
}
# fmt: on


@pytest.mark.parametrize(("function", "texts"), [(f, t) for f, *t in RETURNED.values()], ids=RETURNED)
def test_outputs_that_do_not_fit(function: Any, texts: list) -> None:
    faulty = around(function, **PAIR)
    faulty.refused(SpecError, *texts)
    faulty.net.function = lambda d, x: (d(x), x)
    faulty.trains()


def test_another_structure_when_evaluating() -> None:
    net = around(lambda d, x: (d(x), x), **PAIR)
    net.net.function = lambda d, x: (d(x), x) if net.net.training else (d(x), x, x)
    message = net.but(val_data=net.data).refused(SpecError)
    assert "the net when evaluating returns 3 arrays" in message
    assert "a net that returns something else when evaluating needs evaluate=TaskSpec(...)" in message
    metrics = {"accuracy": MetricSpec("accuracy", **BOTH)}
    evaluate = TaskSpec(outputs=["digit", ...], labels=["digit"], inputs=["x"], metrics=metrics)
    net.but(val_data=net.data, evaluate=evaluate).trains()


def test_what_is_wrong_in_both_stages_is_reported_once() -> None:
    faulty = around(lambda d, x: d(x), **PAIR)
    assert faulty.but(val_data=faulty.data).refused(SpecError).startswith("1 problem found:")


def test_a_net_whose_first_pass_makes_parameters() -> None:
    def grows(dense: Any, x: Any) -> Any:
        if not hasattr(dense, "late"):
            dense.late = nn.Linear(3, 3)
        return dense.late(dense(x))

    around(grows).refused(SpecError, 'net: its forward pass has made "dense.late.weight"')


# ---- the batches


def spoiled(array: np.ndarray, *values: float) -> np.ndarray:
    copy = array.copy()
    for at, value in enumerate(values, start=1):
        copy[2 * at].flat[0] = value
    return copy


# fmt: off
BATCHES = [
    fault("label is None", lambda x, d, a: [x, None, a],
        'the slot "digit" is None, but losses or metrics take it; the batch must hold an array',
        'if samples may lack this label, declare LabelSpec("digit", missing=...)'),
    fault("NaN in the input", lambda x, d, a: [spoiled(x, NAN, INF), d, a],
        'inputs["x"] holds NaN and infinity 2 times, in samples 2, 4 (from 0); mend the data'),
    fault("NaN in a label", lambda x, d, a: [x, d, spoiled(a, NAN)],
        'labels["amount"] holds NaN 1 time, in sample 2 (from 0)', 'LabelSpec("amount", missing="nan")'),
]
# fmt: on


@pytest.mark.parametrize("where", ["data", "val_data"])
@pytest.mark.parametrize(("batch", "texts"), BATCHES)
def test_a_wrong_batch(setup: Setup, where: str, batch: Any, texts: tuple) -> None:
    message = setup.but(**{where: [batch(*setup.data[0])]}).refused(DataError, *texts)
    assert ("val_data: " in message) == (where == "val_data")


def test_a_negative_weight_of_a_sample(setup: Setup) -> None:
    text = f'sample_weight: the slot "amount" holds {arrays()[2].min():g}; weights must be at least 0'
    setup.with_loss(CE(), **BOTH, sample_weight="amount").refused(DataError, text)


def test_a_loss_that_is_not_finite(setup: Setup) -> None:
    logarithm = setup.with_loss(lambda a, b: (a * 0).sum(dim=1).log(), **BOTH)
    text = 'losses["digit"]: is -inf for this batch, whose inputs and labels are finite'
    logarithm.refused(DataError, text)


# ---- together

TWO_WRONG = {"body": TrainerSpec("body.*", "adm"), "heads": TrainerSpec("(digit|amount).*", clip_norm=-1)}


@pytest.mark.parametrize("way", ["check", "fit"])
def test_all_problems_are_reported_together(setup: Setup, way: str) -> None:
    x, digit, _ = setup.data[0]
    wrong = [[x, digit + 1, np.zeros((8, 2), "float32")]]
    faulty = setup.but(data=wrong, val_data=[[x, digit]]).with_trainers(TWO_WRONG)
    before = setup.parameters()
    with pytest.raises(SpecError) as raised:
        getattr(faulty, way)()
    problems, message = raised.value.problems, str(raised.value)
    assert not setup.moved(before)
    assert sorted(p.kind for p in problems) == ["data", "spec", "spec", "trainer", "trainer"]
    numbered = [f"  {i}. {problem.message}" for i, problem in enumerate(problems, 1)]
    assert message.splitlines() == [f"{len(problems)} problems found:", *numbered]
    parts = "3, which is none", "(8, 2) float32 differ", "val_data: the batch has 2", "adm", "clip_norm"
    assert all(part in message for part in parts)


# ---- later batches

ODD = 1e3  # the first number of a batch in which something else is returned
ROWS = lambda a, y: (a - y[:, None]).square().mean(dim=1)  # noqa: E731
# what a loss returns at first, in an odd batch, and what the message says of the latter
LOSS_LATER: dict[str, tuple[Any, Any, str]] = {
    "a number, not rows": (ROWS, lambda a, y: ROWS(a, y).mean(), "() float32"),
    "some of the rows": (ROWS, lambda a, y: ROWS(a, y)[:3], "(3,) float32"),
    "another dtype": (ROWS, lambda a, y: ROWS(a, y).double(), "(8,) float64"),
    "a tuple": (ROWS, lambda a, y: (ROWS(a, y), ROWS(a, y)), "2 parts, [(8,) float32, (8,) float32]"),
}
NET_LATER: dict[str, tuple[Any, str]] = {
    "more axes": (lambda a: a[..., None], 'outputs: the net returns "digit" as (8, 3, 1) float32'),
    "fewer rows": (lambda a: a[:3], 'returns "digit" as (3, 3) float32 in a batch of 8 samples, but (8, 3)'),
    "a tuple": (lambda a: (a, a), "outputs: 1 declared (digit), the net returns 2 arrays"),
    "a dict": (lambda a: {"digits": a}, 'the net returns no "digit" (did you mean "digits"?)'),
}


def with_odd(slot: int, samples: int = 8) -> list:
    batches = [[arrays(size)[0], arrays(size)[1].astype("float32")] for size in (1, 8, 5, 8, samples)]
    batches[-1][slot][:] = ODD
    return batches


def refused_later(setup: Setup, slot: int, *texts: str) -> None:
    with pytest.raises(SpecError) as raised:
        setup.but(data=with_odd(slot)).fit()
    message = str(raised.value)
    assert message.startswith("epoch 1, batch 5: ") and all(text in message for text in texts), message


@pytest.mark.parametrize("name", LOSS_LATER)
def test_a_loss_returns_something_else_later(name: str) -> None:
    usual, other, text = LOSS_LATER[name]
    loss = lambda a, y: other(a, y) if y[0] == ODD else usual(a, y)  # noqa: E731
    rule = "the same number of axes, and a row for each sample or one number for all"
    setup = around(lambda dense, x: dense(x), losses={"digit": LossSpec(loss)})
    refused_later(setup, 1, f'losses["digit"]: returns {text}', rule)


@pytest.mark.parametrize("name", NET_LATER)
def test_a_net_returns_something_else_later(name: str) -> None:
    other, text = NET_LATER[name]
    refused_later(around(lambda dense, x: other(dense(x)) if x[0, 0] == ODD else dense(x)), 0, text)


def test_a_net_returns_fewer_outputs_later() -> None:
    setup = around(lambda dense, x: (dense(x),) if x[0, 0] == ODD else (dense(x), x), **PAIR)
    refused_later(setup, 0, "the net returns 1 array")


def test_labels_keep_their_axes() -> None:
    setup = new_setup()
    (x, digit, amount) = arrays()
    with pytest.raises(SpecError, match=r'the label "amount" is \(8,\) float32, but \(8, 1\) float32 in'):
        setup.but(data=[[x, digit, amount], [x, digit, amount[:, 0]]]).fit()


@pytest.mark.parametrize("samples", [1, 3, 16])
def test_sizes_may_change(samples: int) -> None:
    tokens = lambda a, y: (a - y[:, None]).square().reshape(-1)  # noqa: E731
    for loss in (tokens, ROWS, lambda a, y: a.square().sum(dim=0)):
        setup = around(lambda dense, x: dense(x), losses={"digit": LossSpec(loss)})
        setup.but(data=with_odd(1, samples)).fit()


# ---- the user's code


class Lost(KeyError):
    """What the user's code raises here."""


def fails(*args: Any) -> Any:
    raise Lost("mine")


# fmt: off
CODE = [
    fault("loss", lambda s: s.with_loss(lambda a, b: fails(), **BOTH),
        'raised in losses["digit"], called with outputs.digit (8, 3) float32, labels.digit (8,) int64'),
    fault("weight", lambda s: s.with_loss(CE(), weight=fails), 'raised in losses["digit"].weight'),
    fault("normalizer", lambda s: s.with_loss(CE(), normalize_by=fails), 'in losses["digit"].normalize_by'),
    fault("forward", lambda s: s.but(forward=fails), "raised in forward= (train), called with x (8, 6) flo"),
    fault("batch_fn", lambda s: s.but(batch_fn=fails), "raised in batch_fn"),
]
# fmt: on


@pytest.mark.parametrize(("change", "texts"), CODE)
def test_what_the_users_code_raises(setup: Setup, change: Any, texts: tuple) -> None:
    change(setup).refused(Lost, *texts)


@pytest.mark.parametrize("where", ["data", "val_data"])
@pytest.mark.parametrize("name", ["f1", "mcc"])
def test_a_metric_of_two_classes_and_a_label_of_a_third(setup: Setup, where: str, name: str) -> None:
    two = digits(np.arange(8) % 2)
    faulty = setup.but(**{"data": two, where: changed(2)}).with_metric(name, **BOTH)
    faulty.refused(SpecError, "labels are neither 0 nor 1, and it is for two classes")


def test_other_problems_are_reported_before_it(setup: Setup) -> None:
    faulty = setup.but(forward=fails).with_trainers({"body": TrainerSpec("body.*")})
    faulty.refused(TrainerError, "no trainer updates")


def test_hints_of_what_pytorch_raises() -> None:
    images = [[np.zeros((2, 8, 8, 3), "float32"), np.zeros(2, "int64")]]
    net = around(lambda dense, x: nn.functional.conv2d(x, torch.ones(3, 3, 3, 3)).mean(dim=(2, 3)))
    net.but(data=images).refused(RuntimeError, "images are (N, C, H, W)")
    net = around(lambda dense, x: dense(x), losses={"digit": LossSpec(lambda a, b: a.double() @ a.T)})
    net.refused(RuntimeError, "the dtypes differ: cast a tensor with float()")
