"""write_checkpoint, remove_checkpoint, and what a process killed at any point leaves."""

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
    Manifest,
    newest_checkpoint,
    read_manifest,
    remove_checkpoint,
    verify,
    write_checkpoint,
)
from multifit.checkpoints.atomic import recover
from multifit.checkpoints.manifest import encode_manifest
from multifit.checkpoints.temp_dirs import is_temp_name, temp_name

# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

NAME = "epoch-0001-step-00000010"


def filled(content: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "net.params").write_text(content)
        (folder / "trainers").mkdir()
        (folder / "trainers" / "adam.npz").write_text(content * 2)

    return fill


def written(parent: Path, content: str = "a", name: str = NAME, **facts: Any) -> Path:
    return write_checkpoint(parent, name, filled(content), facts)


def usable(parent: Path) -> str:
    """Return the content of the newest intact checkpoint; there must be one."""
    path, _ = newest_checkpoint(parent)
    assert path is not None
    return (path / "net.params").read_text()


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
    written(tmp_path, "a")
    assert usable(tmp_path) == "a"
    written(tmp_path, "b")
    assert usable(tmp_path) == "b"
    assert os.listdir(tmp_path) == [NAME]


def add_a_file(folder: Path) -> None:
    (folder / "mine.txt").write_text("precious")


def break_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")


def make_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


@pytest.mark.parametrize("change", [add_a_file, break_the_manifest, make_a_file])
def test_anything_else_of_that_name_is_renamed_not_removed(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    for content in "ab":
        change(written(tmp_path, content))
    written(tmp_path, "c")
    assert sorted(os.listdir(tmp_path)) == [NAME, f"{NAME}.old", f"{NAME}.old2"]
    assert usable(tmp_path) == "c"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), ValueError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [True, False])
def test_an_error_in_fill_leaves_nothing(tmp_path: Path, error: BaseException, before: bool) -> None:
    def fill(folder: Path) -> None:
        (folder / "net.params").write_text("half")
        raise error

    if before:
        written(tmp_path)
    with pytest.raises(type(error)):
        write_checkpoint(tmp_path, NAME, fill)
    assert os.listdir(tmp_path) == [NAME] * before
    assert not before or usable(tmp_path) == "a"


class Failing:
    """Calls a function; fails before its n-th call, or is interrupted after it."""

    def __init__(self, function: Callable[..., Any], n: int, after: bool) -> None:
        self.function, self.left, self.after = function, n, after

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise OSError(errno.ENOSPC, "No space left on device")
        result = self.function(*args)
        if self.left == 0:
            raise KeyboardInterrupt
        return result


# Two files and the manifest, two folders, then their parent; the old checkpoint, then the new one.
POINTS = [("fsync", n) for n in range(1, 7)] + [("replace", n) for n in (1, 2)]


@pytest.mark.parametrize(("function", "n"), POINTS)
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_at_any_point_leaves_one_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, n: int, after: bool
) -> None:
    written(tmp_path, "a", step=10)
    with monkeypatch.context() as patch:
        failing = Failing(getattr(os, function), n, after)
        patch.setattr(os, function, failing)
        with pytest.raises((OSError, KeyboardInterrupt)):
            written(tmp_path, "b", step=10)
        assert failing.left <= 0
    # "b" if it had its name already
    assert usable(tmp_path) == "a" or (function, n) in {("fsync", 6), ("replace", 2)}
    written(tmp_path, "c", step=11)
    assert usable(tmp_path) == "c"
    assert os.listdir(tmp_path) == [NAME]


def test_a_rename_that_cannot_be_undone_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "a")
    replace = os.replace
    calls: list[Any] = []

    def once(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) > 1:
            raise OSError(errno.EIO, "gone")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", once)
        with pytest.raises(OSError, match="gone"):
            written(tmp_path, "b")
    assert usable(tmp_path) == "a"
    assert is_temp_name(os.listdir(tmp_path)[0])
    written(tmp_path, "c", "another", step=1)
    assert sorted(os.listdir(tmp_path)) == ["another", NAME]  # a has its name again


