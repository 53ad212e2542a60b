"""Small data sets, in batches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from multifit.gluon.compat import mx


def two_head_arrays(count: int = 20) -> dict[str, np.ndarray]:
    """Return samples for the heads "digit" and "size", which can be learned from the image (count, 6)."""
    image = np.random.RandomState(0).randn(count, 6).astype("float32")
    digit = image[:, :3].argmax(axis=1).astype("float32")
    return {"image": image, "digit": digit, "size": image[:, 3:4] * 2}


def in_batches(arrays: Iterable[np.ndarray], size: int = 8) -> list[tuple[np.ndarray, ...]]:
    """Cut arrays into batches of `size` samples; the last may be smaller."""
    arrays = list(arrays)
    return [tuple(array[i : i + size] for array in arrays) for i in range(0, len(arrays[0]), size)]


def digit_batches(sizes: Iterable[int], width: int = 10, seed: int = 3) -> list[tuple[np.ndarray, ...]]:
    """Return random batches (x, digit of 5, parity) of the given sizes."""
    random = np.random.RandomState(seed)
    batches = []
    for size in sizes:
        digit = random.randint(0, 5, size).astype("float32")
        batches.append((random.randn(size, width).astype("float32"), digit, digit % 2))
    return batches


def regression_batches(
    sizes: Iterable[int], inputs: int = 6, outputs: Sequence[int] = (4,), seed: int = 5
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return random batches (x, y) of the given sizes."""
    random = np.random.RandomState(seed)
    return [
        (random.randn(size, inputs).astype("float32"), random.randn(size, *outputs).astype("float32"))
        for size in sizes
    ]


class Repeating(mx.gluon.data.DataLoader):
    """A DataLoader that yields each batch twice."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch
            yield batch


class Limited(mx.gluon.data.DataLoader):
    """A DataLoader that yields at most three batches."""

    def __iter__(self) -> Iterator[Any]:
        yield from (batch for batch, _ in zip(super().__iter__(), range(3)))


class Scaling(mx.gluon.data.DataLoader):
    """A DataLoader that draws a scale for every second batch, as gluoncv's RandomTransformDataLoader does."""

    def __iter__(self) -> Iterator[Any]:
        scale = np.random.rand()
        for number, batch in enumerate(super().__iter__()):
            scale = scale if number % 2 else np.random.rand()
            yield [batch[0] * scale, *batch[1:]]


class Reusing(list):  # type: ignore[type-arg]
    """Batches in the same arrays again and again, with other values, as MXNet's iterators yield them."""

    def __iter__(self) -> Iterator[Any]:
        arrays = [mx.nd.array(array, dtype=array.dtype) for array in self[0]]
        for batch in super().__iter__():
            for array, values in zip(arrays, batch):
                array[:] = values
            yield mx.io.DataBatch(arrays[:1], arrays[1:])
