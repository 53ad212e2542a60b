"""A fit moves parameters as the loop written by hand does, in float64."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD as Sgd
from torch.optim import Adagrad, Adam, AdamW, RMSprop
from torch.optim import lr_scheduler as of_torch

from multifit import Freeze, LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import FAMO
from multifit.torch.model import Precision
from multifit.torch.updates import LossScale
from multifit.utils.seeding import preserve_rng

from .nets import (
    BODIES,
    BY_SGD,
    SGD,
    Heads,
    assert_equal_parameters,
    batches,
    by_hand,
    heads,
    loader,
    spec_of_heads,
    standard,
)

PARTS = {"body": r"body\..*", "heads": r"(kind|size)\..*"}
BY_PARTS = {name: TrainerSpec(pattern, "sgd", SGD) for name, pattern in PARTS.items()}


def by_sgd(net: nn.Module) -> list[torch.optim.Optimizer]:
    return [Sgd(net.parameters(), **SGD)]


def of_heads(net: Heads) -> list[nn.Parameter]:
    return [*net.kind.parameters(), *net.size.parameters()]


def fitted(net: nn.Module, trainers: Any = BY_SGD, data: Any = None, epochs: int = 2, **options: Any) -> Any:
    """Return an estimator of two heads after a fit."""
    spec, handlers = options.pop("spec", None) or spec_of_heads(), options.pop("handlers", ())
    estimator = MultiEstimator(net, spec, trainers, **options)
    estimator.fit(loader() if data is None else data, epochs=epochs, event_handlers=[*handlers])
    return estimator


def assert_as_by_hand(
    trainers: Any = BY_SGD,
    optimizers: Callable[[Any], Sequence[torch.optim.Optimizer]] = by_sgd,
    net: Any = None,
    data: Any = None,
    of_hand: dict[str, Any] | None = None,
    **options: Any,
) -> MultiEstimator:
    """Train a net by fit and its copy by hand, whose options are `of_hand`; check that they are equal."""
    net = net or heads()
    hand, both = copy.deepcopy(net), {"data": data or loader(), "epochs": options.get("epochs", 2)}
    estimator = fitted(net, trainers, data, **options)
    by_hand(hand, optimizers(hand), **{**both, **(of_hand or {})})
    assert_equal_parameters(net, hand)
    return estimator


# ---- updates

# the trainers as declared, and the optimizers by hand
TRAINERS: dict[str, tuple[Any, Callable[[Any], Sequence[torch.optim.Optimizer]]]] = {
    "sgd": (BY_SGD, by_sgd),
    "a class": (TrainerSpec(".*", RMSprop, {"lr": 0.01, "momentum": 0.5}),
                lambda net: [RMSprop(net.parameters(), lr=0.01, momentum=0.5)]),
    "adamw": (TrainerSpec(".*", "AdamW", {"learning_rate": 0.01, "wd": 0.2}),
              lambda net: [AdamW(net.parameters(), 0.01, weight_decay=0.2)]),
    "a function": (TrainerSpec(".*", partial(Adagrad, lr=0.1)), lambda net: [Adagrad(net.parameters(), 0.1)]),
    "several": ({"body": TrainerSpec(PARTS["body"], "adam", {"lr": 0.01}), "heads": BY_PARTS["heads"]},
                lambda net: [Adam(net.body.parameters(), 0.01), Sgd(of_heads(net), **SGD)]),
}  # fmt: skip


@pytest.mark.parametrize("trainers", TRAINERS)
def test_parameters_are_those_of_the_loop_by_hand(trainers: str) -> None:
    assert_as_by_hand(*TRAINERS[trainers])


@pytest.mark.parametrize("body", [body for body in BODIES if body != "dense"])
def test_so_are_those_of_other_nets(body: str) -> None:
    net = heads(body)
    if body == "lazy":  # whose parameters get their shapes from the first batch
        MultiEstimator(net, spec_of_heads()).check(loader())
    assert_as_by_hand(net=net)


def test_an_optimizer_that_exists_is_taken_as_it_is() -> None:
    def make(net: Any) -> list[torch.optim.Optimizer]:
        return [Sgd([{"params": of_heads(net), "lr": 0.3}, {"params": net.body.parameters()}], **SGD)]

    net = heads()
    (optimizer,) = make(net)
    estimator = assert_as_by_hand({"sgd": optimizer}, make, net)
    handle: Any = estimator.trainers["sgd"]
    assert handle.optimizer is optimizer and handle.learning_rate == 0.3
    again: Any = MultiEstimator(net, spec_of_heads(), {"sgd": handle}).trainers["sgd"]
    assert again.optimizer is optimizer


SCHEDULES: dict[str, Any] = {
    "step": partial(of_torch.StepLR, step_size=2),
    "exponential": partial(of_torch.ExponentialLR, gamma=0.7),
    "cosine": partial(of_torch.CosineAnnealingLR, T_max=5, eta_min=0.01),
    "lambda": partial(of_torch.LambdaLR, lr_lambda=lambda n: 1 / (n + 1)),
    "one_cycle": partial(of_torch.OneCycleLR, max_lr=0.3, total_steps=20),  # which moves momentum, too
    "sequential": lambda optimizer: of_torch.SequentialLR(
        optimizer, [of_torch.ConstantLR(optimizer, 0.1, 3), of_torch.MultiStepLR(optimizer, [2])], [3]
    ),
}
SIZES = 7, 3, 5, 1, 8, 2, 4, 6  # the last window of three batches has two
# options of the trainer, and of the estimator, and the sizes of the batches by hand
WINDOWS: dict[str, tuple[dict[str, Any], dict[str, Any], Sequence[int]]] = {
    "each batch": ({}, {}, SIZES),
    "clipped": ({"clip_norm": 1.0}, {}, SIZES),
    "accumulated": ({"every": 3, "accumulate": True}, {}, (15, 11, 10)),
    "all accumulated": ({}, {"accumulate": 3}, (15, 11, 10)),
    "accumulated, clipped": ({"every": 3, "accumulate": True, "clip_norm": 1.0}, {}, (15, 11, 10)),
}


@pytest.mark.parametrize(
    ("window", "schedule"),
    [*[("each batch", name) for name in SCHEDULES], *[(name, "one_cycle") for name in [*WINDOWS][1:]]],
)
def test_updates_with_schedules_clipping_and_windows(window: str, schedule: str) -> None:
    options, of_estimator, sizes = WINDOWS[window]
    trainer = TrainerSpec(".*", "sgd", SGD, SCHEDULES[schedule], **options)
    largest, norms, schedulers = options.get("clip_norm", 1e9), list[float](), list[Any]()

    def make(net: Any) -> list[torch.optim.Optimizer]:
        optimizer = Sgd(net.parameters(), **SGD)
        schedulers.append(SCHEDULES[schedule](optimizer))
        return [optimizer]

    def clip(net: nn.Module) -> None:
        norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), largest)))

    of_hand = {"data": batches(*sizes), "change": clip, "schedules": schedulers}
    assert_as_by_hand(trainer, make, data=batches(*SIZES), of_hand=of_hand, **of_estimator)
    assert max(norms) > 1 > min(norms)


def test_trainers_have_rhythms_of_their_own() -> None:
    net, hand, data = heads(), heads(), batches(4, 2, 6, 3, 5)
    trainers = {
        "body": TrainerSpec(PARTS["body"], "sgd", {"lr": 0.1}, every=2),
        "heads": TrainerSpec(PARTS["heads"], "sgd", {"lr": 0.1}, every=3, accumulate=True),
    }
    fitted(net, trainers, data, epochs=1)
    sums, samples = [torch.zeros_like(each) for each in of_heads(hand)], 0
    for step, (x, *labels) in enumerate(data, 1):
        hand.zero_grad()
        standard(hand(x), *labels).backward()
        samples += len(x)
        with torch.no_grad():
            for total, each in zip(sums, of_heads(hand)):
                total += each.grad * len(x)
            for each in hand.body.parameters() if step in (2, 4) else ():
                each -= 0.1 * each.grad
            for total, each in zip(sums, of_heads(hand)) if step in (3, 5) else ():
                each -= 0.1 * total / samples
                total.zero_()
            samples = 0 if step == 3 else samples
    assert_equal_parameters(net, hand)


class Gated(nn.Module):
    """A second layer, which batches reach whose first number is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden) if x[0, 0] > 0 else hidden[:, :1]


