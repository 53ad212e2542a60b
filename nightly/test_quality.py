"""Train every row of the table as a user would, and with every method of balancing, and compare."""

import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import mxnet as mx
import pytest

from multifit.gluon.graph.lower import cpu_supports_bfloat16

from . import balance_value
from .report import Result
from .table import DEVICES, Device, Row

ROOT = Path(__file__).parents[1]
REFUSED = 'engine="torch": '  # the engine's errors for what it does not train begin with this


def test_quality(row: Row, pytestconfig, record_property):
    device = pytestconfig.getoption("device")
    _skip_if_unsupported(row, device)
    settings = [*row.settings.split(), *_data_set(row, Path(pytestconfig.getoption("data")))]
    folder = Path(pytestconfig.getoption("report")).absolute() / "runs" / row.name.replace(" ", ",")
    start = time.perf_counter()
    error = _train(row, settings, folder, DEVICES[device])
    if error and REFUSED in error:
        record_property("refused", (row.name, error))
        pytest.skip(error)
    if error:
        record_property("failure", (row.name, error))
        pytest.fail(error)
    seconds = time.perf_counter() - start
    history = json.loads((folder / "history.json").read_text("utf-8"))
    measured = {figure: history[figure][-1] for figure in row.floors}
    for figure, floor in row.floors.items():
        result = Result(row.name, figure, measured[figure], floor, row.epochs, seconds, _rate(folder))
        record_property("result", result._asdict())
    assert not {figure: value for figure, value in measured.items() if not value >= row.floors[figure]}


def _skip_if_unsupported(row: Row, device: str) -> None:
    if row.library == "torch" and find_spec("torch") is None:
        pytest.skip("needs PyTorch: make nightly DEVICE=torch")
    if device == "gpu" and not mx.context.num_gpus():
        pytest.skip("this machine has no GPU that mxnet can use")
    if row.precision == "bfloat16" and device != "cuda" and not cpu_supports_bfloat16():
        pytest.skip("this CPU has no AVX512, without which bfloat16 is slow or refused")


def _data_set(row: Row, folder: Path) -> list[str]:
    """Return the settings that choose the row's data set; skip the test if it is not there."""
    if row.data and not (folder / row.data).is_dir():
        pytest.skip(f"there is no data set {folder / row.data}")
    return [f"dataset={row.data}", f"root={(folder / row.data).absolute()}"] if row.data else []


def _train(row: Row, settings: list[str], folder: Path, device: Device) -> str:
    """Train a row; return the error of a command that fails, in one line."""
    command = [sys.executable, "-m", "multifit", "train", f"tasks/{row.task}.py", "--quiet", "--overwrite"]
    command += ["--epochs", str(row.epochs), "--output", str(folder), *device.arguments]
    command += ["--precision", row.precision] if row.precision != "float32" else []
    command += ["--set", *settings] if settings else []
    # Two rows train at a time; with more than one thread each, they would compete for the cores.
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return error_of(done.stderr, done.returncode) if done.returncode else ""


def error_of(stderr: str, status: int) -> str:
    """Return the error message of a command that failed, in one line, without the warnings before it."""
    *_, last = re.split(r"^multifit: ", stderr, flags=re.MULTILINE)
    return " ".join(last.split())[-1000:] or f"exit status {status}"


def _rate(folder: Path) -> float:
    """Return the median of the samples per second in a run's log, one for each epoch."""
    rates = re.findall(
        r"^.*epoch.* s +(\d+) samples/s", (folder / "log.txt").read_text("utf-8"), re.MULTILINE
    )
    return median(map(float, rates)) if rates else 0.0


def test_balance_value(pytestconfig):
    """Train with every method of balancing on three problems, over six seeds; write ``balance.md``."""
    folder = Path(pytestconfig.getoption("report"))
    assert balance_value.main(["--output", str(folder)]) == 0
    text = (folder / "balance.md").read_text("utf-8")
    assert all(text.count(name) >= len(balance_value.PROBLEMS) for name in balance_value.METHODS)
    assert "nan" not in text
