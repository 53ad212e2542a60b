"""Keeps the ranks' parameters equal: the first rank's at the start, and the means of running statistics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..distributed import World
from ..spec.checks import describe
from ..utils.errors import DataError, Problem, SpecError, raise_problems
from ..utils.text import counted, limited

SHOWN = 6  # differences in a message


class SharedParameters(ABC):
    """Gives all ranks the first rank's parameters, and averages running statistics; nothing with one rank.

    `frozen` returns the names of the running statistics that stay as they are.
    """

    def __init__(self, world: World, frozen: Callable[[], Collection[str]] = tuple) -> None:
        self._world, self._frozen = world, frozen
        self.are_shared = world.alone

    @abstractmethod
    def average_statistics(self) -> None:
        """Give all ranks the mean of running statistics, such as BatchNorm's."""

    @abstractmethod
    def share(self) -> None:
        """Give all ranks the first rank's parameters."""

    @abstractmethod
    def arrays(self) -> Mapping[str, Any]:
        """Return one array of each parameter and running statistic that has values, by name."""

    def begin_stage(
        self, batch: Any, problems: Sequence[Problem] = (), run: Callable[[Any], object] = lambda batch: None
    ) -> None:
        """Prepare for a stage's first batch: the first time, all ranks get the first rank's parameters.

        `problems` found before are raised now: otherwise, another rank without problems would wait for this
        one. ``run(batch)`` gives parameters their shapes, if these are not known yet. Raises DataError if a
        rank has no sample of the batch, and SpecError if the ranks' nets differ.
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
            run(batch)
            self._compare()
            self.share()

    def _compare(self) -> None:
        """Raise SpecError if the names, shapes or dtypes of parameters differ between ranks."""
        every = self._world.gather({name: describe.array(each) for name, each in self.arrays().items()})
        lines = [
            f"{name}: {every[0].get(name, 'none')} on rank 0, {other.get(name, 'none')} on rank {rank}"
            for rank, other in enumerate(every)
            for name in {**every[0], **other}
            if other.get(name) != every[0].get(name)
        ]
        if lines:
            shown = "; ".join(limited(lines, SHOWN))
            raise SpecError(f"the net's parameters are not the same on all ranks: {shown}")
