"""Updates equal those of loops in PyTorch, written by hand, in float64."""

import copy
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, SequentialLR, StepLR

from multifit import TrainerSpec
from multifit.distributed import World
from multifit.schedules import OneCycle
from multifit.torch.updates import LossScale
from tests.torch.native.steps import (
    apply,
    assert_equal,
    batches_of,
    loss_of,
    model_of,
    small_net,
    train,
    trainers_of,
    values,
)

OPTIMIZERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    ("adam", torch.optim.Adam, {"lr": 0.01}),
    ("AdamW", torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    ("rmsprop", torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
    ("adagrad", torch.optim.Adagrad, {"lr": 0.05}),
]
SCHEDULES: dict[str, Any] = {
    "none": None,
    "step": partial(StepLR, step_size=2, gamma=0.5),
    "cosine": partial(CosineAnnealingLR, T_max=7),
    "one_cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=20, cycle_momentum=False),
    "two": lambda optimizer: SequentialLR(
        optimizer, [LambdaLR(optimizer, lambda n: (n + 1) / 3), StepLR(optimizer, 2)], milestones=[3]
    ),
}


def by_hand(
    net: nn.Module,
    optimizer: Any,
    batches: Any,
    every: int = 1,
    clip: float | None = None,
    schedule: Any = None,
) -> None:
    """A loop in PyTorch whose batches are joined, `every` at a time."""
    for start in range(0, len(batches), every):
        joined = tuple(map(torch.cat, zip(*batches[start : start + every])))
        optimizer.zero_grad()
        loss_of(net, joined).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()


@pytest.mark.parametrize(("name", "kind", "options"), OPTIMIZERS, ids=[name for name, *_ in OPTIMIZERS])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("every", "clip"), [(1, None), (1, 0.5), (3, None), (3, 0.5)])
def test_updates_equal_a_loop_by_hand(name, kind, options, schedule, every, clip):
    batches = batches_of(7, 3, 5, 1, 8, 2, 4, 6)  # the last window has two
    ours, theirs = small_net(), small_net()
    spec = TrainerSpec(
        ".*", name, options, SCHEDULES[schedule], clip_norm=clip, every=every, accumulate=every > 1
    )
    train(trainers_of(ours, spec), ours, batches)
    optimizer = kind(theirs.parameters(), **options)
    by_hand(theirs, optimizer, batches, every, clip, SCHEDULES[schedule] and SCHEDULES[schedule](optimizer))
    assert_equal(ours, theirs)
    assert (values(ours) - values(small_net())).abs().max() > 1e-3


def test_accumulate_of_the_estimator_is_for_all_trainers():
    ours, theirs = small_net(), small_net()
    declared = {
        "body": TrainerSpec("0.*", "sgd", {"lr": 0.1}),
        "head": TrainerSpec("2.*", "sgd", {"lr": 0.2}),
    }
    trainers = trainers_of(ours, declared, accumulate=2)
    assert trainers.get() and (trainers.window, trainers.window_of("body")) == (2, 2)
    batches = batches_of(4, 2, 6, 1)
    assert train(trainers, ours, batches) == [[], ["body", "head"]] * 2
    groups = [{"params": theirs[0].parameters()}, {"params": theirs[2].parameters(), "lr": 0.2}]
    by_hand(theirs, torch.optim.SGD(groups, lr=0.1), batches, every=2)
    assert_equal(ours, theirs)


def test_a_schedule_of_multifit_sets_the_rate_of_each_update():
    ours, theirs = small_net(), small_net()
    schedule, batches = OneCycle(0.1, 6), batches_of(4, 4, 4, 4)
    train(trainers_of(ours, TrainerSpec(".*", "sgd", lr_scheduler=schedule)), ours, batches)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.0)
    for update, batch in enumerate(batches, 1):
        optimizer.param_groups[0]["lr"] = schedule(update)
        by_hand(theirs, optimizer, [batch])
    assert_equal(ours, theirs)


