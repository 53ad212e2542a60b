"""Damaged checkpoints are passed over and named, forged ones refused."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from multifit import Every
from multifit.checkpoints import read_info, write_checkpoint

from .resume_runs import Run, simple_run, unequal


def crashed_run(folder: Path) -> tuple[Run, Path]:
    """Return a run of one epoch that crashed after four of its five batches, and its newest checkpoint."""
    run = simple_run(folder, Every(1, "batch"), rate=0.01)
    run.crash(4, epochs=1)
    return run, folder / "checkpoints" / "epoch-0001-step-00000004"


@pytest.mark.parametrize("name", ["net.params", "manifest.json"])
def test_a_damaged_checkpoint_is_skipped_and_all_are_named_if_none_is_intact(tmp_path, log, name):
    run, newest = crashed_run(tmp_path / "run")
    damaged = newest / name
    damaged.write_bytes(damaged.read_bytes()[:-1])
    shutil.copytree(run.folder, tmp_path / "copy")
    run.resume(epochs=1)
    whole = replace(run, folder=tmp_path / "whole")
    whole.fit(epochs=1)
    assert unequal(run.end(), whole.end()) == []
    assert any(line.startswith(f"skipped: {newest}: {name} ") for line in log())
    assert not any("holds checkpoints of another run" in line for line in log())
    assert "resuming from epoch-0001-step-00000003: epoch 1, batch 4" in log()
    run.folder = tmp_path / "copy"
    older, newest = sorted((run.folder / "checkpoints").iterdir())
    (older / "manifest.json").unlink()
    with pytest.raises(ValueError) as caught:
        run.resume(epochs=1)
    message = str(caught.value)
    assert f"{older}: manifest.json is missing" in message and f"{newest}: {name} " in message


def test_content_that_multifit_would_not_write_is_an_error(tmp_path: Path) -> None:
    """The hashes are right: anybody can compute them."""
    run, newest = crashed_run(tmp_path / "run")
    for name in ("figures", "identity", "order", "random", "run", "trainers"):
        before = read_info(newest)
        copy = tmp_path / f"copy with {name}"
        shutil.copytree(newest, copy)

        def changed(folder: Path, name: str = name, copy: Path = copy) -> None:
            shutil.copytree(copy, folder, dirs_exist_ok=True)
            (folder / "manifest.json").unlink()
            (folder / f"{name}.json").write_text('{"arrays": 0, "tree": {"dict": []}}')

        write_checkpoint(newest.parent, newest.name, changed, before.facts)
        with pytest.raises(ValueError, match=re.escape(str(newest))):
            run.resume(epochs=1)
        shutil.rmtree(newest)
        shutil.copytree(copy, newest)
