"""Every pass over a DataIter yields each sample once, whatever its last batch is filled with."""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.gluon.compat import mx
from multifit.gluon.data.loaders import iterate
from multifit.gluon.data.splitter import arrays_in


def csv(path: Path, rows: int, size: int, **options: Any) -> Any:
    file = path / "x.csv"
    np.savetxt(file, np.column_stack([np.arange(rows)] * 2), delimiter=",")
    return mx.io.CSVIter(data_csv=str(file), data_shape=(2,), batch_size=size, **options)


def libsvm(path: Path, rows: int, size: int) -> Any:
    file = path / "x.libsvm"
    file.write_text("".join(f"0 1:{i + 1}\n" for i in range(rows)), "utf-8")  # zeros would be left out
    return mx.io.LibSVMIter(data_libsvm=str(file), data_shape=(2,), batch_size=size)


def images(path: Path, rows: int, size: int, **options: Any) -> Any:
    file = str(path / "x.rec")
    record = mx.recordio.MXRecordIO(file, "w")
    for i in range(rows):
        image = np.full((4, 4, 3), 2 * i, "uint8")
        record.write(mx.recordio.pack_img(mx.recordio.IRHeader(0, i, i, 0), image, img_fmt=".png"))
    record.close()
    options = {"preprocess_threads": 1, "verbose": False, **options}
    return mx.io.ImageRecordIter(path_imgrec=file, data_shape=(3, 4, 4), batch_size=size, **options)


def arrays(rows: int, size: int, kind: Any = mx.io.NDArrayIter, **options: Any) -> Any:
    return kind(np.column_stack([np.arange(rows)] * 2), batch_size=size, **options)


ITERATORS: dict[str, Callable[[Path, int, int], Any]] = {
    "CSV": csv,
    "CSV, padded": lambda *a: csv(*a, round_batch=False),
    "LibSVM": libsvm,
    "images": images,
    "images, shuffled": lambda *a: images(*a, shuffle=True, seed=1),
    "arrays": lambda path, *a: arrays(*a),
    "arrays, shuffled": lambda path, *a: arrays(*a, shuffle=True),
    "prefetched CSV": lambda *a: mx.io.PrefetchingIter(csv(*a)),
    "prefetched arrays": lambda path, *a: mx.io.PrefetchingIter(arrays(*a)),
}


def samples(batches: Any) -> list[int]:
    """Return the number of each sample, from the largest value in its row."""
    values = [np.asarray(arrays_in(batch, 0)[0].asnumpy()) for batch in batches]
    return [round(row.max()) for value in values for row in value]


CASES = [(name, 110, 4) for name in ITERATORS]
CASES += [(name, 10, 4) for name in ITERATORS if "arrays" in name or "padded" in name]
CASES += [(name, 12, 4) for name in ("CSV", "LibSVM", "images")]


@pytest.mark.parametrize(("name", "rows", "size"), CASES)
def test_every_epoch_holds_each_sample_once(tmp_path: Path, name: str, rows: int, size: int) -> None:
    """Except of MXNet's iterators over files of few batches that are read to their end ahead."""
    data = ITERATORS[name](tmp_path, rows, size)
    epochs = [sorted(samples(iterate(data))) for _ in range(4)]
    assert epochs == [epochs[0]] * 4 and len(set(epochs[0])) == rows


@pytest.mark.parametrize("taken", [1, 2, 9])
def test_an_epoch_after_part_of_one(tmp_path: Path, taken: int) -> None:
    data = csv(tmp_path, 110, 4)
    for _ in range(3):
        list(islice(iterate(data), taken))
        assert sorted(samples(iterate(data))) == list(range(110))


@pytest.mark.parametrize("rows", [5, 10])
def test_rows_that_roll_over_are_no_padding(rows: int) -> None:
    data = arrays(rows, 4, last_batch_handle="roll_over")
    counts = Counter(number for _ in range(4) for number in samples(iterate(data)))
    assert counts == dict.fromkeys(range(rows), 4)
