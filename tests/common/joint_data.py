"""The data of the training by one process and by several."""

from typing import Any

import numpy as np

from multifit import Sharded
from multifit.distributed import World

from mxnet import gluon, nd  # isort: skip

SAMPLES, FEATURES = 75, 12


def arrays(samples: int = SAMPLES) -> list[np.ndarray]:
    """Return x, digit, parity and weight."""
    random = np.random.RandomState(0)
    x = random.randn(samples, FEATURES).astype("float32")
    digit = x[:, :10].argmax(axis=1).astype("float32")
    return [x, digit, digit % 2, random.randint(0, 4, samples).astype("float32")]


def loader(size: int, samples: int = SAMPLES, **options: Any) -> Any:
    """Return a DataLoader over x, digit, parity and weight."""
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays(samples)), size, **options)


def batches(size: int) -> list[list[Any]]:
    """Return the same as a list of batches."""
    columns = arrays()
    return [[nd.array(column[i : i + size]) for column in columns] for i in range(0, SAMPLES, size)]


def ragged(world: World) -> list[list[Any]]:
    """Return batches of which some leave ranks without a sample: among those that are added up, too."""
    ends = np.cumsum([4, 16, 1, 1, 16, 16, 1, 16, 4])
    return [[nd.array(column[i:j]) for column in arrays()] for i, j in zip([0, *ends], ends)]


def uneven_parts(world: World, size: int = 16) -> Any:
    """Return a loader of which each rank has a part of its own: the first one three quarters."""
    parts = []
    for batch in batches(size):
        count = len(batch[0])
        edges = [0, *np.linspace(count * 3 // 4, count, world.size).astype(int)[:-1], count]
        parts.append([column[edges[world.rank] : edges[world.rank + 1]] for column in batch])
    return Sharded(parts)


class Shuffled(gluon.data.Sampler):
    """An order of its own random numbers, which only the first rank may draw."""

    def __init__(self, world: World) -> None:
        self.random = np.random.RandomState(world.rank)

    def __iter__(self) -> Any:
        return iter(self.random.permutation(SAMPLES).tolist())

    def __len__(self) -> int:
        return SAMPLES
