"""Keeps the ranks' parameters equal: the first rank's at the start, and the means of running statistics."""

from collections.abc import Callable, Collection, Mapping

from torch import Tensor
from torch.nn.parameter import is_lazy

from ..distributed import World
from ..engines import shared_parameters
from .model import Model


class SharedParameters(shared_parameters.SharedParameters):
    """Shares parameters and buffers, and averages running statistics."""

    def __init__(self, world: World, model: Model, frozen: Callable[[], Collection[str]]) -> None:
        super().__init__(world, frozen)
        self._model = model

    def arrays(self) -> Mapping[str, Tensor]:
        """Return parameters and buffers by name."""
        return self._model.tensors

    def average_statistics(self) -> None:
        """Give all ranks the mean of running statistics, such as BatchNorm's."""
        frozen = () if self._world.alone else self._frozen()
        named = {} if self._world.alone else self._model.statistics
        averaged = [each for n, each in named.items() if n not in frozen and not is_lazy(each)]
        averaged = [each for each in averaged if each.is_floating_point()]
        self._world.all_reduce_tensors(averaged)
        for each in averaged:
            each /= self._world.size

    def share(self) -> None:
        """Give all ranks the first rank's parameters and buffers."""
        tensors = [] if self._world.alone else [each.detach() for each in self.arrays().values()]
        for each, value in zip(tensors, self._world.from_first([each.cpu() for each in tensors])):
            each.copy_(value)
        self.are_shared = True
