"""``multifit train --distributed``: what the ranks but the first show and write."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from multifit.cli.ranks import first_shows
from multifit.distributed import ALONE
from multifit.distributed.log_once import get_logger
from tests.common.launch import launch

SECOND = SimpleNamespace(first=False, rank=1, size=2)
LOG = Path("runs/small/ranks/rank-0001.log")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@pytest.mark.parametrize("writable", [True, False])
def test_the_first_rank_shows_and_writes_and_the_others_write_a_log_only(write, capsys, writable):
    write()
    if not writable:
        Path("runs").write_text("not a folder")
    with first_shows(ALONE, Path("runs/small")) as folder:
        print("shown")
    assert folder == Path("runs/small")
    before = list(get_logger().handlers)
    with pytest.raises(KeyError), first_shows(SECOND, Path("runs/small")) as folder:
        print("lost")
        get_logger().getChild("rank-1").info("not shown")
        (folder / "final.params").write_text("")
        raise KeyError("an error")
    assert not folder.exists() and get_logger().handlers == before
    assert capsys.readouterr() == ("shown\n", "")
    if writable:
        text = LOG.read_text()
        assert "INFO    rank 1 of 2: " in text and "INFO    not shown" in text
        assert "ERROR   the run ends with an error\nTraceback" in text and "KeyError: 'an error'" in text


@needs_torch
def test_two_processes_train_as_one(write, multifit):
    """In float32, whose sums have another order."""
    task, folder = write(), Path("runs/two").resolve()
    every = "--checkpoint-every", "1epochs"
    assert multifit("train", task, "--output", "runs/one", *every).code == 0
    command = ["-m", "multifit", "train", str(task), "--output", str(folder), *every]
    job = launch("torch", 2, *command)
    assert job.code == 0, job.outputs
    assert "wrote" in job.outputs[0] and "wrote" not in job.outputs[1] and "epoch" not in job.outputs[1]
    one, two = (json.loads(Path(f"runs/{name}/history.json").read_text()) for name in ("one", "two"))
    for figure in ("train_loss", "val_place"):
        assert two[figure] == pytest.approx(one[figure], rel=1e-4)
    assert os.listdir(folder / "ranks") == ["rank-0001.log"]
    job = launch("torch", 2, *command, "--resume", "--epochs", "3")
    assert job.code == 0 and "resuming from" in job.outputs[0], job.outputs


@needs_torch
def test_an_error_of_one_process_ends_all(write):
    task = write("import os\nassert os.environ['RANK'] == '0', 'only here'\n")
    job = launch(
        "torch", 2, "-m", "multifit", "train", str(task), "--output", str(Path("runs/small").resolve())
    )
    assert job.code == 1
    assert "another process of the run has ended" in job.outputs[0], job.outputs
    assert "AssertionError: only here" in job.outputs[1] and "only here" in LOG.read_text()
