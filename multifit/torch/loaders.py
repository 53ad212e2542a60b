"""Read PyTorch's DataLoader."""

import copy
from collections import deque
from typing import Any

from torch.utils.data import DataLoader

from ..engines.loaders import Loaders


class TorchLoaders(Loaders):
    """Reads PyTorch's DataLoaders."""

    def own(self, data: Any) -> bool:
        return isinstance(data, DataLoader)

    def is_stateless(self, data: Any) -> bool:
        drawing = data, data.sampler, data.batch_sampler, getattr(data.batch_sampler, "sampler", None)
        own = any(getattr(each, "generator", None) is not None for each in drawing)
        return not own and not data.persistent_workers

    def draw(self, data: Any) -> None:
        if not data.persistent_workers:
            data = copy.copy(data)
            data.num_workers = data.timeout = 0  # starts no processes
        order = getattr(iter(data), "_sampler_iter", ())  # iter() draws the seed of the workers
        if hasattr(data.sampler, "__len__"):  # that of an IterableDataset never ends
            deque(order, maxlen=0)

    def repeats_workers(self, data: Any) -> bool:
        return not data.persistent_workers  # which are seeded only once


LOADERS = TorchLoaders()