GATED = TaskSpec(inputs=["x"], outputs=["size"], labels=["size"], losses={"size": nn.MSELoss()})


def gated(*signs: int) -> list[tuple[Tensor, Tensor]]:
    return [(x.abs() * sign, size) for sign, (x, _, size) in zip(signs, batches(*[5] * len(signs)))]


def squares(output: Tensor, _: Any, size: Tensor) -> Tensor:
    return F.mse_loss(output.to(size.dtype), size)


@pytest.mark.parametrize("trainers", [name for name in TRAINERS if name != "several"])
def test_what_a_batch_does_not_reach_stays_as_it_is(trainers: str) -> None:
    """Weight decay and momentum do not move it either; what is reached later begins then."""
    data = gated(1, -1, -1, 1)
    of_hand = {"data": [(x, None, size) for x, size in data], "objective": squares}
    assert_as_by_hand(*TRAINERS[trainers], Gated().double(), data, of_hand, spec=GATED)


def test_an_update_that_reaches_nothing_does_not_count() -> None:
    decays = partial(of_torch.StepLR, step_size=1)
    trainers = {name: TrainerSpec(f"{name}.*", "sgd", {"lr": 0.1}, decays) for name in ("first", "second")}
    estimator = fitted(Gated().double(), trainers, gated(1, -1, -1), spec=GATED, epochs=1)
    assert estimator.learning_rates() == pytest.approx({"lr_first": 1e-4, "lr_second": 0.01})


