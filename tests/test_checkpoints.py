"""Checkpoint folders: written completely or not at all; the newest intact one wins; old ones are deleted."""

import errno
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multifit.checkpoints import (
    CheckpointInfo,
    CheckpointStore,
    checkpoints_folder,
    list_checkpoints,
    newest_checkpoint,
    read_info,
    to_delete,
    verify,
    write_checkpoint,
)

# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

NAME = "epoch-0001-step-00000010"


def filled(content: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "net.params").write_text(content)
        (folder / "ranks").mkdir()
        (folder / "ranks" / "figures.npz").write_text(content * 2)

    return fill


def written(parent: Path, content: str = "a", name: str = NAME, **facts: Any) -> Path:
    return write_checkpoint(parent, name, filled(content), facts).path


def usable(parent: Path) -> str:
    """Return the content of the newest intact checkpoint; there must be one."""
    info, skipped = newest_checkpoint(parent)
    assert info is not None and skipped == []
    return (info.path / "net.params").read_text()


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise error

    return function


class Ending:
    """Calls a function; at its n-th call, before or after it, something else happens."""

    def __init__(self, function: Callable[..., Any], n: int, after: bool, end: Callable[[], Any]) -> None:
        self.function, self.left, self.after, self.end = function, n, after, end

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            self.end()
        result = self.function(*args, **options)
        if self.left == 0:
            self.end()
        return result


fail, interrupt = raising(OSError(errno.ENOSPC, "No space left on device")), raising(KeyboardInterrupt())


# ---- writing -----------------------------------------------------------------------------------------------


def test_the_manifest_and_files_of_a_checkpoint(tmp_path: Path) -> None:
    path = written(tmp_path / "x" / "checkpoints", step=10, note="Häkchen ✓", value=0.1)
    assert path == tmp_path / "x" / "checkpoints" / NAME
    info = read_info(path)
    assert info.facts == {"step": 10, "note": "Häkchen ✓", "value": 0.1} and verify(info) == []
    assert [*info.files] == ["net.params", "ranks/figures.npz"] and info.files["net.params"][0] == 1
    assert os.listdir(path.parent) == [NAME]


def test_a_checkpoint_of_that_name_is_replaced_and_what_a_killed_run_left_removed(tmp_path: Path) -> None:
    (tmp_path / ".incomplete").mkdir()
    (tmp_path / ".incomplete" / "net.params").write_text("half")
    for content in "ab":
        written(tmp_path, content)
        assert usable(tmp_path) == content
        assert os.listdir(tmp_path) == [NAME]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "net.params").write_text("half")
        raise KeyboardInterrupt

    for before in ([], [NAME]):
        with pytest.raises(KeyboardInterrupt):
            write_checkpoint(tmp_path, NAME, half, {})
        with pytest.raises(ValueError):
            write_checkpoint(tmp_path, NAME, filled("b"), {"value": float("nan")})
        assert os.listdir(tmp_path) == before
        written(tmp_path)
        assert usable(tmp_path) == "a"


# Two files, the manifest, two folders, then their parent; the old checkpoint, the new one, the old one again.
POINTS = [("fsync", n) for n in range(1, 7)] + [("replace", n) for n in (1, 2, 3)]
NAMED = {("fsync", 6), ("replace", 3)}  # here, and after the second replacement, the new one has its name


@pytest.mark.parametrize(("function", "n"), POINTS)
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_at_any_point_leaves_one_intact(tmp_path, monkeypatch, function, n, after):
    written(tmp_path, "a", step=10, run=1)
    with monkeypatch.context() as patch:
        failing = Ending(getattr(os, function), n, after, interrupt if after else fail)
        patch.setattr(os, function, failing)
        with pytest.raises((OSError, KeyboardInterrupt)):
            written(tmp_path, "b", step=10, run=2)
        assert failing.left <= 0
    is_named = (function, n) in NAMED or (function, n, after) == ("replace", 2, True)
    assert usable(tmp_path) == ("b" if is_named else "a")
    assert_cleaned_up(tmp_path)


def assert_cleaned_up(folder: Path) -> None:
    """Check that the next checkpoint is the only one."""
    written(folder, "c", step=11, run=3)
    assert usable(folder) == "c" and os.listdir(folder) == [NAME]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize(("function", "n"), [*POINTS, ("rmdir", 1), ("rmdir", 2), ("unlink", 2)])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_point_leaves_one_intact(tmp_path: Path, function: str, n: int, after: bool) -> None:
    written(tmp_path, "a", step=10, run=1)
    child = os.fork()
    if child == 0:
        killing = Ending(getattr(os, function), n, after, lambda: os.kill(os.getpid(), signal.SIGKILL))
        setattr(os, function, killing)
        try:
            written(tmp_path, "b", step=10, run=2)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or function in ("rmdir", "unlink")  # shutil may use other functions
    assert usable(tmp_path) in "ab"
    assert_cleaned_up(tmp_path)


