"""Keeps the ranks' parameters equal: the first rank's at the start, and the means of running statistics."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from ..checks import describe
from ..distributed import World
from ..errors import DataError, Problem, SpecError, counted, limited, raise_problems
from .batch import Batch
from .model import Model

SHOWN = 6  # differences in a message


class SharedParameters:
    """Gives all ranks the first rank's parameters, and averages running statistics; nothing with one rank.

    `frozen` returns the names of the running statistics that stay as they are.
    """

    def __init__(self, world: World, model: Model, frozen: Callable[[], Collection[str]]) -> None:
        self._world, self._model, self._frozen = world, model, frozen
        self.are_shared = world.alone

    def begin_stage(self, batch: Batch, problems: Sequence[Problem] = ()) -> None:
        """Prepare for a stage's first batch: the first time, all ranks get the first rank's parameters.

        `problems` found before are raised now: otherwise, another rank without problems would wait for this
        one. Raises DataError if a rank has no sample of the batch, and SpecError if the ranks' nets differ.
        """
        world = self._world
        if world.alone:
            return
        raise_problems(problems)
        samples = world.gather(batch.samples)
        if not all(samples):
            raise DataError(
                f"the first batch has {counted(sum(samples), 'sample')} for {world.size} processes, "
                "each of which needs one; give larger batches, or start fewer processes"
            )
        if not self.are_shared:
            self._compare()
            self.share()

    @torch.no_grad()
    def average_statistics(self) -> None:
        """Give all ranks the mean of running statistics, such as BatchNorm's."""
        if self._world.alone:
            return
        frozen = self._frozen()
        averaged = [each for name, each in self._model.statistics.items() if name not in frozen]
        averaged = [each for each in averaged if each.is_floating_point()]
        self._world.all_reduce_tensors(averaged)
        for each in averaged:
            each /= self._world.size

    @torch.no_grad()
    def share(self) -> None:
        """Give all ranks the first rank's parameters and buffers."""
        if not self._world.alone:
            tensors = [*self._model.parameters.values(), *self._model.statistics.values()]
            for each, value in zip(tensors, self._world.from_first([_host(each) for each in tensors])):
                each.copy_(value)
        self.are_shared = True

    def _compare(self) -> None:
        """Raise SpecError if the names, shapes or dtypes of parameters differ between ranks."""
        tensors = {**self._model.parameters, **self._model.statistics}
        every = self._world.gather({name: describe.array(each) for name, each in tensors.items()})
        lines = [
            f"{name}: {every[0].get(name, 'none')} on rank 0, {other.get(name, 'none')} on rank {rank}"
            for rank, other in enumerate(every)
            for name in {**every[0], **other}
            if other.get(name) != every[0].get(name)
        ]
        if lines:
            found = "; ".join(limited(lines, SHOWN))
            raise SpecError(f"the net's parameters are not the same on all ranks: {found}")


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()