class Holds:
    """Holds back the update of the second batch."""

    def hold_update(self, estimator: Any) -> bool:
        return bool(estimator.state.step == 1)


class Fails:
    def batch_end(self, estimator: Any) -> None:
        raise KeyError


def test_an_update_that_is_held_back_leaves_nothing_behind() -> None:
    of_hand = {"data": batches(12, 9)[1:]}
    estimator = assert_as_by_hand(
        data=batches(6, 6, 6, 3), of_hand=of_hand, handlers=[Holds()], accumulate=2, epochs=1
    )
    assert all(each.grad is None for each in estimator.net.parameters())


def test_gradients_of_a_fit_that_failed_are_discarded() -> None:
    net = heads()
    estimator = MultiEstimator(net, spec_of_heads(), BY_SGD, accumulate=2)
    with pytest.raises(KeyError):
        estimator.fit(loader(), epochs=1, event_handlers=[Fails()])
    assert all(each.grad is None for each in net.parameters())
    estimator.fit(batches(6, 6), epochs=1)
    by_hand(hand := heads(), by_sgd(hand), batches(12), epochs=1)
    assert_equal_parameters(net, hand)


def test_gradients_of_any_layout_are_used_by_fused_operators() -> None:
    class Straightens:
        def change_gradients(self, estimator: Any) -> None:
            net.kind.weight.grad = net.kind.weight.grad.contiguous()

    net = heads()
    net.kind.weight.data = net.kind.weight.data.t().contiguous().t()
    trainer, make = TrainerSpec(".*", "adam", {"lr": 0.1}), lambda net: [Adam(net.parameters(), 0.1)]
    trained: Any = assert_as_by_hand(trainer, make, net, handlers=[Straightens()]).trainers["trainer"]
    assert trained.defaults["fused"] and not net.kind.weight.is_contiguous()


# ---- losses


def focal(scores: Tensor, kind: Tensor) -> Tensor:
    values = F.cross_entropy(scores, kind, reduction="none")
    return (1 - torch.exp(-values)) ** 2 * values


def of_both(scores: Tensor, number: Tensor, size: Tensor) -> Tensor:
    return (number - size).square().mean() * scores.abs().mean()


