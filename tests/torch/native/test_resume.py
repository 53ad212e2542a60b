"""A run that is killed at any batch and resumed ends bit for bit as if it had not been; also by ranks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from multifit import CheckpointHandler, Every, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import DWA, UPGrad
from multifit.distributed import World
from multifit.sampling import Proportional
from tests.common.ranks import run_ranks

from .measures import measuring
from .nets import BY_SGD, MISSABLE, Heads, assert_equal_parameters, batches, columns, heads, spec_of_heads

SEVERAL = {
    "body": TrainerSpec("body.*", "adamw", {"lr": 0.01}, partial(CosineAnnealingLR, T_max=20), every=2),
    "heads": TrainerSpec("(kind|size).*", "sgd", {"lr": 0.1, "momentum": 0.9}, clip_norm=1.0),
}


class Stops:
    """Ends a fit after a number of batches, as abruptly as a test can, or as Ctrl-C does."""

    priority = 1.0e6  # after the checkpoints were saved

    def __init__(self, step: int, kills: bool = True) -> None:
        self.step, self.kills = step, kills

    def batch_end(self, estimator: Any) -> None:
        if estimator.state.step == self.step:
            if self.kills:
                raise KilledError
            estimator.state.stop("interrupted", interrupted=True)


class KilledError(BaseException):
    """Is no Exception, which handlers might see."""


class Noisy(Dataset[Any]):
    """Samples to which torch and NumPy add noise, in worker processes."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        x, kind, size = (column[index] for column in columns(20))
        return x + torch.randn(6) * np.random.rand(), kind, size


def dropping() -> Heads:
    torch.manual_seed(0)
    return Heads(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))).double()


def shuffled(*parts: Tensor, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*(parts or columns())), 5, shuffle=True, **options)


def missing() -> Any:
    x, kind, size = columns()
    return shuffled(x, kind, torch.where(torch.arange(20)[:, None] % 3 == 0, torch.nan, size))


def of_tasks() -> Any:
    x, kind, size = columns()
    return {"kind": shuffled(x, kind), "size": shuffled(x, size)}


def carries(net: Any, slots: Any) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.tanh(net.body(slots["x"]) + slots["hidden"])
    return hidden, net.kind(hidden), net.size(hidden)


SPEC = spec_of_heads()
CARRYING = TaskSpec(
    inputs=["x", "hidden"], outputs=["hidden", "kind", "size"], labels=["kind", "size"], forward=carries,
    losses=SPEC.losses, state={"hidden": (0, 8)}, unused=["outputs.hidden"],
)  # fmt: skip
CASES: dict[str, tuple[TaskSpec, Callable[[], Any], dict[str, Any]]] = {
    "shuffled": (SPEC, shuffled, {}),
    "its own generator": (SPEC, lambda: shuffled(generator=torch.Generator().manual_seed(3)), {}),
    "workers": (SPEC, lambda: DataLoader(Noisy(), 5, shuffle=True, num_workers=2), {}),
    "accumulating": (SPEC, shuffled, {"trainers": BY_SGD, "accumulate": 3}),
    "metrics": (measuring(), shuffled, {}),
    "UPGrad": (SPEC, shuffled, {"balance": UPGrad()}),
    "UPGrad of features": (SPEC, shuffled, {"balance": UPGrad(on="features", every=2)}),
    "DWA": (SPEC, shuffled, {"balance": DWA()}),
    "missing labels": (MISSABLE, missing, {}),
    "carried state": (CARRYING, shuffled, {}),
    "a loader for each task": (SPEC, of_tasks, {}),
}


STEPS = [("shuffled", 1), ("shuffled", 4), ("its own generator", 4)]  # the last batch of an epoch


@pytest.mark.parametrize(("case", "step"), [*STEPS, *[(case, 6) for case in CASES]])
def test_it_ends_bit_for_bit_as_without_a_stop(case: str, step: int, tmp_path: Path) -> None:
    spec, data, options = CASES[case]

    def fit(folder: str, *handlers: Any, **more: Any) -> MultiEstimator:
        estimator = MultiEstimator(dropping(), spec, **{"trainers": SEVERAL, **options})
        sampling = Proportional() if data is of_tasks else None
        saves = CheckpointHandler(tmp_path / folder, Every(step, "batch"))
        estimator.fit(data(), epochs=2, seed=5, event_handlers=[saves, *handlers], sampling=sampling, **more)
        return estimator

    through = fit("through")
    with pytest.raises(KilledError):
        fit("cut", Stops(step))
    resumed = fit("cut", resume=tmp_path / "cut")
    np.testing.assert_equal(resumed.values(), through.values())
    np.testing.assert_equal(dict(resumed.history), dict(through.history))


