"""PyTorch's DataLoader, Hugging Face's datasets and memory maps as loaders, with both engines."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset

import multifit
from multifit import CheckpointHandler, Every, MultiEstimator, TrainerSpec
from multifit.utils import seeding
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_close

ARRAYS = two_head_arrays()
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Samples(Dataset):
    """Samples that are dicts."""

    def __len__(self) -> int:
        return len(ARRAYS["image"])

    def __getitem__(self, place: int) -> Any:
        return {name: array[place] for name, array in ARRAYS.items()}


class Stream(IterableDataset):
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


def tensors() -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in ARRAYS.values()]


LOADERS: dict[str, Callable[[Path], Any]] = {
    "tensors": lambda folder: DataLoader(TensorDataset(*tensors()), batch_size=8),
    "dicts": lambda folder: DataLoader(Samples(), batch_size=8),
    "workers": lambda folder: DataLoader(Samples(), batch_size=8, num_workers=2),
    "a stream": lambda folder: DataLoader(Stream(), batch_size=8),
    "arrays of tensors": lambda folder: multifit.batches(*tensors(), batch_size=8),
    "datasets, tensors": lambda folder: DataLoader(hugging_face("torch"), batch_size=8),
    "datasets, in memory": lambda folder: multifit.batches(hugging_face("numpy")[:], batch_size=8),
    "memory maps": lambda folder: multifit.batches(memory_maps(folder), batch_size=8),
}


def estimator_of(engine: str = "mxnet") -> MultiEstimator:
    seeding.seed_everything(0)
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    return MultiEstimator(two_heads("hybridized"), two_head_spec(), trainer, engine=engine)


def trained(data: Any, engine: str) -> list[dict[str, Any]]:
    estimator = estimator_of(engine)
    history = estimator.fit(data, data, epochs=1, event_handlers=[])
    return [dict(history), estimator.values(), estimator.predict(data)]


of_arrays = cache(lambda engine: trained(in_batches(ARRAYS.values()), engine))


@pytest.mark.parametrize("engine", ["mxnet", "torch"])
@pytest.mark.parametrize("kind", LOADERS)
def test_all_loaders_train_equally(kind: str, engine: str, tmp_path: Path) -> None:
    for one, other in zip(of_arrays(engine), trained(LOADERS[kind](tmp_path), engine)):
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
PERSISTENT = {**WORKERS, "persistent_workers": True}
CARRIED: dict[str, tuple[Any, Callable[[], dict[str, Any]]]] = {
    "shuffled": (Noisy, lambda: {"batch_size": 4, "shuffle": True}),
    "shuffled, workers": (Noisy, lambda: {**WORKERS, "shuffle": True}),
    "a generator, workers": (Noisy, lambda: {**WORKERS, "shuffle": True, "generator": seeded()}),
    "a generator, in order": (Noisy, lambda: {"batch_size": 4, "generator": seeded()}),
    "a generator, a stream": (Stream, lambda: {"batch_size": 4, "generator": seeded()}),
    "a sampler's generator": (Noisy, lambda: {"batch_size": 4, "sampler": weighted()}),
    "a batch sampler's": (Noisy, lambda: {"batch_sampler": BatchSampler(weighted(), 4, False)}),
    "persistent workers": (Noisy, lambda: {**PERSISTENT, "shuffle": True}),
    "persistent workers, a generator": (
        Noisy,
        lambda: {**PERSISTENT, "shuffle": True, "generator": seeded()},
    ),
    "persistent workers, a stream": (Stream, lambda: PERSISTENT),
}


@pytest.mark.parametrize("name", CARRIED)
def test_what_a_data_loader_carries_over_to_the_next_epoch_resumes(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But random numbers in streams of persistent workers, which the log says."""
    caplog.set_level("INFO", "multifit")
    kind, options = CARRIED[name]
    # as in a process in which the engine on PyTorch, which seeds torch too, was never used
    others = [seeder for seeder in seeding.SEEDERS if seeder is not torch.manual_seed]
    monkeypatch.setattr(seeding, "SEEDERS", others)

    def train(folder: Path, *handlers: Any, **resume: Any) -> MultiEstimator:
        estimator = estimator_of()
        torch.seed()  # as in another process
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=1)
        data = DataLoader(kind(), **options())
        estimator.fit(data, epochs=3, event_handlers=[saving, *handlers], **resume)
        return estimator

    # within the first epoch, within the second, and where the last begins
    assert_resumes_bit_for_bit(train, tmp_path, *((3, 9, 10) if name == "shuffled" else (9,)))
    assert ("cannot be seeded" in caplog.text) == (kind is Stream and "persistent_workers" in options())
