"""A fit moves parameters as the loop written by hand does; its figures are those of whole passes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from multifit import Freeze, LossSpec, MultiEstimator, TaskSpec, TrainerSpec

from .nets import BODIES, assert_equal_parameters, by_hand, columns, heads, loader, spec_of_heads

Objective = Callable[[Any, Tensor, Tensor], Tensor]


def standard(outputs: Any, kind: Tensor, size: Tensor) -> Tensor:
    """Return the objective of `spec_of_heads`."""
    return functional.cross_entropy(outputs[0], kind) + 0.5 * functional.mse_loss(outputs[1], size)


SGD = {"lr": 0.1, "momentum": 0.9}
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": ("sgd", SGD, lambda p: torch.optim.SGD(p, **SGD)),
    "a class": (torch.optim.RMSprop, {"lr": 0.01}, lambda p: torch.optim.RMSprop(p, lr=0.01)),
    "adamw": ("adamw", {"learning_rate": 0.01}, lambda p: torch.optim.AdamW(p, lr=0.01)),
    "a function": (lambda p: torch.optim.Adagrad(p, 0.1), {}, lambda p: torch.optim.Adagrad(p, 0.1)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("body", [body for body in BODIES if body != "lazy"])
def test_parameters_are_those_of_the_loop_by_hand(body: str, optimizer: str) -> None:
    declared, options, by_class = OPTIMIZERS[optimizer]
    net, hand = heads(body), heads(body)
    estimator = MultiEstimator(net, spec_of_heads(), TrainerSpec(".*", declared, options or None))
    estimator.fit(loader(), epochs=2)
    by_hand(hand, [by_class(hand.parameters())], loader(), standard)
    assert_equal_parameters(net, hand)


def focal(scores: Tensor, kind: Tensor) -> Tensor:
    values = functional.cross_entropy(scores, kind, reduction="none")
    return (1 - torch.exp(-values)) ** 2 * values


LOSSES: dict[str, tuple[dict[str, Any], Objective]] = {
    "a function of numbers": (
        {"kind": LossSpec(functional.cross_entropy, weight=2.0)},
        lambda o, kind, size: standard(o, kind, size) + functional.cross_entropy(o[0], kind),
    ),
    "values per sample": (
        {"kind": focal},
        lambda o, kind, size: focal(o[0], kind).mean() + 0.5 * functional.mse_loss(o[1], size),
    ),
    "weights of classes": (
        {"kind": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))},
        lambda o, kind, size: (
            functional.cross_entropy(o[0], kind, torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
            + 0.5 * functional.mse_loss(o[1], size)
        ),
    ),
    "sums": (
        {"size": nn.SmoothL1Loss(reduction="none")},
        lambda o, kind, size: (
            functional.cross_entropy(o[0], kind)
            + functional.smooth_l1_loss(o[1], size, reduction="sum") / len(size)
        ),
    ),
    "both outputs": (
        {
            "size": LossSpec(
                lambda k, s, size: (s - size).square().mean() * k.abs().mean(), ["kind", "size"], "size"
            )
        },
        lambda o, kind, size: (
            functional.cross_entropy(o[0], kind) + (o[1] - size).square().mean() * o[0].abs().mean()
        ),
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_are_those_of_the_loop_by_hand(loss: str) -> None:
    declared, objective = LOSSES[loss]
    net, hand = heads(), heads()
    MultiEstimator(net, spec_of_heads(**declared), TrainerSpec(".*", "sgd", SGD)).fit(loader(), epochs=2)
    by_hand(hand, [torch.optim.SGD(hand.parameters(), **SGD)], loader(), objective)
    assert_equal_parameters(net, hand)


def test_several_trainers() -> None:
    net, hand = heads(), heads()
    trainers = {
        "body": TrainerSpec(r"body\..*", "adam", {"lr": 0.01}),
        "heads": TrainerSpec(r"(kind|size)\..*", "sgd", SGD),
    }
    MultiEstimator(net, spec_of_heads(), trainers).fit(loader(), epochs=3)
    of_heads = [*hand.kind.parameters(), *hand.size.parameters()]
    optimizers = [torch.optim.Adam(hand.body.parameters(), 0.01), torch.optim.SGD(of_heads, **SGD)]
    by_hand(hand, optimizers, loader(), standard, epochs=3)
    assert_equal_parameters(net, hand)


def test_an_optimizer_that_exists() -> None:
    net, hand = heads(), heads()
    MultiEstimator(net, spec_of_heads(), torch.optim.SGD(net.parameters(), **SGD)).fit(loader(), epochs=2)
    by_hand(hand, [torch.optim.SGD(hand.parameters(), **SGD)], loader(), standard)
    assert_equal_parameters(net, hand)


def test_clipped_gradients() -> None:
    net, hand = heads(), heads()
    MultiEstimator(net, spec_of_heads(), TrainerSpec(".*", "sgd", SGD, clip_norm=0.5)).fit(loader(), epochs=1)
    optimizer = torch.optim.SGD(hand.parameters(), **SGD)
    for x, kind, size in loader():
        optimizer.zero_grad()
        standard(hand(x), kind, size).backward()
        nn.utils.clip_grad_norm_(hand.parameters(), 0.5)
        optimizer.step()
    assert_equal_parameters(net, hand)


@pytest.mark.parametrize("declared", [{"accumulate": 3}, {}], ids=["all", "one trainer"])
def test_an_update_of_several_batches_is_that_of_one(declared: dict[str, int]) -> None:
    """20 samples: batches of 6, 6, 6 and 2 are updates of 18 and of 2."""
    net, hand = heads(), heads()
    own = {} if declared else {"every": 3, "accumulate": True}
    MultiEstimator(net, spec_of_heads(), TrainerSpec(".*", "sgd", SGD, **own), **declared).fit(
        loader(), epochs=2
    )
    by_hand(hand, [torch.optim.SGD(hand.parameters(), **SGD)], loader(18), standard)
    assert_equal_parameters(net, hand)


def test_a_loss_that_is_bound_reaches_the_parameters_of_its_trainers_alone() -> None:
    net, hand = heads(), heads()
    trainers = {
        "body": TrainerSpec(r"body\..*", "sgd", SGD),
        "heads": TrainerSpec(r"(kind|size)\..*", "sgd", SGD),
    }
    kind = LossSpec(nn.CrossEntropyLoss(), trainers="heads")
    MultiEstimator(net, spec_of_heads(kind=kind), trainers).fit(loader(), epochs=2)

    def objective(outputs: Any, kind: Tensor, size: Tensor) -> Tensor:
        features = hand.body(current["x"]).detach()
        return functional.cross_entropy(hand.kind(features), kind) + 0.5 * functional.mse_loss(
            outputs[1], size
        )

    current: dict[str, Tensor] = {}
    hand.register_forward_pre_hook(lambda module, inputs: current.update(x=inputs[0]))
    by_hand(hand, [torch.optim.SGD(hand.parameters(), **SGD)], loader(), objective)
    assert_equal_parameters(net, hand)


def test_a_loss_that_is_bound_reaches_parameters_that_are_unfrozen_later() -> None:
    net = heads()
    patterns = {"body": r"body\..*", "heads": r"(kind|size)\..*"}
    trainers = {name: TrainerSpec(pattern, "sgd", SGD) for name, pattern in patterns.items()}
    kind = LossSpec(nn.CrossEntropyLoss(), trainers="heads")
    estimator = MultiEstimator(net, spec_of_heads(kind=kind), trainers)
    before = net.kind.weight.detach().clone()
    estimator.fit(loader(), epochs=2, event_handlers=Freeze("kind.*", until=1))
    assert not torch.equal(net.kind.weight, before)


def test_lazy_modules_are_materialised_by_the_first_batch() -> None:
    net, hand = heads("lazy"), heads()
    estimator = MultiEstimator(net, spec_of_heads(), TrainerSpec(".*", "sgd", SGD))
    estimator.check(loader())
    hand.load_state_dict(net.state_dict())
    estimator.fit(loader(), epochs=2)
    by_hand(hand, [torch.optim.SGD(hand.parameters(), **SGD)], loader(), standard)
    assert_equal_parameters(net, hand)


@pytest.mark.parametrize("batch_size", [1, 7, 20])
def test_figures_do_not_depend_on_how_samples_are_cut(batch_size: int) -> None:
    net = heads()
    x, kind, size = columns()
    with torch.no_grad():
        scores, numbers = net(x)
        entropy, square = functional.cross_entropy(scores, kind), functional.mse_loss(numbers, size)
    figures = MultiEstimator(net, spec_of_heads()).evaluate(loader(batch_size))
    expected = {
        "loss": entropy + 0.5 * square,
        "kind": entropy,
        "size": square,
        "accuracy": (scores.argmax(1) == kind).double().mean(),
        "error": (numbers - size).abs().mean(),
    }
    assert figures == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-12)


def test_training_figures_are_those_before_each_update() -> None:
    net, hand = heads(), heads()
    history = MultiEstimator(net, spec_of_heads(), TrainerSpec(".*", "sgd", SGD)).fit(
        loader(), loader(), epochs=1
    )
    losses: list[tuple[float, int]] = []

    def objective(outputs: Any, kind: Tensor, size: Tensor) -> Tensor:
        loss = standard(outputs, kind, size)
        losses.append((loss.item(), len(kind)))
        return loss

    by_hand(hand, [torch.optim.SGD(hand.parameters(), **SGD)], loader(), objective, epochs=1)
    mean = sum(loss * count for loss, count in losses) / 20
    assert history["train_loss"] == pytest.approx([mean], rel=1e-12)
    with torch.no_grad():
        x, kind, size = columns()
        assert history["val_loss"] == pytest.approx([float(standard(hand(x), kind, size))], rel=1e-10)


def test_modules_that_the_user_has_set_to_evaluation_stay_so() -> None:
    net = heads("batch normalisation")
    net.body[1].eval()
    before = net.body[1].running_mean.clone()
    estimator = MultiEstimator(net, spec_of_heads())
    estimator.fit(loader(), loader(), epochs=1)
    assert torch.equal(net.body[1].running_mean, before)
    assert net.training and not net.body[1].training


def test_a_loss_alone_is_enough() -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    data = [(x.float(), kind) for x, kind, _ in loader()]
    estimator = MultiEstimator(net, nn.CrossEntropyLoss())
    history = estimator.fit(data, epochs=3)
    assert {"train_loss", "train_accuracy"} <= set(history)
    assert history["train_loss"][-1] < history["train_loss"][0]


def test_a_dict_of_outputs_and_a_dict_of_a_batch() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = heads()

        def forward(self, x: Tensor) -> dict[str, Any]:
            kind, size = self.inner(x)
            return {"size": size, "more": {"kind": kind}, "unused": None}

    def flat(net: nn.Module, slots: Any) -> dict[str, Tensor]:
        returned = net(slots["x"])
        return {"kind": returned["more"]["kind"], "size": returned["size"]}

    net, hand = Named(), heads()
    spec = TaskSpec(
        inputs=["x"], outputs=["kind", "size"],
        labels=["kind", "size"],
        losses={"kind": nn.CrossEntropyLoss(), "size": LossSpec(nn.MSELoss(), weight=0.5)},
        forward=flat,
    )  # fmt: skip
    data = [dict(zip(("x", "kind", "size"), batch)) for batch in loader()]
    MultiEstimator(net, spec, TrainerSpec(".*", "sgd", SGD)).fit(data, epochs=2)
    by_hand(hand, [torch.optim.SGD(hand.parameters(), **SGD)], loader(), standard)
    assert_equal_parameters(net.inner, hand)


@pytest.mark.parametrize("by", ["valid", lambda slots: slots["valid"].numpy()], ids=["a slot", "an array"])
def test_what_is_divided_by_0_counts_nowhere(by: Any) -> None:
    x, y = torch.ones(4, 1), torch.tensor([1.0, 2.0, 5.0, 7.0])[:, None]
    batches = [(x, y, torch.full((4,), valid)) for valid in (1.0, 0.0)]
    loss = LossSpec(nn.MSELoss(), "out", "y", normalize_by=by)
    spec = TaskSpec(
        inputs=["x"],
        outputs="out",
        labels=["y", "valid"],
        losses={"l": loss},
        unused=["valid"] * callable(by),
    )
    net, start = nn.Linear(1, 1), {"lr": 0.0}
    expected = ((net(x) - y) ** 2).mean().item()
    history = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", start)).fit(batches, epochs=1)
    assert history["train_l"] == [pytest.approx(expected, rel=1e-6)]