def test_trainers_have_rhythms_of_their_own():
    ours, theirs = small_net(), small_net()
    declared = {
        "slow": TrainerSpec("0.*", "sgd", {"lr": 0.1}, every=2),
        "sum": TrainerSpec("2.*", "sgd", {"lr": 0.1}, every=3, accumulate=True),
    }
    trainers, batches = trainers_of(ours, declared), batches_of(4, 2, 6, 3, 5)
    assert train(trainers, ours, batches, ends=False) == [[], ["slow"], ["sum"], ["slow"], []]
    assert (trainers.left, trainers.waiting, trainers.window) == (True, {"slow", "sum"}, 3)
    assert trainers.left_due() == ["sum"] and trainers.waiting == {"slow"}
    apply(trainers, ["sum"])
    assert not trainers.left
    sums = [torch.zeros_like(each) for each in theirs[2].parameters()]
    samples = 0
    for step, batch in enumerate(batches):
        theirs.zero_grad()
        (loss_of(theirs, batch) * len(batch[0])).backward()
        samples += len(batch[0])
        with torch.no_grad():
            for total, each in zip(sums, theirs[2].parameters()):
                total += each.grad
            if step in (1, 3):
                for each in theirs[0].parameters():
                    each -= 0.1 * each.grad / len(batch[0])
            if step in (2, 4):
                for total, each in zip(sums, theirs[2].parameters()):
                    each -= 0.1 * total / samples
                    total.zero_()
                samples = 0
    assert_equal(ours, theirs)


def test_what_a_batch_does_not_reach_stays_as_it_is():
    net = small_net()
    options = {"lr": 0.1, "weight_decay": 0.5}
    declared = {
        "body": TrainerSpec("0.*", "sgd", options, partial(StepLR, step_size=1)),
        "head": TrainerSpec("2.*", "sgd", options, partial(StepLR, step_size=1)),
    }
    trainers, before = trainers_of(net, declared), copy.deepcopy(net)
    train(trainers, net, batches_of(4), loss=lambda net, batch: net[0](batch[0]).sum())
    assert not torch.equal(net[0].weight, before[0].weight)
    assert torch.equal(net[2].weight, before[2].weight)
    assert trainers.learning_rates() == {"lr_body": pytest.approx(0.01), "lr_head": 0.1}
    train(trainers, net, batches_of(4), loss=lambda net, batch: net[2].weight.sum())
    assert trainers["head"].learning_rate == pytest.approx(0.01)


@pytest.mark.parametrize(("name", "kind", "options"), OPTIMIZERS, ids=[name for name, *_ in OPTIMIZERS])
def test_what_is_reached_later_begins_then(name, kind, options):
    ours, theirs = small_net(), small_net()
    part = lambda net, batch: net[0](batch[0]).square().mean()  # noqa: E731
    losses, batches = [part, loss_of, part, loss_of], batches_of(4, 4, 4, 4)
    trainers, optimizer = (
        trainers_of(ours, TrainerSpec(".*", name, options)),
        kind(theirs.parameters(), **options),
    )
    for step, (loss, batch) in enumerate(zip(losses, batches)):
        train(trainers, ours, [batch], start=step, loss=loss)
        optimizer.zero_grad()
        loss(theirs, batch).backward()
        optimizer.step()
        assert_equal(ours, theirs)


def test_an_update_that_is_held_back_leaves_nothing_behind():
    ours, theirs = small_net(), small_net()
    spec = TrainerSpec(".*", "adam", {"lr": 0.1}, every=2, accumulate=True)
    trainers, batches = trainers_of(ours, spec), batches_of(4, 2, 6, 3)
    assert train(trainers, ours, batches, hold=[1]) == [[], ["trainer"]] * 2
    by_hand(theirs, torch.optim.Adam(theirs.parameters(), lr=0.1), batches[2:], every=2)
    assert_equal(ours, theirs)
    assert all(each.grad is None for each in ours.parameters())


