"""Seed all random generators that a run uses, and preserve their state."""

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

# A run's streams of random numbers: the number of a stream is hashed together with the run's seed.
STEP, EPOCH, RANK, READ, AHEAD, TRAIN = range(6)
SEEDERS: list[Callable[[int], object]] = []  # they seed the operators' generators
_last: list[int] = []  # the last seed, if any


def add_seeder(seeder: Callable[[int], object]) -> None:
    """Add a function that seeds an engine's operators; it gets the last seed at once, if there was one."""
    SEEDERS.append(seeder)
    for seed in _last:
        seeder(seed)


def seed_everything(seed: int) -> None:
    """Seed Python's and NumPy's random generators, and those of the engines' operators.

    With Gluon, initial parameters, dropout, flips and colour jitter use MXNet's generator, shuffling uses
    NumPy's, and ``RandomResizedCrop`` uses Python's. MXNet's and PyTorch's are seeded if they are imported,
    and otherwise when MXNet is imported, or PyTorch's engine is. Raises ValueError unless the seed is from 0
    to 2**32 - 1 (NumPy's range; MXNet takes it modulo 2**31).
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to {2**32 - 1}, not {seed}")
    random.seed(seed)
    np.random.seed(seed)
    seed_operators(seed)


def seed_operators(seed: int) -> None:
    """Seed the generators of operators, such as dropout's, whose states cannot be read."""
    _last[:] = [seed % 2**31]
    for seeder in SEEDERS:
        seeder(_last[0])
    if "torch" in sys.modules:  # whichever engine runs: PyTorch's DataLoader draws its order from it
        sys.modules["torch"].manual_seed(_last[0])


def mixed(*numbers: int) -> int:
    """Hash a sequence of numbers of at least 0 to one number of 32 bits.

    By M. E. O'Neill's ``seed_seq``, which NumPy promises never to change.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def seed_of_rank(seed: int, rank: int) -> int:
    """Return the seed of a rank's own random numbers; the first rank's are those of a single process."""
    return mixed(seed, RANK, rank) if rank else seed


def state_hash(number: int) -> int:
    """Hash a number with the state of NumPy's global generator, which stays as it is."""
    state = np.random.get_state(legacy=False)["state"]
    return mixed(number, int(state["pos"]), *state["key"].tolist())


def random_state() -> dict[str, Any]:
    """Return the states of NumPy's global generator, of Python's, and of PyTorch's if it is imported."""
    state: dict[str, Any] = {"numpy": np.random.get_state(), "python": random.getstate()}
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = [each.numpy() for each in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set what :func:`random_state` returned; generators that it lacks stay as they are."""
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    torch = sys.modules.get("torch")
    if torch is None or "torch" not in state:
        return
    torch.set_rng_state(torch.tensor(state["torch"], device="cpu"))
    if torch.cuda.is_available():
        for number, each in enumerate(state.get("cuda", ())[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(torch.tensor(each, device="cpu"), number)


def seed_order(seed: int) -> None:
    """Seed the generators from which loaders draw the order of a pass; MXNet's draws none."""
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore what :func:`random_state` returns after the block; the state of MXNet's cannot be read."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)
