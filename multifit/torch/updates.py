"""A step of the trainers, after the backward pass: gradients are added up, summed over ranks and clipped."""

from collections.abc import Collection, Iterable, Sequence

import torch

from ..checks.trainers import AddedBatches, Rhythm
from ..distributed import World
from .handle import TrainerHandle
from .selection import Named


class Updates:
    """Updates the parameters of trainers by their gradients, which are in ``parameter.grad``.

    The gradients of all trainers are ready before the first one updates its parameters. A parameter that no
    sample has reached has no gradient, and stays as it is.
    """

    def __init__(self) -> None:
        self.handles: dict[str, TrainerHandle] = {}
        self.rhythms: dict[str, Rhythm] = {}  # of trainers that do not update after every batch
        self.clip_norms: dict[str, float] = {}
        self.waiting: frozenset[str] = frozenset()  # the trainers that do not update after the last batch
        self.loss_scale: LossScale | None = None  # in float16
        self._trained: dict[str, Named] = {}
        self._added = AddedBatches(())

    def make_room(self, samples: int) -> None:
        """Before the backward pass of a batch: scale the gradients that wait to its size, discard others."""
        waiting, factors = self._added.waiting(), self._added.factors(samples)
        for name, parameters in self._trained.items():
            if name in waiting:
                _multiply(_gradients(parameters), factors.get(name, 1.0) * self.scale)
            else:
                _discard(parameters)

    @property
    def scale(self) -> float:
        """By what gradients are multiplied while they are computed: more than 1 in float16."""
        return self.loss_scale.scale if self.loss_scale else 1.0

    def due(self, step: int, samples: int, ends: bool) -> list[str]:
        """Return the trainers that update after batch number `step` of the run, counted from 0.

        The batch has that many `samples` on all ranks; `ends` says whether it is the last one of an epoch
        that leaves the trainers' windows incomplete. The gradients of other trainers are discarded, unless
        they accumulate.
        """
        if self.loss_scale:
            self.loss_scale.unscale([each for named in self._trained.values() for each in _gradients(named)])
        self._added.count(samples)
        waiting = set()
        for name, rhythm in self.rhythms.items():
            if rhythm.accumulate:
                if not ends and self._added.batches(name) < rhythm.every:
                    waiting.add(name)
            elif rhythm.waits(step):
                waiting.add(name)
                _discard(self._trained[name])
        self.waiting = frozenset(waiting)
        return [name for name in self.handles if name not in self.waiting]

    @property
    def left(self) -> bool:
        """Whether gradients that were added up wait for further batches."""
        return bool(self._added.waiting())

    def left_due(self) -> list[str]:
        """Return the trainers whose gradients wait for batches that an epoch does not have any more."""
        left = self._added.waiting()
        self.waiting = frozenset(self.handles) - frozenset(left)
        return left

    def agree(self, world: World, held_back: bool, due: Iterable[str]) -> bool:
        """Return whether the update does not happen; all ranks call it after each :meth:`due`.

        It does not if a handler of any rank holds it back, or if gradients in float16 have overflowed on any
        rank. Otherwise, parameters that only other ranks' samples have reached get gradients of 0.
        """
        overflowed = self.loss_scale is not None and bool(self.loss_scale.overflowed)
        if not world.alone:
            parameters = [each for name in due for each in self._trained[name].values()]
            flags = [*(each.grad is not None for each in parameters), held_back, overflowed]
            *reached, held_back, overflowed = (world.sum(flags) > 0).tolist()
            for parameter, of_any in zip(parameters, reached):
                if of_any and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        if self.loss_scale:
            self.loss_scale.update(overflowed)
        return held_back or overflowed

    def reduce(self, world: World, due: Iterable[str]) -> None:
        """Replace the gradients of the trainers that are due by the sums over the ranks.

        Those that were accumulated are divided by the samples of all their batches.
        """
        for name in due:
            _multiply(_gradients(self._trained[name]), self._added.share(name))
        if not world.alone:
            parameters = [each for name in due for each in self._trained[name].values()]
            reached = [each for each in parameters if each.grad is not None]
            for each in reached:
                each.grad = each.grad.to_dense()
            world.all_reduce_tensors([each.grad for each in reached])

    def clip(self, due: Collection[str]) -> None:
        """Scale the gradients of trainers that clip down to their largest norms, without a wait.

        It equals ``torch.nn.utils.clip_grad_norm_``, in half the time for small nets.
        """
        for name, norm in self.clip_norms.items():
            if gradients := _gradients(self._trained[name]) if name in due else []:
                total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
                torch._foreach_mul_(gradients, torch.clamp(norm / (total + 1e-6), max=1.0))

    def update(self, due: Sequence[str]) -> None:
        """Update the parameters of the trainers that are due, and discard their gradients.

        Trainers that no sample has reached do not count the update.
        """
        for name in due:
            handle, named = self.handles[name], self._trained[name]
            reached = [each for each in named.values() if each.grad is not None]
            if handle.optimizer.defaults.get("fused"):  # whose operators take the memory in its order
                for each in reached:
                    if each.grad.stride() != each.stride():
                        each.grad = torch.empty_like(each).copy_(each.grad)
            if reached:
                handle.update()
            _discard(named)
        self._added.forget(due, others=False)

    def discard_held(self, due: Collection[str]) -> None:
        """Discard all gradients, as the update was held back; the trainers that are due begin anew."""
        for parameters in self._trained.values():
            _discard(parameters)
        self._added.forget(due)


class LossScale:
    """Scales losses up, so that gradients in float16 do not vanish, by the rule of ``torch.amp.GradScaler``.

    If a gradient is not finite, there is no update, and the scale is halved. After 2,000 batches in which all
    were finite, it doubles. It waits for the device in each step, as GradScaler does.
    """

    def __init__(self, scale: float = 2.0**16) -> None:
        self.scale, self.finite = scale, 0  # and the number of batches since it changed
        self.overflowed: bool | None = None  # in the batch since the last update(), if there was one

    def unscale(self, gradients: Sequence[torch.Tensor]) -> None:
        """Scale gradients back."""
        _multiply(gradients, 1 / self.scale)
        norms = torch._foreach_norm(gradients, float("inf")) if gradients else []
        self.overflowed = bool(norms) and not bool(torch.stack(norms).isfinite().all())

    def update(self, overflowed: bool) -> None:
        """Set the scale for the next batch, unless there was no batch since the last call."""
        if self.overflowed is not None:
            self.finite = 0 if overflowed else (self.finite + 1) % 2000
            self.scale *= 0.5 if overflowed else 1.0 if self.finite else 2.0
            self.overflowed = None


def _gradients(parameters: Named) -> list[torch.Tensor]:
    return [each.grad for each in parameters.values() if each.grad is not None]


def _discard(parameters: Named) -> None:
    for each in parameters.values():
        each.grad = None


def _multiply(gradients: Sequence[torch.Tensor], factor: float) -> None:
    if gradients and factor != 1:
        torch._foreach_mul_(gradients, factor)