def test_the_largest_norm_is_that_of_a_trainer_s_gradients():
    net = small_net()
    trainers = trainers_of(net, TrainerSpec(".*", "sgd", clip_norm=0.1))
    assert trainers.build() == [] and trainers.clip_norms == {"trainer": 0.1}
    gradients = [torch.randn_like(each) for each in net.parameters()]
    for factor, changes in ((1.0, True), (1e-4, False)):
        for each, gradient in zip(net.parameters(), gradients):
            each.grad = gradient * factor
        expected = [each.clone() for each in gradients]
        trainers.clip("trainer")
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients])) * factor
        share = min(1.0, 0.1 / float(norm + 1e-6))
        assert (share < 1) == changes
        for each, gradient in zip(net.parameters(), expected):
            torch.testing.assert_close(each.grad, gradient * factor * share, rtol=1e-12, atol=0)


def test_gradients_of_any_layout_are_used():
    ours, theirs = wide_net(), wide_net()
    trainers = trainers_of(ours, TrainerSpec(".*", "adam", {"lr": 0.1}))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.1)
    assert trainers.build() == [] and trainers["trainer"].defaults["fused"]
    for net in (ours, theirs):
        assert not net[2].weight.is_contiguous()
        torch.manual_seed(1)
        for each in net.parameters():
            each.grad = torch.randn(each.shape, dtype=each.dtype)  # contiguous
    trainers.update("trainer")
    optimizer.step()
    assert_equal(ours, theirs)


# ---- ranks


class Pair:
    """Two ranks in threads, which add up what each of them gives."""

    def __init__(self) -> None:
        self.barrier, self.given = threading.Barrier(2), [None, None]

    def world(self, rank: int) -> World:
        world = World()
        world.rank, world.size = rank, 2
        world.sum = lambda vector: sum(self.exchange(rank, np.asarray(vector, float)))
        world.all_reduce_tensors = partial(self.add_up, rank)
        return world

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.given[rank] = value
        self.barrier.wait(20)
        both = list(self.given)
        self.barrier.wait(20)
        return both

    def add_up(self, rank: int, tensors: Any) -> None:
        one, other = self.exchange(rank, [each.clone() for each in tensors])
        for each, first, second in zip(tensors, one, other, strict=True):
            each.copy_(first + second)

    def run(self, work: Any) -> list[Any]:
        results: list[Any] = [None, None]

        def of_rank(rank: int) -> None:
            try:
                results[rank] = work(rank, self.world(rank))
            except BaseException as error:
                self.barrier.abort()
                results[rank] = error

        threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for each in results:
            if isinstance(each, BaseException):
                raise each
        return results


