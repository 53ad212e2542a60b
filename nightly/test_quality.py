"""Train every row of the table by the command line, as a user would, and compare it with its floors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import pytest

from multifit.gluon.precision.precisions import cpu_supports_bfloat16

from .report import Result
from .table import Row

ROOT = Path(__file__).parents[1]


def test_quality(row: Row, pytestconfig, record_property):
    _skip_if_unsupported(row)
    settings = [*row.settings.split(), *_data_set(row, Path(pytestconfig.getoption("data")))]
    folder = Path(pytestconfig.getoption("report")).absolute() / "runs" / row.name.replace(" ", ",")
    start = time.perf_counter()
    _train(row, settings, folder)
    seconds = time.perf_counter() - start
    history = json.loads((folder / "history.json").read_text("utf-8"))
    measured = {figure: history[figure][-1] for figure in row.floors}
    for figure, floor in row.floors.items():
        result = Result(row.name, figure, measured[figure], floor, row.epochs, seconds)
        record_property("result", result._asdict())
    assert not {figure: value for figure, value in measured.items() if not value >= row.floors[figure]}


def _skip_if_unsupported(row: Row) -> None:
    if row.device == "gpu" and not mx.context.num_gpus():
        pytest.skip("this machine has no GPU that mxnet can use")
    if row.precision == "bfloat16" and not cpu_supports_bfloat16():
        pytest.skip("this CPU has no AVX512, which bfloat16 needs")


def _data_set(row: Row, folder: Path) -> list[str]:
    """Return the settings that choose the row's data set; skip the test if it is not there."""
    if row.data and not (folder / row.data).is_dir():
        pytest.skip(f"there is no data set {folder / row.data}")
    return [f"data={row.data}", f"root={(folder / row.data).absolute()}"] if row.data else []


def _train(row: Row, settings: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "multifit", "train", f"tasks/{row.task}.py", "--quiet"]
    command += ["--epochs", str(row.epochs), "--output", str(folder)]
    command += ["--precision", row.precision] if row.precision != "float32" else []
    command += ["--devices", "gpu:0"] if row.device == "gpu" else []
    command += ["--set", *settings] if settings else []
    # Two rows train at a time: with more threads each they would compete for the cores.
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