OF_CLASSES = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
# losses as declared, and what they are by hand, for scores, kinds, numbers and sizes
LOSSES: dict[str, tuple[dict[str, Any], Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]]] = {
    "a function of numbers": (
        {"kind": LossSpec(F.cross_entropy, weight=2.0)},
        lambda o, kind, number, size: 2 * F.cross_entropy(o, kind) + 0.5 * F.mse_loss(number, size)),
    "values per sample": (
        {"kind": focal},
        lambda o, kind, number, size: focal(o, kind).mean() + 0.5 * F.mse_loss(number, size)),
    "weights of classes": (
        {"kind": nn.CrossEntropyLoss(OF_CLASSES)},
        lambda o, kind, number, size: F.cross_entropy(o, kind, OF_CLASSES) + 0.5 * F.mse_loss(number, size)),
    "values": (
        {"size": nn.SmoothL1Loss(reduction="none")},
        lambda o, kind, number, size: F.cross_entropy(o, kind) + F.smooth_l1_loss(number, size)),
    "both outputs": (
        {"size": LossSpec(of_both, ["kind", "size"], "size")},
        lambda o, kind, number, size: F.cross_entropy(o, kind) + of_both(o, number, size)),
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_are_those_of_the_loop_by_hand(loss: str) -> None:
    declared, objective = LOSSES[loss]
    of_hand = {"objective": lambda o, kind, size: objective(o[0], kind, o[1], size)}
    assert_as_by_hand(spec=spec_of_heads(**declared), of_hand=of_hand)


BOUND = spec_of_heads(kind=LossSpec(nn.CrossEntropyLoss(), trainers="heads"))


def test_a_loss_that_is_bound_reaches_the_parameters_of_its_trainers_alone() -> None:
    def make(net: Heads) -> list[torch.optim.Optimizer]:
        net.kind.register_forward_pre_hook(lambda module, inputs: inputs[0].detach())
        return by_sgd(net)

    assert_as_by_hand(BY_PARTS, make, spec=BOUND)


def test_a_loss_that_is_bound_reaches_parameters_that_are_unfrozen_later() -> None:
    net = heads()
    fitted(net, BY_PARTS, spec=BOUND, handlers=[Freeze("kind.*", until=1)])
    assert not torch.equal(net.kind.weight, heads().kind.weight)


def test_a_loss_alone_is_enough() -> None:
    torch.manual_seed(0)
    data = [(x.float(), kind) for x, kind, _ in loader()]
    history = MultiEstimator(nn.Linear(6, 3), nn.CrossEntropyLoss()).fit(data, epochs=3)
    assert {"train_loss", "train_accuracy"} <= set(history)
    assert history["train_loss"][-1] < history["train_loss"][0]


def test_training_figures_are_those_before_each_update() -> None:
    def objective(outputs: Any, kind: Tensor, size: Tensor) -> Tensor:
        loss = standard(outputs, kind, size)
        losses.append(loss.item() * len(kind))
        return loss

    losses = list[float]()
    history = assert_as_by_hand(epochs=1, of_hand={"objective": objective}).history
    assert history["train_loss"] == pytest.approx([sum(losses) / 20], rel=1e-12)


def test_a_dict_of_outputs_and_a_dict_of_a_batch() -> None:
    def named(net: nn.Module, slots: Any) -> dict[str, Tensor]:
        kind, size = net(slots["x"])
        return {"size": size, "kind": kind}

    data = [{"kind": kind, "x": x, "size": size} for x, kind, size in loader()]
    assert_as_by_hand(data=data, spec=spec_of_heads(forward=named), of_hand={"data": loader()})


@pytest.mark.parametrize("by", ["valid", lambda slots: slots["valid"].numpy()], ids=["a slot", "an array"])
def test_what_is_divided_by_0_counts_nowhere(by: Any) -> None:
    x, y = torch.ones(4, 1), torch.tensor([1.0, 2.0, 5.0, 7.0])[:, None]
    data = [(x, y, torch.full((4,), valid)) for valid in (1.0, 0.0)]
    losses, unused = {"l": LossSpec(nn.MSELoss(), "out", "y", normalize_by=by)}, ["valid"] * callable(by)
    spec = TaskSpec(inputs=["x"], outputs="out", labels=["y", "valid"], losses=losses, unused=unused)
    net = nn.Linear(1, 1)
    expected = F.mse_loss(net(x), y).item()
    history = fitted(net, TrainerSpec(".*", "sgd", {"lr": 0.0}), data, 1, spec=spec).history
    assert history["train_l"] == [pytest.approx(expected, rel=1e-6)]


def test_modules_that_the_user_has_set_to_evaluation_stay_so() -> None:
    net = heads("batch normalisation")
    net.body[1].eval()
    before = net.body[1].running_mean.clone()
    MultiEstimator(net, spec_of_heads()).fit(loader(), loader(), epochs=1)
    assert torch.equal(net.body[1].running_mean, before)
    assert net.training and not net.body[1].training


def test_a_second_look_at_a_batch_does_not_move_running_statistics() -> None:
    net = heads("batch normalisation")
    fitted(net, balance=FAMO(), epochs=1)  # which computes the losses again after each update
    assert net.body[1].num_batches_tracked == len(loader())


# ---- labels that a cross entropy ignores count nowhere, even if the spec does not mention them


def with_ignored(ignored: int = -100) -> list[tuple[Tensor, Tensor]]:
    """Return batches of which the second has no label at all, and the third all of them."""
    data = [(x, kind.clone()) for x, kind, _ in batches(6, 3, 5, 6)]
    data[0][1][2:], data[1][1][:], data[3][1][0] = ignored, ignored, ignored
    return data


def of_kind(loss: Any, label: Any = "kind", metrics: Any = None) -> TaskSpec:
    losses = {"kind": loss}
    return TaskSpec(inputs=["x"], outputs=["kind", ...], labels=[label], losses=losses, metrics=metrics)


@pytest.mark.parametrize(
    ("loss", "accumulate"),
    [(nn.CrossEntropyLoss(), 1), (nn.CrossEntropyLoss(), 2), (F.cross_entropy, 1),
     (partial(F.cross_entropy, ignore_index=-100), 2)],
)  # fmt: skip
def test_what_is_ignored_counts_nowhere(loss: Any, accumulate: int) -> None:
    def objective(outputs: Any, kind: Tensor, _: Any) -> Tensor:
        return F.cross_entropy(outputs[0], kind, reduction="sum") / max((kind >= 0).sum(), 1)

    data = with_ignored()
    windows = [data[start : start + accumulate] for start in range(0, 4, accumulate)]
    joined = [(*map(torch.cat, zip(*window)), None) for window in windows]
    estimator = assert_as_by_hand(
        TrainerSpec("(body|kind).*", "sgd", SGD), spec=of_kind(loss), frozen=["size.*"], data=data,
        accumulate=accumulate, of_hand={"data": joined, "objective": objective},
    )  # fmt: skip
    x, kind = map(torch.cat, zip(*data))
    expected = float(F.cross_entropy(estimator.net(x)[0], kind).detach())
    assert estimator.evaluate(data)["loss"] == pytest.approx(expected, rel=1e-10)


METRICS = "accuracy", "f1", "mcc", "ce", "top_2", "perplexity", "mean_iou", "pixel_accuracy"


@pytest.mark.parametrize(("ignored", "declared"), [(-100, False), (255, False), (255, True)])
def test_metrics_leave_out_what_a_loss_ignores(ignored: int, declared: bool) -> None:
    def figures(data: list[tuple[Tensor, Tensor]], label: str | LabelSpec) -> dict[str, float]:
        metrics = {name: MetricSpec(name, outputs="kind", labels="kind") for name in METRICS}
        spec = of_kind(nn.CrossEntropyLoss(ignore_index=ignored), label, metrics)
        return MultiEstimator(heads(), spec).evaluate(data)

    data = [(x, torch.where(y == ignored, ignored, y.clamp(max=1))) for x, y in with_ignored(ignored)]
    kept = [(x[kind != ignored], kind[kind != ignored]) for x, kind in data]
    found = figures(data, LabelSpec("kind", ignore=ignored) if declared else "kind")
    assert found == pytest.approx(figures([each for each in kept if len(each[0])], "kind"), rel=1e-10)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, nn.CrossEntropyLoss(OF_CLASSES)])
