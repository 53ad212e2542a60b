"""remove_checkpoint, and cleaning up what killed processes left."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from multifit.checkpoints import (
    Manifest,
    newest_checkpoint,
    remove_checkpoint,
    verify,
)
from multifit.checkpoints.atomic import recover
from multifit.checkpoints.manifest import encode_manifest
from multifit.checkpoints.temp_dirs import is_temp_name, temp_name

from .samples import NAME, Ending, fail, raising, written

# ---- removing ----------------------------------------------------------------------------------------------


def test_a_checkpoint_is_removed(tmp_path: Path) -> None:
    path, other = written(tmp_path), written(tmp_path, name="other")
    remove_checkpoint(path)
    assert os.listdir(tmp_path) == ["other"]
    assert verify(other) == []


# what fails meanwhile, the error, and what the folder that is left lacks
HALF_REMOVED = [
    (os, "replace", fail, OSError, []),
    (shutil, "rmtree", lambda *args, **options: None, None, ["manifest.json is missing"]),
    (Path, "unlink", raising(PermissionError(errno.EACCES, "no")), None, []),
]


@pytest.mark.parametrize(("owner", "name", "function", "error", "lacks"), HALF_REMOVED)
def test_what_is_not_removed_completely_is_intact_or_no_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    function: Any,
    error: Any,
    lacks: Any,
) -> None:
    path = written(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, function)
        try:
            remove_checkpoint(path)
        except OSError as caught:
            assert type(caught) is error
    (left,) = tmp_path.iterdir()
    assert verify(left) == lacks and is_temp_name(left.name) == (error is None)
    assert newest_checkpoint(tmp_path) == (None if lacks else left, [])


# ---- recovery ----------------------------------------------------------------------------------------------


def test_only_abandoned_folders_are_removed(tmp_path: Path) -> None:
    newest = written(tmp_path)
    now = newest.stat().st_mtime
    machine = temp_name().split("-")[1]
    names = {
        "ours": temp_name(),
        "alive": f".checkpoint-{machine}-{os.getppid()}-{'0' * 16}",
        "dead": f".checkpoint-{machine}-{2**22 + 1}-{'0' * 16}",  # Linux has no greater number than 2 ** 22
        "no process": f".checkpoint-{machine}-{2**70}-{'0' * 16}",
        "elsewhere, new": f".checkpoint-{'f' * 8}-1-{'0' * 16}",
        "elsewhere, old": f".checkpoint-{'f' * 8}-1-{'1' * 16}",
        "somebody's": ".mine",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
    os.utime(tmp_path / names["elsewhere, new"], (now, now - 86000))
    os.utime(tmp_path / names["elsewhere, old"], (now, now - 87000))
    recover(tmp_path, newest)
    left = {key for key, name in names.items() if (tmp_path / name).exists()}
    assert left == {"alive", "elsewhere, new", "somebody's"}


def test_another_users_process_counts_as_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = written(tmp_path)
    other = tmp_path / temp_name().replace(f"-{os.getpid()}-", "-1-")
    other.mkdir()
    monkeypatch.setattr(os, "kill", raising(PermissionError()))
    recover(tmp_path, newest)
    assert other.exists()


def test_a_folder_that_vanishes_during_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = written(tmp_path)
    gone = tmp_path / f".checkpoint-{'f' * 8}-1-{'0' * 16}"
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([newest, gone]))
    recover(tmp_path, newest)
    assert os.listdir(tmp_path) == [NAME]


def abandoned(parent: Path, content: str, serial: int = 1) -> Path:
    """Return an intact checkpoint under a temporary name, as a kill leaves it."""
    outside = written(parent / "outside", content, serial=serial).rename(parent / temp_name())
    (parent / "outside").rmdir()
    return outside


@pytest.mark.parametrize("serials", [(1,), (1, 3, 2)])
def test_of_several_intact_ones_of_a_name_the_newest_gets_it(tmp_path: Path, serials: Any) -> None:
    newest = written(tmp_path, "c", "another")
    (tmp_path / NAME).write_text("mine")  # is no checkpoint, and is renamed for one
    for serial in serials:
        abandoned(tmp_path, f"of {serial}", serial)
    recover(tmp_path, newest)
    assert sorted(os.listdir(tmp_path)) == ["another", NAME, f"{NAME}.old"]
    assert (tmp_path / f"{NAME}.old").read_text() == "mine"
    assert (tmp_path / NAME / "net.params").read_text() == f"of {max(serials)}"
    assert verify(tmp_path / NAME) == []


def test_a_manifest_whose_name_is_outside_the_folder(tmp_path: Path) -> None:
    newest = written(tmp_path / "x", "c", "another")
    path = tmp_path / "x" / temp_name()
    path.mkdir()
    (path / "manifest.json").write_bytes(encode_manifest(Manifest("../evil", {})))
    assert verify(path) == []
    recover(tmp_path / "x", newest)
    assert os.listdir(tmp_path) == ["x"]
    assert os.listdir(tmp_path / "x") == ["another"]


def test_a_name_that_cannot_be_restored_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, hidden = written(tmp_path, "c", "another"), abandoned(tmp_path, "a")
    monkeypatch.setattr(os, "replace", Ending(os.replace, 1, False, fail))
    for names in (["another", hidden.name], ["another", NAME]):
        try:
            recover(tmp_path, newest)
        finally:
            assert sorted(os.listdir(tmp_path)) == sorted(names)
