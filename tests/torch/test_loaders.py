"""PyTorch's DataLoader, Hugging Face's datasets and memory maps as loaders, with both engines."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import multifit
from multifit import CheckpointHandler, Every, MultiEstimator, TrainerSpec
from multifit.utils import seeding
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_close, run

import mxnet as mx  # isort: skip

ARRAYS = two_head_arrays()
Loader = torch.utils.data.DataLoader


class Samples(torch.utils.data.Dataset):
    """Samples that are dicts."""

    def __len__(self) -> int:
        return len(ARRAYS["image"])

    def __getitem__(self, place: int) -> Any:
        return {name: array[place] for name, array in ARRAYS.items()}


class Stream(torch.utils.data.IterableDataset):
    """Samples without a number of them."""

    def __iter__(self) -> Iterator[Any]:
        return zip(*ARRAYS.values())


def hugging_face(form: str) -> Any:
    """Return a data set of the package datasets; it lies in memory."""
    datasets: Any = pytest.importorskip("datasets", exc_type=ImportError)
    data = datasets.Dataset.from_dict({name: array.tolist() for name, array in ARRAYS.items()})
    return data.with_format(form)


def memory_maps(folder: Path) -> dict[str, np.ndarray]:
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}


LOADERS: dict[str, Callable[[Path], Any]] = {
    "tensors": lambda folder: Loader(
        torch.utils.data.TensorDataset(*map(torch.from_numpy, ARRAYS.values())), batch_size=8
    ),
    "dicts": lambda folder: Loader(Samples(), batch_size=8),
    "workers": lambda folder: Loader(Samples(), batch_size=8, num_workers=2),
    "a stream": lambda folder: Loader(Stream(), batch_size=8),
    "arrays of tensors": lambda folder: multifit.batches(
        *map(torch.from_numpy, ARRAYS.values()), batch_size=8
    ),
    "datasets, tensors": lambda folder: Loader(hugging_face("torch"), batch_size=8),
    "datasets, in memory": lambda folder: multifit.batches(hugging_face("numpy")[:], batch_size=8),
    "memory maps": lambda folder: multifit.batches(memory_maps(folder), batch_size=8),
}


@pytest.mark.parametrize("engine", ["mxnet", "torch"])
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_all_loaders_train_equally(kind: str, engine: str, tmp_path: Path) -> None:
    def train(data: Any) -> Any:
        mx.random.seed(0)
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
        return run(engine, two_heads("hybridized"), two_head_spec(), trainer, data, epochs=2)

    for one, other in zip(train(in_batches(ARRAYS.values())), train(LOADERS[kind](tmp_path))):
        assert_close(one, other, tolerance=1e-5)


class Noisy(Samples):
    """Samples that are augmented, in this process or in a worker."""

    def __getitem__(self, place: int) -> Any:
        sample = super().__getitem__(place)
        noise = torch.randn(6).numpy() * np.random.rand()
        return {**sample, "image": (sample["image"] + noise).astype("float32")}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def weighted() -> Any:
    return torch.utils.data.WeightedRandomSampler([1.0] * len(ARRAYS["image"]), 24, generator=seeded())


WORKERS = {"batch_size": 4, "num_workers": 2}
PERSISTENT = {**WORKERS, "persistent_workers": True, "shuffle": True}
CARRIED: dict[str, tuple[Any, Callable[[], dict[str, Any]]]] = {
    "a generator, workers": (Noisy, lambda: {**WORKERS, "shuffle": True, "generator": seeded()}),
    "a generator, in order": (Noisy, lambda: {**WORKERS, "generator": seeded()}),
    "a generator, a stream": (Stream, lambda: {"batch_size": 4, "generator": seeded()}),
    "a sampler's generator": (Noisy, lambda: {"batch_size": 4, "sampler": weighted()}),
    "a batch sampler's": (
        Noisy, lambda: {"batch_sampler": torch.utils.data.BatchSampler(weighted(), 4, False)}),
    "persistent workers": (Noisy, lambda: PERSISTENT),
    "persistent workers, a generator": (Noisy, lambda: {**PERSISTENT, "generator": seeded()}),
    "persistent workers, a stream": (Stream, lambda: {**WORKERS, "persistent_workers": True}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), CARRIED.values(), ids=CARRIED)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_data_loader_carries_over_to_the_next_epoch_resumes(
    kind: Any, options: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """But random numbers in streams of persistent workers, which the log says."""
    caplog.set_level("INFO", "multifit")

    def train(folder: Path, *handlers: Any, **resume: Any) -> MultiEstimator:
        seeding.seed_everything(0)
        estimator = MultiEstimator(two_heads("hybridized"), two_head_spec(), TrainerSpec(".*", "sgd"))
        torch.seed()  # as in another process
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=1)
        estimator.fit(Loader(kind(), **options()), epochs=3, event_handlers=[saving, *handlers], **resume)
        return estimator

    assert_resumes_bit_for_bit(train, tmp_path, 9, 15)
    assert ("cannot be seeded" in caplog.text) == (kind is Stream and "persistent_workers" in options())


@pytest.mark.parametrize(("engine", "workers"), [("mxnet", 0), ("mxnet", 2), ("torch", 2)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_data_loader_that_shuffles_resumes_bit_for_bit(
    engine: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "mxnet":  # as in a process in which the engine on PyTorch was never used
        others = [seeder for seeder in seeding.SEEDERS if seeder is not torch.manual_seed]
        monkeypatch.setattr(seeding, "SEEDERS", others)

    def train(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        seeding.seed_everything(0)
        net, spec = two_heads("hybridized"), two_head_spec()
        trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        estimator = MultiEstimator(net, spec, trainer, engine=engine)
        torch.seed()  # as in another process
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=1)
        data = Loader(Noisy(), batch_size=4, shuffle=True, num_workers=workers)
        estimator.fit(data, epochs=2, event_handlers=[saving, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(train, tmp_path, 3, 8)