@pytest.mark.parametrize(("code", "passes"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_that_cannot_flush_folders_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, passes: bool
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(os, "fsync", fsync)
    if passes:
        written(tmp_path)
    else:
        with pytest.raises(OSError, match="no"):
            written(tmp_path)
    assert os.listdir(tmp_path) == [NAME] * passes


def test_everything_is_flushed_before_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> None:
        order.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    written(tmp_path)
    shown = ["hidden" if is_temp_name(name) else name for name in order]
    assert sorted(shown[:5]) == ["adam.npz", "hidden", "manifest.json", "net.params", "trainers"]
    assert shown[5:] == ["replace", tmp_path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize(("function", "n"), [*POINTS, ("rmdir", 1), ("rmdir", 2), ("unlink", 2)])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_point_leaves_one_intact(tmp_path: Path, function: str, n: int, after: bool) -> None:
    """And the next checkpoint cleans up."""
    written(tmp_path, "a", step=10, serial=1)
    child = os.fork()
    if child == 0:
        real = getattr(os, function)
        left = [n]

        def killing(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, function, killing)
        try:
            written(tmp_path, "b", step=10, serial=2)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or function in ("rmdir", "unlink")  # shutil may use other functions
    assert usable(tmp_path) in "ab"
    assert newest_checkpoint(tmp_path)[1] == []
    before = usable(tmp_path)
    written(tmp_path, "c", "another", step=11, serial=3)
    assert sorted(os.listdir(tmp_path)) == ["another", NAME]
    assert (tmp_path / NAME / "net.params").read_text() == before
    assert verify(tmp_path / NAME) == []


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "."])
def test_an_invalid_name_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a checkpoint cannot be named"):
        written(tmp_path, name=name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"files": 1}, 'cannot have a fact "files"'),
        ({"value": float("nan")}, "not JSON compliant"),
        ({"value": float("inf")}, "not JSON compliant"),
    ],
)
def test_a_fact_that_cannot_be_saved_is_an_error(tmp_path: Path, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_checkpoint(tmp_path, NAME, filled("a"), facts)
    assert os.listdir(tmp_path) == []


def make_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")


def make_link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("fill", "what"),
    [(make_manifest, '"manifest.json"'), (make_link, '"link"'), (lambda folder: None, "nothing")],
)
def test_invalid_content_is_an_error(tmp_path: Path, fill: Callable[[Path], None], what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what} was written into the checkpoint"):
        write_checkpoint(tmp_path, NAME, fill)
    assert os.listdir(tmp_path) == []


def test_a_file_in_place_of_the_parent_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(OSError):
        written(tmp_path / "x")
    with pytest.raises(OSError):
        written(tmp_path / "x" / "checkpoints")


# ---- removing ----------------------------------------------------------------------------------------------


def test_a_checkpoint_is_removed(tmp_path: Path) -> None:
    path, other = written(tmp_path), written(tmp_path, name="other")
    remove_checkpoint(path)
    assert os.listdir(tmp_path) == ["other"]
    assert verify(other) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add_a_file, r"mine\.txt in it is not part of the checkpoint"),
        (break_the_manifest, r"it is not a checkpoint: manifest\.json is damaged"),
        (make_a_file, r"it is not a checkpoint: manifest\.json cannot be read: Not a directory"),
    ],
)
def test_what_is_not_removed(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    path = written(tmp_path)
    change(path)
    with pytest.raises(ValueError, match=f"{NAME} is not removed: {message}"):
        remove_checkpoint(path)
    assert os.listdir(tmp_path) == [NAME]


def test_a_failed_removal_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(os, "replace", Failing(os.replace, 1, after=False))
    with pytest.raises(OSError):
        remove_checkpoint(path)
    assert verify(path) == []


def test_a_half_removed_folder_is_not_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        remove_checkpoint(path)
    (left,) = tmp_path.iterdir()
    assert is_temp_name(left.name)
    assert verify(left) == ["manifest.json is missing"]
    assert newest_checkpoint(tmp_path) == (None, [])


def test_a_folder_that_cannot_be_removed_stays_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        remove_checkpoint(path)
    (left,) = tmp_path.iterdir()
    assert verify(left) == []


# ---- recovery ----------------------------------------------------------------------------------------------


def test_only_abandoned_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    def kill(process: int, number: int) -> None:
        assert number == 0
        raise PermissionError

    newest = written(tmp_path)
    other = tmp_path / temp_name().replace(f"-{os.getpid()}-", "-77-")
    other.mkdir()
    monkeypatch.setattr(os, "kill", kill)
    recover(tmp_path, newest)
    assert other.exists()


def test_a_folder_that_vanishes_during_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = written(tmp_path)
    gone = tmp_path / f".checkpoint-{'f' * 8}-1-{'0' * 16}"
    listing = [newest, gone]
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(listing))
    recover(tmp_path, newest)
    assert os.listdir(tmp_path) == [NAME]


def test_of_several_intact_ones_of_a_name_the_newest_gets_it(tmp_path: Path) -> None:
    newest = written(tmp_path, "c", "another")
    for serial, content in ((1, "a"), (3, "b"), (2, "c")):
        hidden = tmp_path.parent / temp_name()
        written(tmp_path, content, serial=serial).rename(hidden)
    for hidden in [path for path in tmp_path.parent.iterdir() if is_temp_name(path.name)]:
        hidden.rename(tmp_path / hidden.name)
    recover(tmp_path, newest)
    assert sorted(os.listdir(tmp_path)) == ["another", NAME]
    assert (tmp_path / NAME / "net.params").read_text() == "b"


def test_what_is_not_a_checkpoint_is_renamed_for_one(tmp_path: Path) -> None:
    newest = written(tmp_path, "c", "another")
    written(tmp_path, "a").rename(tmp_path / temp_name())
    (tmp_path / NAME).write_text("mine")
    recover(tmp_path, newest)
    assert (tmp_path / f"{NAME}.old").read_text() == "mine"
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
    newest = written(tmp_path, "c", "another")
    hidden = written(tmp_path, "a").rename(tmp_path / temp_name())
    monkeypatch.setattr(os, "replace", Failing(os.replace, 1, after=False))
    recover(tmp_path, newest)
    assert sorted(os.listdir(tmp_path)) == sorted(["another", hidden.name])
    recover(tmp_path, newest)
    assert sorted(os.listdir(tmp_path)) == ["another", NAME]