def test_results_hold_what_the_loss_returns(loss: Any) -> None:
    x, kind = with_ignored()[0]
    spec = of_kind(loss, metrics={"mean": MetricSpec("loss", losses="kind")})
    figures = MultiEstimator(heads(), spec).evaluate([(x, kind)])
    expected = float(loss(heads()(x)[0], kind).detach())
    assert figures == pytest.approx(dict.fromkeys(("loss", "kind", "mean"), expected), rel=1e-10)


# ---- low precision

ONE = TaskSpec(
    inputs=["x"], outputs=["y"], labels=["y"], losses={"y": nn.MSELoss()},
    metrics={"error": MetricSpec("mae", outputs="y", labels="y")},
)  # fmt: skip


def singles() -> list[tuple[Tensor, Tensor]]:
    return [(x.float(), size.float()) for x, _, size in batches(4, 4, 4)]


@pytest.mark.parametrize("forward", [None, lambda net, slots: net(slots["x"])])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_net_in_low_precision_has_losses_and_figures_in_float32(dtype: torch.dtype, forward: Any) -> None:
    torch.manual_seed(0)
    net, data = nn.Linear(6, 1).to(dtype), singles()
    spec = TaskSpec(
        inputs=["x"], outputs=["y"], labels=["y"], losses=ONE.losses, metrics=ONE.metrics, forward=forward
    )
    assert "autocast" not in str(MultiEstimator(net, spec).check(data))
    rows = [(x.to(dtype), None, y) for x, y in data]
    estimator = assert_as_by_hand(net=net, data=data, spec=spec, of_hand={"data": rows, "objective": squares})
    errors = torch.cat([net(x).float().detach() - y for x, _, y in rows])
    assert estimator.evaluate(data)["error"] == pytest.approx(float(errors.abs().mean()), rel=1e-6)
    assert estimator.predict(data)["y"].dtype == "float32"


