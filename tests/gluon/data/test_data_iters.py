"""Every pass over a DataIter yields each sample once, whatever its last batch is filled with."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from multifit.gluon.compat import mx
from multifit.gluon.data.loaders import iterate, replay_epochs
from multifit.gluon.data.raw_batches import arrays_in


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
    return mx.io.ImageRecordIter(
        path_imgrec=file,
        data_shape=(3, 4, 4),
        batch_size=size,
        preprocess_threads=1,
        verbose=False,
        **options,
    )


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


CASES = [(name, 10, 4) for name in ITERATORS]
CASES += [(name, *size) for name in ("CSV", "images") for size in ((12, 4), (5, 4), (110, 4))]
CASES += [(name, 110, 4) for name in ("CSV, padded", "LibSVM", "prefetched CSV")]


@pytest.mark.parametrize(("name", "rows", "size"), CASES)
def test_every_epoch_holds_each_sample_once(tmp_path: Path, name: str, rows: int, size: int) -> None:
    data = ITERATORS[name](tmp_path, rows, size)
    epochs = [sorted(samples(iterate(data))) for _ in range(4)]
    assert epochs == [epochs[0]] * 4 and len(set(epochs[0])) == rows


@pytest.mark.parametrize("taken", [1, 2, 3, 9])
@pytest.mark.parametrize(("rows", "size"), [(10, 4), (110, 4)])
def test_an_epoch_after_part_of_one(tmp_path: Path, rows: int, size: int, taken: int) -> None:
    data = csv(tmp_path, rows, size)
    for _ in range(3):
        list(islice(iterate(data), taken))
        assert sorted(samples(iterate(data))) == list(range(rows))


def test_a_user_has_read_it_to_its_end(tmp_path: Path) -> None:
    data = csv(tmp_path, 10, 4)
    list(data)
    for _ in range(3):
        assert sorted(samples(iterate(data))) == list(range(10))


def test_a_user_has_begun_another_pass(tmp_path: Path) -> None:
    data = csv(tmp_path, 10, 4)
    list(iterate(data))
    data.reset()
    next(data)
    for _ in range(3):
        assert sorted(samples(iterate(data))) == list(range(10))


def test_rows_that_roll_over_are_no_padding() -> None:
    data = arrays(10, 4, last_batch_handle="roll_over")
    counts = Counter(number for _ in range(4) for number in samples(iterate(data)))
    assert counts == {**dict.fromkeys(range(10), 4)}


class ShuffledOnce(mx.io.NDArrayIter):
    """Arrays that are shuffled when the iterator is made."""

    def reset(self) -> None:
        if not hasattr(self, "data_list"):
            super().reset()
        self.cursor = -self.batch_size


SHUFFLED: dict[str, Callable[[], Any]] = {
    "arrays": lambda: arrays(10, 4, shuffle=True),
    "without the rest": lambda: arrays(10, 4, shuffle=True, last_batch_handle="discard"),
    "prefetched": lambda: mx.io.PrefetchingIter(arrays(10, 4, shuffle=True)),
    "prefetched twice": lambda: mx.io.PrefetchingIter(mx.io.PrefetchingIter(arrays(10, 4, shuffle=True))),
    "resized": lambda: mx.io.ResizeIter(arrays(10, 4, shuffle=True), 3),
}


@pytest.mark.parametrize("make", SHUFFLED.values(), ids=SHUFFLED)
def test_the_order_of_shuffled_arrays_follows_from_the_random_state(make: Callable[[], Any]) -> None:
    """Neither where the iterator was made nor what was read of it before counts: each epoch is another."""

    def epoch(data: Any, seed: int) -> list[int]:
        np.random.seed(seed)
        return samples(iterate(data))

    np.random.seed(7)
    data = make()
    expected = [epoch(data, seed) for seed in range(3)]
    assert len(set(map(tuple, expected))) == 3
    np.random.seed(8)
    for taken in range(4):
        other = make()
        list(islice(iterate(other), taken))
        assert [epoch(other, seed) for seed in range(3)] == expected


@pytest.mark.parametrize(
    "make", [lambda: arrays(10, 4), lambda: arrays(10, 4, kind=ShuffledOnce, shuffle=True)]
)
def test_arrays_in_a_given_order_keep_it(make: Callable[[], Any]) -> None:
    data = make()
    order = np.concatenate([batch.data[0].asnumpy().max(1) for batch in data])[:10].tolist()
    assert [samples(iterate(data))[:10] for _ in range(3)] == [order] * 3


def test_shuffled_arrays_that_a_user_has_reset() -> None:
    """Their first order is not known, and the labels stay those of their samples."""
    numbers = np.arange(10.0)
    data = mx.io.NDArrayIter(numbers, numbers + 1, 5, shuffle=True)
    for _ in range(2):
        data.reset()
        for _ in range(3):
            batches = [(batch.data[0].asnumpy(), batch.label[0].asnumpy()) for batch in iterate(data)]
            assert sorted(np.concatenate([image for image, _ in batches])) == numbers.tolist()
            assert all((label == image + 1).all() for image, label in batches)


@pytest.mark.parametrize("rewinds", [True, False])
def test_a_resized_iterator(tmp_path: Path, rewinds: bool) -> None:
    """Six batches are two epochs of three, in one pass or in two."""
    size = 6 if rewinds else 3
    data = mx.io.ResizeIter(csv(tmp_path, 10, 4), size, reset_internal=rewinds)
    for _ in range(3):
        numbers = [number for _ in range(6 // size) for number in samples(iterate(data))]
        assert Counter(numbers) == dict.fromkeys(range(10), 2)


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (csv, 10),
        (csv, 110),
        (lambda *a: images(*a, shuffle=True, seed=1), 10),
        (lambda *a: mx.io.ResizeIter(csv(*a), 4), 10),
        (lambda *a: mx.io.ResizeIter(csv(*a), 4, reset_internal=False), 10),
        (lambda _, *a: mx.io.ResizeIter(arrays(*a), 2, reset_internal=False), 10),
        (lambda _, *a: mx.io.ResizeIter(arrays(*a, shuffle=True), 4), 10),
    ],
    ids=[
        "CSV", "long CSV", "images", "resized", "resized without reset", "resized arrays",
        "resized arrays that shuffle",
    ],
)  # fmt: skip
def test_replayed_epochs_lead_to_the_same_epoch(tmp_path: Path, make: Any, rows: int) -> None:
    data = make(tmp_path, rows, 4)
    for _ in range(3):
        np.random.seed(0)
        expected = samples(iterate(data))
    resumed = make(tmp_path, rows, 4)
    replay_epochs(resumed, 2, lambda epoch: np.random.seed(0))
    np.random.seed(0)
    assert samples(iterate(resumed)) == expected