def test_a_run_without_a_seed_resumes_exactly_too(tmp_path: Path) -> None:
    """PyTorch's generators can be saved, and so need no seeding at fixed places."""

    def fit(folder: Path, *handlers: Any, **more: Any) -> MultiEstimator:
        estimator = MultiEstimator(dropping(), SPEC, SEVERAL)
        torch.manual_seed(4)
        estimator.fit(shuffled(), epochs=3, event_handlers=[CheckpointHandler(folder), *handlers], **more)
        return estimator

    through = fit(tmp_path / "through")
    fit(tmp_path / "parts", Stops(6, kills=False))
    resumed = fit(tmp_path / "parts", resume=tmp_path / "parts")
    np.testing.assert_equal(resumed.values(), through.values())


# ---- ranks


def by_ranks(size: int, folder: Path, body: str = "batch normalisation", **options: Any) -> list[Any]:
    """Return the estimators of ranks that train, or resume, in a folder."""
    accumulate = options.pop("accumulate", 1)

    def joint(world: World) -> MultiEstimator:
        estimator = MultiEstimator(heads(body), measuring(), BY_SGD, world=world, accumulate=accumulate)
        saving = CheckpointHandler(folder, Every(3, "batch"), seed=3)
        estimator.fit(batches(6, 6, 6, 6), event_handlers=[saving], **{"epochs": 1, **options})
        return estimator

    results = run_ranks(size, joint)
    for each in results:
        if isinstance(each, Exception):
            raise each
    return results


@pytest.mark.parametrize("accumulate", [1, 4])
def test_each_rank_continues_with_its_own_state(accumulate: int, tmp_path: Path) -> None:
    """Its running statistics, its figures, and its gradients that wait for an update."""
    through, cut = by_ranks(2, tmp_path / "through", accumulate=accumulate), tmp_path / "cut"
    by_ranks(2, cut, accumulate=accumulate, epochs=None, batches=3)
    resumed = by_ranks(2, cut, accumulate=accumulate, resume=cut)
    for one, other in zip(through, resumed):
        np.testing.assert_equal(one.values(), other.values())
        np.testing.assert_equal(dict(one.history), dict(other.history))


@pytest.mark.parametrize("sizes", [(3, 1), (1, 2)])
def test_another_number_of_ranks_continues_with_the_sum_of_the_figures(
    sizes: tuple[int, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (through,), cut = by_ranks(1, tmp_path / "through", "dense"), tmp_path / "cut"
    by_ranks(sizes[0], cut, "dense", epochs=None, batches=3)
    for resumed in by_ranks(sizes[1], cut, "dense", resume=cut):
        for name, values in through.history.items():
            if name not in ("train_pearson", "train_count", "train_largest.mean"):
                assert resumed.history[name] == pytest.approx(values, rel=1e-10), name
        assert_equal_parameters(resumed.net, through.net)
    assert '"train_count" starts from zero: what each process has measured cannot be divided' in caplog.text


def test_another_number_of_ranks_continues_with_the_mean_of_running_statistics(tmp_path: Path) -> None:
    """Which a fit ends with, too."""
    cut = by_ranks(2, tmp_path, epochs=None, batches=3)
    resumed = by_ranks(3, tmp_path, resume=tmp_path, epochs=None, batches=3)
    means = [each.net.body[1].running_mean for each in (*cut, *resumed)]
    assert all(torch.allclose(each, means[0], rtol=1e-12) for each in means) and means[0].abs().min() > 0


def test_gradients_that_wait_cannot_be_divided(tmp_path: Path) -> None:
    by_ranks(2, tmp_path, accumulate=4, epochs=None, batches=3)
    with pytest.raises(ValueError, match="gradients of 2 processes wait for an update, .* among 3"):
        by_ranks(3, tmp_path, accumulate=4, resume=tmp_path)


@pytest.mark.parametrize("stepped", [True, False])
def test_all_ranks_get_the_states_of_the_first_ranks_trainers(stepped: bool) -> None:
    def continues(world: Any) -> Any:
        estimator = MultiEstimator(heads(), SPEC, BY_SGD, world=world)
        optimizer: Any = estimator.trainers["trainer"].optimizer
        if world.first and stepped:
            for parameter in estimator.net.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        estimator._engine.snapshot.share_trainers()
        return [state["momentum_buffer"].sum().item() for state in optimizer.state.values()]

    first, second = run_ranks(2, continues)
    assert first == second and len(first) == 6 * stepped
