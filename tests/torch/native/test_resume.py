"""A run that is killed at any batch and resumed ends bit for bit as if it had not been."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from multifit import CheckpointHandler, Every, LabelSpec, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import DWA, UPGrad
from multifit.sampling import Proportional

from .nets import Heads, columns, spec_of_heads

SEVERAL = {
    "body": TrainerSpec(
        r"body\..*", "adamw", {"lr": 0.01}, lr_scheduler=partial(CosineAnnealingLR, T_max=20)
    ),
    "heads": TrainerSpec(r"(kind|size)\..*", "sgd", {"lr": 0.1, "momentum": 0.9}, clip_norm=1.0),
}


class Killed(BaseException):
    """Ends a fit as abruptly as a test can."""


class Kills:
    """Raises after a number of batches, after the checkpoints were saved."""

    priority = 1.0e6

    def __init__(self, step: int) -> None:
        self.step = step

    def batch_end(self, estimator: Any) -> None:
        if estimator.state.step == self.step:
            raise Killed


class Noisy(Dataset[Any]):
    """Samples to which torch, NumPy and Python add noise, in worker processes."""

    def __init__(self) -> None:
        self.columns = columns(20)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        x, kind, size = (column[index] for column in self.columns)
        return x + torch.randn(6) * np.random.rand(), kind, size


def dropping() -> Heads:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
    return Heads(body).double()


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*columns()), 5, shuffle=True, **options)


def missing() -> Any:
    x, kind, size = columns()
    size = torch.where(torch.arange(20)[:, None] % 3 == 0, torch.nan, size)
    return DataLoader(TensorDataset(x, kind, size), 5, shuffle=True)


def of_tasks() -> Any:
    x, kind, size = columns()
    loaders = {"kind": TensorDataset(x, kind), "size": TensorDataset(x, size)}
    return {name: DataLoader(data, 5, shuffle=True) for name, data in loaders.items()}


SPEC = spec_of_heads()
MISSABLE = TaskSpec(
    inputs=["x"], outputs=["kind", "size"], labels=["kind", LabelSpec("size", missing="nan")],
    losses={"kind": nn.CrossEntropyLoss(), "size": LossSpec(nn.MSELoss(), weight=0.5)},
)  # fmt: skip
CASES: dict[str, tuple[TaskSpec, Callable[[], Any], dict[str, Any]]] = {
    "shuffled": (SPEC, loader, {}),
    "its own generator": (SPEC, lambda: loader(generator=torch.Generator().manual_seed(3)), {}),
    "workers": (SPEC, lambda: DataLoader(Noisy(), 5, shuffle=True, num_workers=2), {}),
    "accumulating": (SPEC, loader, {"accumulate": 3}),
    "UPGrad": (SPEC, loader, {"balance": UPGrad()}),
    "UPGrad of features": (SPEC, loader, {"balance": UPGrad(on="features", every=2)}),
    "DWA": (SPEC, loader, {"balance": DWA()}),
    "missing labels": (MISSABLE, missing, {}),
    "a loader for each task": (SPEC, of_tasks, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_ends_bit_for_bit_as_without_a_stop(case: str, tmp_path: Path) -> None:
    spec, data, options = CASES[case]

    def fit(folder: Path, *handlers: Any, **more: Any) -> MultiEstimator:
        saves = CheckpointHandler(folder, Every(1, "batch"))
        estimator = MultiEstimator(dropping(), spec, SEVERAL, **options)
        sampling = Proportional() if isinstance(data(), dict) else None
        estimator.fit(data(), epochs=3, seed=5, event_handlers=[saves, *handlers], sampling=sampling, **more)
        return estimator

    through = fit(tmp_path / "through")
    for step in (1, 6, 8):
        folder = tmp_path / str(step)
        with pytest.raises(Killed):
            fit(folder, Kills(step))
        resumed = fit(folder, resume=folder)
        np.testing.assert_equal(resumed.values(), through.values())
        np.testing.assert_equal(dict(resumed.history), dict(through.history))