def test_autocast_sees_the_parameters_move() -> None:
    torch.manual_seed(0)
    estimator = MultiEstimator(nn.Linear(6, 1), ONE, BY_SGD, precision="bfloat16")
    losses = estimator.fit(singles(), epochs=9, event_handlers=[])["train_loss"]
    assert losses[-1] < 0.8 * losses[0]


def scaled(net: nn.Module, **options: Any) -> MultiEstimator:
    """Return an estimator that scales losses as in float16, which else needs a GPU."""
    estimator = MultiEstimator(net, ONE, TrainerSpec(".*", "sgd", {"lr": 0.1}), **options)
    estimator._session.model.precision = Precision("float16", None)
    return estimator


def test_losses_in_float16_are_scaled_as_by_torch_s_grad_scaler() -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    hand, data, scaler = copy.deepcopy(net), singles(), torch.amp.GradScaler("cpu")
    data[1] = (data[1][0] * 1e36, data[1][1])  # whose gradients overflow
    estimator = scaled(net)
    estimator.fit(data, epochs=1, event_handlers=[])
    optimizer = Sgd(hand.parameters(), lr=0.1, fused=True)
    for x, y in data:
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(hand(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert estimator._session.trainers.scale == scaler.get_scale() == 2.0**15
    assert_equal_parameters(net, hand, 1e-6)
    assert net.weight.isfinite().all()
    again = scaled(nn.Linear(6, 1))
    again._session.trainers.load(estimator._session.trainers.state())
    assert again._session.trainers.scale == 2.0**15


def test_gradients_that_wait_in_float16_survive_a_change_of_the_scale() -> None:
    class Changes:
        def batch_end(self, estimator: Any) -> None:
            estimator._session.trainers.loss_scale.scale = self.scale

    nets = []
    for scale in (2.0**16, 2.0**10):
        torch.manual_seed(0)
        nets.append(nn.Linear(6, 1))
        Changes.scale = scale
        scaled(nets[-1], accumulate=2).fit(singles(), epochs=1, event_handlers=[Changes()])
    assert_equal_parameters(*nets, 1e-6)


def test_the_scale_doubles_after_2000_finite_batches() -> None:
    scale = LossScale()
    for _ in range(2000):
        assert scale.scale == 2.0**16
        scale.unscale([torch.ones(1)])
        scale.update(False)
        scale.update(False)  # nothing happened in between, as at the end of an epoch
    assert scale.scale == 2.0**17
    scale.unscale([])
    scale.update(True)  # another rank's
    assert (scale.scale, scale.finite) == (2.0**16, 0)


# ---- devices and outputs


class Scale(nn.Module):
    """Returns its parameter, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x @ self.scale.T, self.scale, self.scale.reshape(6)


def test_an_output_that_is_a_parameter_is_that_of_before_the_update() -> None:
    class Looks:
        def batch_end(self, estimator: Any, pred: Any) -> None:
            seen.extend(pred[name][0].flatten()[0].item() for name in ("scale", "flat"))

    seen: list[float] = []
    outputs = ["y", "scale", "flat"]
    spec = TaskSpec(inputs=["x"], outputs=outputs, labels=["y"], losses=ONE.losses, unused=outputs[1:])
    net = Scale()
    MultiEstimator(net, spec, BY_SGD).fit(singles()[:1], epochs=1, event_handlers=[Looks()])
    assert seen == [1, 1] and (net.scale != 1).any()


@pytest.fixture
def elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("elsewhere")
def test_a_net_trains_and_random_states_are_kept_whichever_device_is_the_default() -> None:
    with preserve_rng():
        first = torch.rand(3, device="cpu")
    assert torch.equal(first, torch.rand(3, device="cpu"))
    data = [(torch.ones(4, 6, device="cpu"), torch.ones(4, 1, device="cpu"))] * 2
    net = nn.Linear(6, 1, device="cpu")
    history = MultiEstimator(net, ONE, BY_SGD, context="cpu").fit(data, data, epochs=2, event_handlers=[])
    assert history["val_loss"][1] < history["val_loss"][0]
