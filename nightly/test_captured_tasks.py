"""Every task trains as CUDA graphs to the same numbers as operator by operator, with PyTorch as engine.

Without a GPU, a stand-in records operators and replays them in the same memory, which it overwrites first.
Run it alone with ``python -m pytest nightly/test_captured_tasks.py -n 2``.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch

from multifit.cli import build_parser
from multifit.cli.task import Choices, Task
from tests.torch.cuda_graphs import counted_replays
from tests.torch.place import DEVICE
from tests.torch.runs import assert_equal, values

TASKS = {path.stem: path for path in sorted((Path(__file__).parents[1] / "tasks").glob("*.py"))}


def trained(task: str, how: str) -> Any:
    """Return the history, the figures of an evaluation, and the parameters after eight batches."""
    options = ["train", str(TASKS[task]), "--quiet", "--engine", "torch", "--compile", how, "--seed", "1"]
    run = Task(Choices(build_parser().parse_args([*options, "--devices", str(DEVICE)])))
    train_data, val_data = run.data
    history = run.estimator.fit(train_data, batches=8, event_handlers=[])
    return dict(history), run.estimator.evaluate(list(islice(val_data, 5))), values(run.estimator)


@pytest.mark.parametrize("task", TASKS)
def test_captured(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    # the stand-in copies what operators return, but the workspace of oneDNN's LSTM cannot be copied
    with torch.backends.mkldnn.flags(enabled=False):
        expected, replays = trained(task, "no"), counted_replays(monkeypatch)
        for one, other in zip(expected, trained(task, "cudagraphs")):
            assert_equal(one, other, 1e-6)
    assert replays.count