def wide_net() -> nn.Sequential:
    """A net with a gradient that is summed by itself, and with one that is not contiguous."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8192), nn.Tanh(), nn.Linear(8192, 2)).double()
    net[2].weight.data = net[2].weight.data.t().contiguous().t()
    return net


@pytest.mark.parametrize("make", [small_net, wide_net])
@pytest.mark.parametrize("every", [1, 2])
def test_ranks_update_as_one_process_with_all_samples(make, every):
    whole, single = batches_of(6, 4, 5, 3), make()
    spec = TrainerSpec(".*", "sgd", {"lr": 0.01}, every=every, accumulate=every > 1, clip_norm=1.0)
    train(trainers_of(single, spec), single, whole)
    nets = [make(), make()]

    def work(rank: int, world: World) -> nn.Module:
        net = nets[rank]
        parts = [(x[rank::2], y[rank::2]) for x, y in whole]
        train(trainers_of(net, spec, world=world), net, parts, totals=[6, 4, 5, 3])
        return net

    for net in Pair().run(work):
        assert_equal(net, single)


def test_what_one_rank_reaches_is_updated_on_all_ranks():
    nets = [small_net(), small_net()]

    def work(rank: int, world: World) -> tuple[nn.Module, list[bool]]:
        net = nets[rank]
        trainers = trainers_of(net, TrainerSpec(".*", "sgd", {"lr": 0.1, "weight_decay": 0.5}), world=world)
        reach = lambda net, batch: (net[0] if rank else net[2])(batch[0][:, : 5 if rank else 4]).sum()  # noqa: E731
        train(trainers, net, batches_of(4), loss=reach, totals=[8])
        train(trainers, net, batches_of(4), start=1, hold=[rank], totals=[8])  # rank 1 holds back
        nothing = lambda net, batch: net[0].bias.sum()  # noqa: E731
        train(trainers, net, batches_of(4), loss=nothing, totals=[8])
        return net, [each.grad is None for each in net.parameters()]

    (one, none), (other, _) = Pair().run(work)
    assert torch.equal(values(one), values(other)) and all(none)
    assert not torch.equal(one[2].weight, small_net()[2].weight)


def test_sparse_gradients_are_summed_as_dense_ones():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Embedding(4, 2, sparse=True))]
    nets.append(copy.deepcopy(nets[0]))
    before = nets[0][0].weight.detach().clone()

    def work(rank: int, world: World) -> torch.Tensor:
        net = nets[rank]
        trainers = trainers_of(net, TrainerSpec(".*", "sgd", {"lr": 1.0}), world=world)
        batch = (torch.tensor([rank]), torch.zeros(1))
        train(trainers, net, [batch], loss=lambda net, batch: net(batch[0]).sum(), totals=[2])
        return net[0].weight.detach()

    one, other = Pair().run(work)
    expected = before - torch.tensor([[0.5], [0.5], [0], [0]])
    assert torch.equal(one, other) and torch.allclose(one, expected)


def test_sparse_gradients_of_one_process_stay_sparse():
    net = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    before = net[0].weight.detach().clone()
    trainers = trainers_of(net, TrainerSpec(".*", "sparseadam", {"lr": 0.1}, every=2, accumulate=True))
    train(
        trainers,
        net,
        [(torch.tensor([1]), torch.zeros(1)), (torch.tensor([2, 2]), torch.zeros(2))],
        loss=lambda net, batch: net(batch[0]).sum(),
    )
    assert ((net[0].weight != before).any(1)).tolist() == [False, True, True, False]


# ---- float16


def scaled_trainers(net: nn.Module, spec: TrainerSpec) -> Any:
    trainers = trainers_of(net, spec)
    trainers._model = model_of(net, "float16")
    return trainers


def test_losses_in_float16_are_scaled_as_by_torch_s_grad_scaler():
    ours, theirs = small_net().float(), small_net().float()
    trainers = scaled_trainers(ours, TrainerSpec(".*", "sgd", {"lr": 0.1}))
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, fused=True)
    scales = []
    for step, batch in enumerate(batches_of(4, 4, 4, 4)):
        batch = tuple(each.float() * (1e36 if step == 2 else 1) for each in batch)
        train(trainers, ours, [batch], start=step)
        optimizer.zero_grad()
        scaler.scale(loss_of(theirs, batch)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(trainers.loss_scale.scale)
        assert scaler.get_scale() == scales[-1]
    assert scales == [2.0**16] * 2 + [2.0**15] * 2
    assert_equal(ours, theirs, 1e-7)
    assert values(ours).isfinite().all()


def test_gradients_that_wait_in_float16_survive_a_change_of_the_scale():
    ours, theirs = small_net(), small_net()
    spec = TrainerSpec(".*", "sgd", {"lr": 0.1}, every=2, accumulate=True)
    batches = batches_of(4, 2, 6, 3)
    trainers = scaled_trainers(ours, spec)
    assert trainers.build() == []
    train(trainers, ours, batches[:1], ends=False)
    trainers.loss_scale.scale = 2.0**10
    train(trainers, ours, batches[1:], start=1)
    train(trainers_of(theirs, spec), theirs, batches)
    assert_equal(ours, theirs)


def test_the_scale_doubles_after_2000_finite_batches():
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
