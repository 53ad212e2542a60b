"""A training step of PyTorch nets beside the loop by hand, Lightning, Keras on torch, and TorchJD.

All run in the environment of the rivals, which has no MXNet; each in a process of its own.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from .balance import GRADIENTS, LIBRARY, ROUNDS, SECONDS, SUM, THEIRS
from .others import PYTHON, RIVALS, Rival, rival, write_data
from .results import OURS, Row
from .rounds import alternate
from .subjects import BALANCED, HEADS, Balanced, Heads

__all__ = ["CASES", "NAME", "measure"]

NAME, HAND = "torch", "PyTorch by hand"
CASES = (*(case for case in HEADS if case.count == 2), *BALANCED)
SCRIPT = "multifit_torch.py"
CONTENDERS = {
    OURS: (SCRIPT, {}),
    HAND: RIVALS["PyTorch"],
    **{n: RIVALS[n] for n in ("Lightning", "Keras, torch")},
}


def measure(case: Heads, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per step of each contender."""
    if not Path(PYTHON).is_file():
        raise FileNotFoundError(f"there is no {PYTHON}: `make bench ONLY=torch` makes it")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measured = _balanced if isinstance(case, Balanced) else _plain
        yield from measured(case, stack, folder, epochs)


def _plain(case: Heads, stack: ExitStack, folder: Path, epochs: int | None) -> Iterator[Row]:
    file, estimator, batches = str(folder / "digits.npz"), case.estimator(), case.batches()
    estimator.fit(batches[:1], batches=1, event_handlers=[])  # initialises the net
    write_data(file, estimator.net, batches)
    turns = {
        name: Rival(stack.enter_context(rival(*how, file, case.optimizer[0])))
        for name, how in CONTENDERS.items()
    }
    times = alternate(turns, epochs or case.rounds)
    first = {name: turn.first for name, turn in turns.items()}
    for name, figures in first.items():
        if not np.allclose(figures, first[HAND], rtol=0.01):
            raise ValueError(
                f"{name} trains another net: its first epoch comes to {figures}, not {first[HAND]}"
            )
    yield Row.of_seconds(NAME, case.name, times, len(batches))


def _balanced(case: Balanced, stack: ExitStack, folder: Path, epochs: int | None) -> Iterator[Row]:
    file, batches = str(folder / "arrays.npz"), case.batches()
    np.savez(file, *(np.concatenate([slot.asnumpy() for slot in slots]) for slots in zip(*batches)))
    arguments = file, case.kind, str(len(batches[0][0]))
    scripts = SCRIPT, "torchjd_balance.py"
    ours, theirs = (stack.enter_context(rival(script, {}, *arguments)) for script in scripts)
    features = f"{OURS}, features"
    turns = {(OURS, name): partial(ours.ask, name) for name in (SUM, *GRADIENTS)}
    turns |= {(features, name): partial(ours.ask, f"{name}, features") for name in GRADIENTS}
    turns |= {(LIBRARY, name): partial(theirs.ask, name) for name in (SUM, *GRADIENTS) if name in THEIRS}
    times = alternate(turns, epochs or ROUNDS, SECONDS)
    for name in (SUM, *GRADIENTS):
        seconds = {column: times[column, each] for column, each in turns if each == name}
        if name == SUM:
            seconds[HAND] = seconds.pop(LIBRARY)  # which has nothing to do there
        yield Row.of_seconds(NAME, f"{case}, {name}", seconds, len(batches))
