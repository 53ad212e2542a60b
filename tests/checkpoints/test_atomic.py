"""write_checkpoint, and what a process that fails or is killed at any point leaves."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from multifit.checkpoints import (
    newest_checkpoint,
    read_manifest,
    remove_checkpoint,
    verify,
    write_checkpoint,
)
from multifit.checkpoints.temp_dirs import is_temp_name

from .samples import NAME, Ending, fail, filled, interrupt, raising, usable, written

# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_the_manifest_and_files_of_a_checkpoint(tmp_path: Path) -> None:
    path = written(tmp_path / "x" / "checkpoints", step=10, note="Häkchen ✓", value=0.1)
    assert path == tmp_path / "x" / "checkpoints" / NAME
    assert verify(path) == []
    manifest = json.loads((path / "manifest.json").read_text("ascii"))
    assert manifest["version"] == 2
    assert manifest["files"]["net.params"]["size"] == 1
    assert list(manifest["files"]) == ["net.params", "trainers/adam.npz"]
    assert read_manifest(path).facts == {"step": 10, "note": "Häkchen ✓", "value": 0.1}
    assert os.listdir(path.parent) == [NAME]


def test_a_checkpoint_of_that_name_is_replaced(tmp_path: Path) -> None:
    for content in "ab":
        written(tmp_path, content)
        assert usable(tmp_path) == content
        assert os.listdir(tmp_path) == [NAME]


def test_a_link_to_a_folder_that_is_gone_is_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(Path("..", "scratch", "of-run"))
    assert verify(written(tmp_path / "run" / "checkpoints")) == []
    assert os.listdir(tmp_path / "scratch" / "of-run") == [NAME]


def add_a_file(folder: Path) -> None:
    (folder / "mine.txt").write_text("precious")


def break_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")


def make_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


FOREIGN = [
    (add_a_file, r"mine\.txt in it is not part of the checkpoint"),
    (break_the_manifest, r"it is not a checkpoint: manifest\.json is damaged"),
    (make_a_file, r"it is not a checkpoint: manifest\.json cannot be read: Not a directory"),
]


@pytest.mark.parametrize(("change", "why"), FOREIGN)
def test_anything_else_of_that_name_is_renamed_and_never_removed(
    tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    for content in "ab":
        change(written(tmp_path, content))
        with pytest.raises(ValueError, match=f"{NAME} is not removed: {why}"):
            remove_checkpoint(tmp_path / NAME)
        assert NAME in os.listdir(tmp_path)
    written(tmp_path, "c")
    assert sorted(os.listdir(tmp_path)) == [NAME, f"{NAME}.old", f"{NAME}.old2"]
    assert usable(tmp_path) == "c"


def half(error: BaseException) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "net.params").write_text("half")
        raise error

    return fill


def link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/hostname")


NAMED, WRITTEN = "a checkpoint cannot be named", "was written into the checkpoint"
REFUSED: list[tuple[str, Any, Any, Any, str]] = [
    *[(name, filled("b"), {}, ValueError, NAMED) for name in ("", ".hidden", "a/b", "..", ".")],
    (NAME, filled("b"), {"files": 1}, ValueError, 'cannot have a fact "files"'),
    (NAME, filled("b"), {"value": float("nan")}, ValueError, "not JSON compliant"),
    (NAME, filled("b"), {"value": float("inf")}, ValueError, "not JSON compliant"),
    (NAME, break_the_manifest, {}, ValueError, f'^"manifest.json" {WRITTEN}'),
    (NAME, link, {}, ValueError, f'^"link" {WRITTEN}'),
    (NAME, lambda folder: None, {}, ValueError, f"^nothing {WRITTEN}"),
    (NAME, half(OSError(errno.ENOSPC, "full")), {}, OSError, "full"),
    (NAME, half(ValueError("no")), {}, ValueError, "no"),
    (NAME, half(KeyboardInterrupt("stop")), {}, KeyboardInterrupt, "stop"),
]


@pytest.mark.parametrize(("name", "fill", "facts", "error", "text"), REFUSED)
def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, name: str, fill: Any, facts: Any, error: Any, text: str
) -> None:
    for before in ([], [NAME]):
        with pytest.raises(error, match=text):
            write_checkpoint(tmp_path, name, fill, facts)
        assert os.listdir(tmp_path) == before
        written(tmp_path)
        assert usable(tmp_path) == "a"


def test_a_file_in_place_of_the_parent_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    for parent in (tmp_path / "x", tmp_path / "x" / "checkpoints"):
        with pytest.raises(OSError):
            written(parent)


# Two files and the manifest, two folders, then their parent; the old checkpoint, then the new one.
POINTS = [("fsync", n) for n in range(1, 7)] + [("replace", n) for n in (1, 2)]


@pytest.mark.parametrize(("function", "n"), POINTS)
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_at_any_point_leaves_one_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, n: int, after: bool
) -> None:
    written(tmp_path, "a", step=10)
    with monkeypatch.context() as patch:
        failing = Ending(getattr(os, function), n, after, interrupt if after else fail)
        patch.setattr(os, function, failing)
        with pytest.raises((OSError, KeyboardInterrupt)):
            written(tmp_path, "b", step=10)
        assert failing.left <= 0
    # "b" if it had its name already
    assert usable(tmp_path) == "a" or (function, n) in {("fsync", 6), ("replace", 2)}
    written(tmp_path, "c", step=11)
    assert usable(tmp_path) == "c"
    assert os.listdir(tmp_path) == [NAME]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize(("function", "n"), [*POINTS, ("rmdir", 1), ("rmdir", 2), ("unlink", 2)])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_point_leaves_one_intact(tmp_path: Path, function: str, n: int, after: bool) -> None:
    """And the next checkpoint cleans up."""
    written(tmp_path, "a", step=10, serial=1)
    child = os.fork()
    if child == 0:
        killing = Ending(getattr(os, function), n, after, lambda: os.kill(os.getpid(), signal.SIGKILL))
        setattr(os, function, killing)
        try:
            written(tmp_path, "b", step=10, serial=2)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or function in ("rmdir", "unlink")  # shutil may use other functions
    before = usable(tmp_path)
    assert before in "ab" and newest_checkpoint(tmp_path)[1] == []
    written(tmp_path, "c", "another", step=11, serial=3)
    assert sorted(os.listdir(tmp_path)) == ["another", NAME]
    assert (tmp_path / NAME / "net.params").read_text() == before
    assert verify(tmp_path / NAME) == []


def test_a_rename_that_cannot_be_undone_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "a")
    replace, answers = os.replace, iter([os.replace])
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "replace", lambda *paths: next(answers, raising(OSError(errno.EIO, "gone")))(*paths)
        )
        with pytest.raises(OSError, match="gone"):
            written(tmp_path, "b")
    assert os.replace is replace and usable(tmp_path) == "a"
    assert is_temp_name(os.listdir(tmp_path)[0])
    written(tmp_path, "c", "another", step=1)
    assert sorted(os.listdir(tmp_path)) == ["another", NAME]  # a has its name again


@pytest.mark.parametrize(("code", "passes"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_that_cannot_flush_folders_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, passes: bool
) -> None:
    monkeypatch.setattr(os, "fsync", raising(OSError(code, "no")))
    try:
        written(tmp_path)
    except OSError:
        assert not passes
    assert os.listdir(tmp_path) == [NAME] * passes


def test_everything_is_flushed_before_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace = os.replace

    def watched_fsync(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def watched_replace(source: Path, target: Path) -> None:
        order.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    written(tmp_path)
    shown = ["hidden" if is_temp_name(name) else name for name in order]
    assert sorted(shown[:5]) == ["adam.npz", "hidden", "manifest.json", "net.params", "trainers"]
    assert shown[5:] == ["replace", tmp_path.name]
