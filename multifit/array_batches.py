"""Batches of arrays in memory or on disk: ``multifit.batches(x, y, batch_size=32, shuffle=True)``."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from .spec.checks import describe
from .utils.arguments import Count, checked, one_of
from .utils.errors import Problem, raise_problems
from .utils.protocols import Numbers
from .utils.text import last_line, quoted, suggest

OPTIONS = ("batch_size", "shuffle", "last_batch")
ENCODE = 'frame["x"].astype("category").cat.codes or pandas.get_dummies(frame)'


class ArrayBatches:
    """The loader that :func:`batches` returns: it can be read again and again, and has a length.

    Each pass draws its order from NumPy's global generator, as Gluon's DataLoader does. `samples` is the
    number of samples.
    """

    def __init__(
        self, columns: Mapping[str, Any], is_named: bool, batch_size: int, shuffle: bool, keep: bool
    ) -> None:
        self.samples: int = next(iter(columns.values())).shape[0]
        self.batch_size = batch_size
        self._columns, self._is_named, self._shuffle, self._keep = dict(columns), is_named, shuffle, keep

    def __len__(self) -> int:
        whole, rest = divmod(self.samples, self.batch_size)
        return whole + (rest > 0 and self._keep)

    def __iter__(self) -> Iterator[Any]:
        yield from self.in_order(self.order())

    def __repr__(self) -> str:
        slots = ", ".join(f"{name} {describe.array(column)}" for name, column in self._columns.items())
        return f"batches({slots}, batch_size={self.batch_size}, shuffle={self._shuffle})"

    def order(self) -> list[Numbers]:
        """Draw the order of a pass: the rows of each batch."""
        rows = np.random.permutation(self.samples) if self._shuffle else np.arange(self.samples)
        size = self.batch_size
        return [rows[start : start + size] for start in range(0, len(self) * size, size)]

    def in_order(self, order: Sequence[Any]) -> Iterator[Any]:
        """Yield the batches of these rows; they share no memory with the arrays."""
        for rows in order:
            batch = {name: column[rows] for name, column in self._columns.items()}
            yield batch if self._is_named else tuple(batch.values())


@checked
def batches(
    *arrays: Any,
    batch_size: Count = 32,
    shuffle: bool = False,
    last_batch: Annotated[str, one_of("keep", "discard")] = "keep",
    **named: Any,
) -> ArrayBatches:
    """Return a loader of the batches of arrays, for `fit`, `evaluate`, `predict` and `check`.

    The arrays are given in the order of a batch, ``batches(x, y)``, or by the names of its slots, as
    ``batches(image=x, digit=y)`` or ``batches({"image": x, "digit": y})``. A batch is a tuple of NumPy
    arrays, or a dict of them by slot. It copies its rows only, so that a memory map is never read as a whole.
    Arrays keep their dtypes; training casts float64 to what the net computes with.

    Parameters
    ----------
    *arrays, **named : array_like
        One row for each sample, along axis 0; rows belong together by position. NumPy arrays and memory maps,
        pandas frames (N, columns) and series (N,), lists, torch tensors on the CPU and MXNet's arrays, which
        are copied once. The rows of SciPy's sparse matrices stay sparse.
    batch_size : int
        The number of samples in a batch.
    shuffle : bool
        Whether each pass is in a new order, drawn from NumPy's global generator.
    last_batch : {"keep", "discard"}
        What becomes of a last batch with fewer samples.

    Returns
    -------
    ArrayBatches
        An iterable with a length, which begins again with each pass.

    Raises
    ------
    DataError
        An array is empty, holds anything but numbers or has no rows, or the arrays have different numbers of
        them. Columns of a frame that hold no numbers are named.
    ValueError
        An option is not valid.
    """
    if len(arrays) == 1 and isinstance(arrays[0], Mapping) and not named:
        named, arrays = dict(arrays[0]), ()
    if (named and arrays) or any(isinstance(each, Mapping) for each in arrays):
        near = "".join(f', and no option "{name}"{suggest(name, OPTIONS)}' for name in named)
        ways = "give all arrays in order, batches(x, y), or all by name, batches(image=x, digit=y)"
        raise_problems([Problem("data", f"batches: {ways}{near}")])
    given = named or {f"array {number}": array for number, array in enumerate(arrays, 1)}
    columns: dict[str, Any] = {}
    messages = [] if given else ["there is no array; give batches(x, y)"]
    for name, value in given.items():
        columns[name], wrong = _column(value)
        messages += [f"{quoted([name]) if named else name} {wrong}{suggest(name, OPTIONS)}"] if wrong else []
    sizes = {column.shape[0] for column in columns.values()} if not messages else {batch_size}
    if len(sizes) > 1:
        found = ", ".join(f"{name} {describe.array(column)}" for name, column in columns.items())
        messages.append(f"the arrays have different numbers of samples: {found}; give each one row a sample")
    elif sizes == {0}:
        messages.append("the arrays are empty: they have no sample")
    elif last_batch == "discard" and min(sizes) < batch_size:
        found = f"{min(sizes)} samples are fewer than batch_size={batch_size}"
        messages.append(f'{found}, and last_batch="discard" leaves no batch; give last_batch="keep"')
    raise_problems(Problem("data", f"batches: {message}") for message in messages)
    return ArrayBatches(columns, bool(named), batch_size, shuffle, last_batch == "keep")


def _column(value: Any) -> tuple[Any, str]:
    """Return an array-like as an array whose rows are samples, and what is wrong with it."""
    if hasattr(value, "iloc"):
        return _of_pandas(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # older versions of NumPy warn about ragged lists
            array: Any = value.asnumpy() if hasattr(value, "asnumpy") else value
            if hasattr(value, "tocsr"):
                array = value.tocsr()  # whose rows can be taken
            elif not isinstance(array, np.ndarray):
                array = np.asarray(array)
    except Exception as error:  # such as that of a tensor on a GPU
        return value, f"cannot be read as an array: {last_line(error)}"
    if array.dtype.kind not in "fiub":
        kind = f"a {type(value).__name__}" if array.ndim == 0 else describe.array(array)
        way_out = "encode strings, pad rows of different lengths, and give each input and label by itself"
        return array, f"is {kind}, not numbers; {way_out}"
    return array, "" if array.ndim else f"is the number {array}; give an array with a row for each sample"


def _of_pandas(value: Any) -> tuple[Any, str]:
    """Return a pandas frame or series as an array, and which columns hold no numbers."""
    columns = list(value.items()) if value.ndim == 2 else [(value.name, value)]
    strange = {str(name): column.dtype for name, column in columns if column.dtype.kind not in "fiub"}
    if strange or not columns:
        found = ", ".join(f'"{name}" ({dtype})' for name, dtype in strange.items()) or "none at all"
        return value, f"has columns without numbers: {found}; encode them, as with {ENCODE}, or drop them"
    arrays = [_of_series(column) for _, column in columns]
    return (np.column_stack(arrays) if value.ndim == 2 else arrays[0]), ""


def _of_series(series: Any) -> Numbers:
    """Return a column of numbers; pandas' own dtypes have NA, which becomes NaN."""
    if isinstance(series.dtype, np.dtype):
        return np.asarray(series)
    if series.isna().any():
        return np.asarray(series.to_numpy("float64", na_value=np.nan))
    return np.asarray(series.to_numpy(getattr(series.dtype, "numpy_dtype", "float64")))
