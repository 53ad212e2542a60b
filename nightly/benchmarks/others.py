"""The two-head net in Lightning, Keras and PyTorch.

They do not fit into multifit's environment, so each runs in a child process with an environment of its own,
which runs one epoch at a time between the epochs of multifit.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from .child import TOP, Child
from .results import Row
from .rounds import Rounds
from .subjects import HEADS, Heads

__all__ = ["CASES", "NAME", "PYTHON", "RIVALS", "Rival", "check_alike", "measure", "rival", "write_data"]

NAME = "others"
CASES = tuple(case for case in HEADS if case.count == 2)
PYTHON = os.environ.get("BENCH_PYTHON") or str(TOP / ".venv-bench" / "bin" / "python")
RIVALS = {  # the file in rivals/, and additional environment variables
    "PyTorch": ("plain_torch.py", {}),
    "Lightning": ("lightning_loop.py", {}),
    "Keras, torch": ("keras_fit.py", {"KERAS_BACKEND": "torch"}),
    "Keras, JAX": ("keras_fit.py", {"KERAS_BACKEND": "jax"}),
}


def measure(case: Heads, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per step of each contender."""
    if not Path(PYTHON).is_file():
        raise FileNotFoundError(
            f"there is no {PYTHON}: `make bench ONLY=others` makes it; BENCH_PYTHON names another"
        )
    estimator, batches = case.estimator(), case.batches()
    with ExitStack() as stack:
        file = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "digits.npz")
        write_data(file, estimator.net, batches)
        rivals = {
            name: Rival(stack.enter_context(rival(*how, file, case.optimizer[0])))
            for name, how in RIVALS.items()
        }
        times = Rounds(rivals).run(estimator, batches, epochs or case.rounds)
    check_alike(estimator.history, {name: rival.first for name, rival in rivals.items()})
    yield Row.of_seconds(NAME, case.name, times, len(batches))


class Rival:
    """The turns of a child; `first` has the figures of its first epoch."""

    def __init__(self, child: Child) -> None:
        self._child, self.first = child, []

    def __call__(self) -> float:
        """Run an epoch, and return its seconds."""
        seconds, *figures = self._child.ask()
        self.first = self.first or figures
        return seconds


def check_alike(history: Mapping[str, list[float]], first: Mapping[str, list[float]]) -> None:
    """Raise ValueError unless all contenders have the same losses and accuracies after their first epoch."""
    ours = [values[0] for name, values in history.items() if name not in ("train_loss", "lr")]
    for name, figures in first.items():
        if not np.allclose(figures, ours, rtol=0.01):
            raise ValueError(f"{name} trains another net: its first epoch comes to {figures}, ours to {ours}")


def write_data(path: str, net: Any, batches: list[Any]) -> None:
    """Write the data and initial parameters that `rivals/common.py` reads, the same for all."""
    image, kind, odd = (np.concatenate([slot.asnumpy() for slot in slots]) for slots in zip(*batches))
    arrays = {"image": image, "kind": kind.astype("int64"), "odd": odd}
    for i, layer in enumerate([*net.body, *net.heads]):
        arrays[f"weight{i}"], arrays[f"bias{i}"] = layer.weight.data().asnumpy(), layer.bias.data().asnumpy()
    np.savez(path, **arrays)


def rival(script: str, environment: Mapping[str, str], *arguments: str) -> Child:
    """Start a script in `rivals/`; its last argument is the number of threads."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    one = f"--xla_cpu_multi_thread_eigen={'false' if threads == '1' else 'true'}"
    flags = {"XLA_FLAGS": one, "JAX_PLATFORMS": "cpu", "PYTHONPATH": "", "TQDM_DISABLE": "1"}
    path = str(Path(__file__).parent / "rivals" / script)
    return Child([PYTHON, path, *arguments, threads], {**flags, **environment})
