"""Keep the ranks' parameters equal: copy the first rank's at the start, and average running statistics."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ...checks import describe
from ...distributed import World
from ...errors import DataError, Problem, SpecError, counted, limited, raise_problems
from ..compat import mx
from ..data.batch import Batch
from ..optim.parameters import statistics
from .collectives import all_reduce, broadcast

Parameters = Mapping[str, mx.gluon.Parameter]
SHOWN = 6  # differences in a message


class SharedParameters:
    """Gives all ranks the first rank's parameters, and averages running statistics; nothing with one rank.

    `frozen` returns the names of the running statistics that stay as they are.
    """

    def __init__(
        self, world: World, parameters: Parameters, frozen: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._world, self._parameters, self._frozen = world, parameters, frozen
        self.are_shared = world.alone

    def begin_stage(
        self, batch: Batch, run: Callable[[Batch], object], problems: Sequence[Problem] = ()
    ) -> None:
        """Prepare for a stage's first batch: the first time, all ranks get the first rank's parameters.

        `problems` found before are raised now: otherwise, another rank without problems would wait for this
        one. ``run(batch)`` calls the net once, in evaluation mode, if shapes of parameters are not known yet.
        Raises DataError if a rank has no sample of the batch, and SpecError if the ranks' nets differ.
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
        if self.are_shared:
            return
        if any(parameter._deferred_init for parameter in self._parameters.values()):
            with mx.autograd.pause(train_mode=False):  # else running statistics would count the batch twice
                run(batch)
        self._compare()
        self.share()

    def average_statistics(self) -> None:
        """Give all ranks the mean of values without gradients, such as BatchNorm's running statistics."""
        if self._world.alone:
            return
        of_net, frozen = statistics(self._parameters), self._frozen()
        averaged = [parameter for name, parameter in of_net.items() if name not in frozen]
        if not averaged:
            return
        first = [parameter.list_data()[0] for parameter in averaged]
        all_reduce(self._world, first)
        for array in first:
            array *= 1.0 / self._world.size
        _copy_to_devices(averaged)

    def share(self) -> None:
        """Give all ranks the first rank's parameters."""
        present = [parameter for parameter in self._parameters.values() if parameter._data is not None]
        broadcast(self._world, [parameter.list_data()[0] for parameter in present])
        _copy_to_devices(present)
        self.are_shared = True

    def _compare(self) -> None:
        """Raise SpecError if the names, shapes or dtypes of parameters differ between ranks."""
        present = {name: p for name, p in self._parameters.items() if p._data is not None}
        forms = {name: describe.array(parameter.list_data()[0]) for name, parameter in present.items()}
        every = self._world.gather(forms)
        lines = [
            f"{name}: {every[0].get(name, 'none')} on rank 0, {other.get(name, 'none')} on rank {rank}"
            for rank, other in enumerate(every)
            for name in {**every[0], **other}
            if other.get(name) != every[0].get(name)
        ]
        if lines:
            found = "; ".join(limited(lines, SHOWN))
            raise SpecError(f"the net's parameters are not the same on all ranks: {found}")


def _copy_to_devices(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        first, *others = parameter.list_data()
        for array in others:
            first.copyto(array)
