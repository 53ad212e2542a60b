"""Arrays, batches and loaders of a case, by kind, made of right ones."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import multifit  # noqa: F401  (before mxnet: Python 3.12 needs that)

import mxnet as mx  # isort: skip
from mxnet import gluon, nd

from .values import UserMistake, loop

SLOTS = ("x", "y", "z")

ARRAYS: dict[str, Callable[[Any], Any]] = {
    "None": lambda a: None, "texts": lambda a: np.array(["a"] * 8),
    "objects": lambda a: np.array([object()] * 8), "number": lambda a: 3, "3 rows": lambda a: a[:3],
    "no rows": lambda a: a[:0], "16 rows": lambda a: np.concatenate([a, a]), "scalar": lambda a: a.sum(),
    "0-d": lambda a: np.array(1.0), "wider": lambda a: np.stack([a, a], -1), "flat": np.ravel,
    "column": lambda a: a.reshape(8, -1)[:, :1], "turned": np.transpose,
    "two columns": lambda a: np.repeat(a.reshape(8, -1)[:, :1], 2, 1),
    "nan": lambda a: np.full_like(a, np.nan),
    "one nan": lambda a: np.where(np.arange(a.size).reshape(a.shape), a, np.nan),
    "inf": lambda a: np.full_like(a, np.inf), "huge": lambda a: np.full_like(a, 1e38),
    "negative": lambda a: a - 5, "beyond": lambda a: a + 100, "fractions": lambda a: a + 0.5,
    "float64": lambda a: a.astype("float64"), "int64": lambda a: a.astype("int64"), "bool": lambda a: a > 0,
    "uint8": lambda a: np.abs(a).astype("uint8"), "float16": lambda a: a.astype("float16"),
    "complex": lambda a: a.astype("complex64"), "uint64": lambda a: np.abs(a).astype("uint64"),
    "ndarray": nd.array, "csr": lambda a: nd.array(a.reshape(8, -1)).tostype("csr"),
    "lists": lambda a: a.tolist(), "!loop": lambda a: loop(), "dict": lambda a: {"a": a},
    "list": lambda a: [a], "strided": lambda a: np.concatenate([a, a])[::2],
}  # fmt: skip

BATCHES: dict[str, Callable[[list[Any]], Any]] = {
    "list": list, "tuple": tuple, "dict": lambda b: dict(zip(SLOTS, b)), "short": lambda b: b[:2],
    "long": lambda b: [*b, b[0]], "empty": lambda b: [], "None": lambda b: None, "number": lambda b: 3,
    "array": lambda b: b[0], "nested": lambda b: [b[0], [b[1], b[2]]], "!loop": lambda b: loop(),
    "dict without y": lambda b: {"x": b[0], "z": b[2]},
    "dict with more": lambda b: dict(zip((*SLOTS, "w"), [*b, b[0]])),
    "dict of int": lambda b: dict(enumerate(b)), "DataBatch": lambda b: data_batch(b),
    "pad 3": lambda b: data_batch(b, 3), "pad 99": lambda b: data_batch(b, 99),
    "DataBatches": lambda b: [data_batch(b), data_batch(b)],
}  # fmt: skip

LOADERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list, "tuple": tuple, "generator": iter, "empty": lambda b: [], "None": lambda b: None,
    "dict": lambda b: {"train": b}, "number": lambda b: 3, "text": lambda b: "abc",
    "raises": lambda b: Raising([]), "raises later": lambda b: Raising(b[:1]), "function": lambda b: iter,
    "class": lambda b: Raising,
    "DataLoader": lambda b: gluon.data.DataLoader(gluon.data.ArrayDataset(*b[0]), 4) if usable(b) else b,
    "dict DataLoader": lambda b: gluon.data.DataLoader([{"x": 1.0}, {"x": 2.0}], 2),
    "dataset": lambda b: gluon.data.SimpleDataset(b),
    "iterator": lambda b: mx.io.NDArrayIter(np.ones((8, 4)), np.ones(8), 4),
    "batch": lambda b: b[0] if b else b, "array": lambda b: np.ones((8, 4), "float32"),
}  # fmt: skip


def data_batch(arrays: list[Any], pad: Any = 0) -> Any:
    return mx.io.DataBatch([arrays[0]], list(arrays[1:]), pad=pad)


def usable(batches: list[Any]) -> bool:
    """Whether Gluon can make a data set of the first batch."""
    return (
        bool(batches)
        and isinstance(batches[0], list)
        and all(isinstance(a, np.ndarray) and a.ndim for a in batches[0])
        and len({len(a) for a in batches[0]}) == 1
    )


class Raising:
    """Yields batches, then raises."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches
        raise UserMistake("the loader's own")


def arrays() -> list[np.ndarray]:
    """x (8, 4), y (8,) in 0 … 2, z (8, 1)."""
    x = np.arange(32, dtype="float32").reshape(8, 4) % 7 / 7
    return [x, np.arange(8, dtype="float32") % 3, x[:, :1].copy()]
