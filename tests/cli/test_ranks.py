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


def test_the_first_rank_shows_and_writes(capsys):
    with first_shows(ALONE, Path("runs/small")) as folder:
        print("shown")
    assert folder == Path("runs/small") and capsys.readouterr().out == "shown\n"


@pytest.mark.parametrize("writable", [True, False])
def test_the_others_write_a_log_only(write, capsys, writable):
    write()
    if not writable:
        Path("runs").write_text("not a folder")
    before = list(get_logger().handlers)
    with pytest.raises(KeyError), first_shows(SECOND, Path("runs/small")) as folder:
        print("lost")
        get_logger().getChild("rank-1").info("not shown")
        (folder / "final.params").write_text("")
        raise KeyError("an error")
    assert not folder.exists() and get_logger().handlers == before
    assert capsys.readouterr() == ("", "")
    if writable:
        text = LOG.read_text()
        assert "INFO    rank 1 of 2: " in text and "INFO    not shown" in text
        assert "ERROR   the run ends with an error\nTraceback" in text and "KeyError: 'an error'" in text


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--distributed", "torch"], "no launcher started this one: torchrun --nproc-per-node 2 -m multifit"),
        (["--timeout", "0"], "multifit: --timeout is 0.0; valid is"),
    ],
)
def test_what_cannot_be_connected_is_an_error_of_usage(write, multifit, arguments, message):
    result = multifit("train", write(), *arguments)
    assert result.code == 2 and message in result.err


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_two_processes_train_as_one(write, multifit):
    """In float32, whose sums have another order."""
    task = Path(write()).resolve()
    every = "--checkpoint-every", "1epochs"
    assert multifit("train", task, "--output", "runs/one", *every).code == 0
    folder = str(Path("runs/two").resolve())
    command = ["-m", "multifit", "train", str(task), "--output", folder, *every]
    job = launch("torch", 2, *command)
    assert job.code == 0, job.outputs
    assert "wrote" in job.outputs[0] and "wrote" not in job.outputs[1] and "epoch" not in job.outputs[1]
    one, two = (json.loads(Path(f"runs/{name}/history.json").read_text()) for name in ("one", "two"))
    assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
    assert two["val_place"] == pytest.approx(one["val_place"], rel=1e-4)
    assert os.listdir("runs/two/ranks") == ["rank-0001.log"]
    job = launch("torch", 2, *command, "--resume", "--epochs", "3")
    assert job.code == 0 and "resuming from" in job.outputs[0], job.outputs


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_an_error_of_one_process_ends_all(write):
    task = Path(write("import os\nassert os.environ['RANK'] == '0', 'only here'\n")).resolve()
    folder = str(Path("runs/small").resolve())
    job = launch("torch", 2, "-m", "multifit", "train", str(task), "--output", folder)
    assert job.code == 1
    assert "another process of the run has ended" in job.outputs[0], job.outputs
    assert "AssertionError: only here" in job.outputs[1]
    assert "only here" in LOG.read_text()
