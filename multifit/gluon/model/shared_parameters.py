"""Keep the ranks' parameters equal: copy the first rank's at the start, and average running statistics."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ...distributed import World
from ...engines import shared_parameters
from ...protocols import Array
from ..compat import mx
from ..optim.parameters import statistics
from ..ranks.collectives import all_reduce, broadcast

Parameters = Mapping[str, mx.gluon.Parameter]


class SharedParameters(shared_parameters.SharedParameters):
    """Shares parameters, and averages running statistics."""

    def __init__(
        self, world: World, parameters: Parameters, frozen: Callable[[], Collection[str]] = tuple
    ) -> None:
        super().__init__(world, frozen)
        self._parameters = parameters

    def arrays(self) -> Mapping[str, Array]:
        """Return the array on the first device of each parameter that has values, by name."""
        present = {name: p for name, p in self._parameters.items() if p._data is not None}
        return {name: parameter.list_data()[0] for name, parameter in present.items()}

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


def _copy_to_devices(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        first, *others = parameter.list_data()
        for array in others:
            first.copyto(array)