@pytest.mark.parametrize(("code", "passes"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_that_cannot_flush_folders_is_accepted(tmp_path, monkeypatch, code, passes):
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
    assert sorted(order[:5]) == [".incomplete", "figures.npz", "manifest.json", "net.params", "ranks"]
    assert order[5:] == ["replace", tmp_path.name]


# ---- reading -----------------------------------------------------------------------------------------------


def assert_skipped(damaged: Path, problem: str) -> None:
    """The newest checkpoint is passed over with a line that names the problem."""
    info, (line,) = newest_checkpoint(damaged.parent)
    assert line.startswith(f"{damaged}: {problem}")
    assert info is not None and info.path != damaged


def damages(content: bytes) -> Iterator[bytes]:
    """Yield the content truncated at every length, then with each bit flipped."""
    yield from (content[:length] for length in range(len(content)))
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


@pytest.mark.parametrize("name", ["net.params", "ranks/figures.npz", "manifest.json"])
def test_a_damaged_or_missing_file_is_detected(tmp_path: Path, name: str) -> None:
    written(tmp_path, "content", "epoch-0001-step-00000009", step=9)
    newest = written(tmp_path, "content", step=10)
    content = (newest / name).read_bytes()
    for damaged in random.Random(0).choices([*damages(content)], k=100):
        (newest / name).write_bytes(damaged)
        assert_skipped(newest, name)
    (newest / name).unlink()
    assert_skipped(newest, f"{name} is missing")
    (newest / name).mkdir()
    assert_skipped(newest, name)
    (newest / name).rmdir()
    (newest / name).write_bytes(content)
    assert newest_checkpoint(tmp_path) == (read_info(newest), [])


def test_a_manifest_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    (path / "manifest.json").write_text("[]")
    assert newest_checkpoint(tmp_path)[1][0].startswith(f"{path}: manifest.json is damaged")
    monkeypatch.setattr("multifit.checkpoints.VERSION", 9)  # as another version writes it
    written(tmp_path)
    monkeypatch.undo()
    info, (line,) = newest_checkpoint(tmp_path)
    assert info is None
    assert line.startswith(f"{path}: manifest.json has format version 9, and this multifit reads 1")


def test_a_file_that_the_disk_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setattr("multifit.checkpoints.sha256", raising(OSError(errno.EIO, "Input/output error")))
    problems = [f"{name} cannot be read: Input/output error" for name in ("net.params", "ranks/figures.npz")]
    assert newest_checkpoint(tmp_path)[1] == [f"{path}: {'; '.join(problems)}"]


def test_where_checkpoints_are_looked_for(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "nothing") == (None, [])
    folder = checkpoints_folder(tmp_path)
    assert folder == checkpoints_folder(folder) == tmp_path / "checkpoints"
    path = written(folder)
    (tmp_path / "epoch-1").mkdir()  # not a checkpoint, and not in the folder of checkpoints
    for place in (tmp_path, folder, path):
        assert newest_checkpoint(place) == (read_info(path), [])
    shutil.copytree(path, tmp_path / "copy")
    assert usable(tmp_path / "copy") == "a"


def test_a_later_run_is_newer_then_a_later_step_then_a_complete_epoch(tmp_path: Path) -> None:
    facts = [(1, 200, True), (2, 5, True), (2, 6, False), (2, 6, True)]
    for number, (run, step, complete) in enumerate(facts):
        written(tmp_path, name=f"epoch-{number}", run=run, step=step, complete=complete)
    (written(tmp_path, name="epoch-9") / "manifest.json").unlink()
    assert [info.order for info in list_checkpoints(tmp_path)] == facts


# ---- deleting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "best", "values", "kept"),
    [
        (2, 0, [3, 1, 2], [2, 3]), (1, 2, [3, 1, 2, 4], [2, 3, 4]), (1, 1, [1, 1, 2], [1, 3]),
        (1, 2, [None, 1, None, None], [2, 4]), (9, 9, [1, 2], [1, 2]),
    ],
)  # fmt: skip
def test_what_is_kept(last: int, best: int, values: list[Any], kept: list[int]) -> None:
    def infos(sign: int) -> list[CheckpointInfo]:
        facts = [{} if value is None else {"m": sign * value} for value in values]
        return [CheckpointInfo(Path(str(n)), {}, {"step": n, "values": v}) for n, v in enumerate(facts, 1)]

    newest = list(range(1, len(values) + 1))[-last:]
    for sign, modes, expected in ((1, {"m": "min"}, kept), (-1, {"m": "max"}, kept), (1, {}, newest)):
        deleted = to_delete(infos(sign), last, best, modes)
        assert [info.step for info in infos(sign) if info not in deleted] == expected


def put(store: CheckpointStore, step: int, **values: float) -> Path:
    path = store.write(f"epoch-0001-step-{step:08d}", filled("x"), {"step": step, "values": values})
    store.delete_old({"m": "min"})
    return path


def steps(folder: Path) -> list[int]:
    return sorted(int(name[-8:]) for name in os.listdir(folder))


def test_a_store_keeps_the_last_and_the_best_of_each_figure(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2, 1)
    for step, value in enumerate([3, 1, 2, 4, 5], 1):
        put(store, step, m=value, other=-value)
    assert steps(tmp_path) == [2, 4, 5] and store.latest_step() == 5


def test_checkpoints_of_an_earlier_run_are_older_even_if_it_trained_longer(tmp_path: Path) -> None:
    for number, written_steps in enumerate([(100, 200), (1, 2), (2, 200)]):
        store = CheckpointStore(tmp_path, 2, 0)
        store.begin_run()
        assert store.latest_step() == (0, 200, 2)[number]
        for step in written_steps:
            put(store, step)
        assert steps(tmp_path) == list(written_steps)
        assert newest_checkpoint(tmp_path)[0].step == written_steps[-1]


def test_damaged_ones_neither_count_nor_are_deleted(tmp_path: Path) -> None:
    earlier = CheckpointStore(tmp_path, 9, 0)
    paths = [put(earlier, step) for step in range(1, 6)]
    for path in (paths[0], paths[4]):
        (path / "net.params").write_text("")
    shutil.rmtree(paths[1])
    store = CheckpointStore(tmp_path, 2, 0)
    store.begin_run()
    shutil.rmtree(paths[2])  # by somebody else, meanwhile
    put(store, 6)
    assert steps(tmp_path) == [1, 4, 5, 6]
