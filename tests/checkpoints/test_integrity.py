"""verify and read_manifest: every way in which a checkpoint can be damaged is detected and named."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from multifit.checkpoints import NewerFormatError, newest_checkpoint, verify, write_checkpoint
from multifit.checkpoints.manifest import parse_manifest

FILES = {"net.params": b"\x00\x01\x02parameters", "run.json": b'{"step": 3}', "trainers/adam.npz": b"mean"}
HASH = "multifit.checkpoints.integrity.file_hash"


def fill(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, "epoch-0001-step-00000003", fill, {"step": 3, "serial": 1})


@pytest.fixture
def checkpoint(tmp_path: Path, older: Path) -> Path:
    facts = {"step": 4, "serial": 2, "value": 1e-05}
    return write_checkpoint(tmp_path, "epoch-0001-step-00000004", fill, facts)


def assert_skipped(checkpoint: Path, older: Path, problem: str) -> None:
    (line,) = verify(checkpoint)
    assert line.startswith(problem)
    assert newest_checkpoint(checkpoint.parent) == (older, [f"{checkpoint}: {line}"])


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield the content truncated at every length, then with each bit flipped."""
    yield from (content[:length] for length in range(len(content)))
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


@pytest.mark.parametrize("name", ["run.json", "trainers/adam.npz"])
def test_a_truncated_file_and_each_flipped_bit_are_detected(checkpoint: Path, older: Path, name: str) -> None:
    for content in damaged(FILES[name]):
        (checkpoint / name).write_bytes(content)
        assert_skipped(checkpoint, older, f"{name} ")
    (checkpoint / name).write_bytes(FILES[name])
    assert newest_checkpoint(checkpoint.parent) == (checkpoint, [])


def test_a_truncated_manifest_and_each_flipped_bit_are_detected(checkpoint: Path) -> None:
    """Also a bit that makes it look like a newer format: that would stop a resume."""
    content = (checkpoint / "manifest.json").read_bytes()
    assert parse_manifest(content).name == checkpoint.name
    for data in damaged(content):
        with pytest.raises(ValueError, match=r"^manifest\.json ") as caught:
            parse_manifest(data)
        assert not isinstance(caught.value, NewerFormatError)


@pytest.mark.parametrize("change", [bytes.upper, lambda data: data + b" ", lambda data: b" " + data])
def test_a_manifest_in_another_notation_is_damaged(
    checkpoint: Path, older: Path, change: Callable[[bytes], bytes]
) -> None:
    path = checkpoint / "manifest.json"
    path.write_bytes(change(path.read_bytes()))
    assert_skipped(checkpoint, older, "manifest.json")


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_missing_file(checkpoint: Path, older: Path, name: str) -> None:
    (checkpoint / name).unlink()
    assert_skipped(checkpoint, older, f"{name} is missing")


@pytest.mark.parametrize("name", FILES)
def test_a_link_is_not_a_file(checkpoint: Path, older: Path, tmp_path: Path, name: str) -> None:
    (checkpoint / name).rename(tmp_path / "elsewhere")
    (checkpoint / name).symlink_to(tmp_path / "elsewhere")
    assert_skipped(checkpoint, older, f"{name} is a link or a device;")


@pytest.mark.parametrize(
    ("name", "problem"),
    [("run.json", "is a link or a device;"), ("manifest.json", "cannot be read: it is not a regular file")],
)
def test_a_pipe_is_not_waited_for(checkpoint: Path, older: Path, name: str, problem: str) -> None:
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    assert_skipped(checkpoint, older, f"{name} {problem}")


@pytest.mark.parametrize("name", ["order.json", "losses.params", "ranks/figures.npz", "engine.JSON"])
def test_an_added_file_that_could_be_read(checkpoint: Path, older: Path, name: str) -> None:
    """Copied over another checkpoint, for example; not every file system tells upper from lower case."""
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_text("")
    assert_skipped(checkpoint, older, f"{name} is not part of the")


@pytest.mark.parametrize(
    "name",
    [".DS_Store", "Thumbs.db", "trainers/desktop.ini", "._net.params", ".sync/state.json", "new/notes.txt"],
)
def test_any_other_added_file_is_ignored(checkpoint: Path, older: Path, name: str) -> None:
    """File managers leave some of them."""
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_text("")
    assert newest_checkpoint(checkpoint.parent) == (checkpoint, [])


def test_a_linked_folder_is_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "trainers").rename(tmp_path / "trainers")
    (checkpoint / "trainers").symlink_to(tmp_path / "trainers")
    link, missing = verify(checkpoint)
    assert link.startswith("trainers is a link or a device")
    assert missing == "trainers/adam.npz is missing"


def test_a_file_that_cannot_be_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(HASH, refuse)
    assert verify(checkpoint)[0] == "net.params cannot be read: Permission denied"


def test_all_problems_are_found_and_the_first_three_shown(checkpoint: Path, older: Path) -> None:
    for name in FILES:
        (checkpoint / name).write_text("")
    (checkpoint / "x.json").write_text("")
    assert len(verify(checkpoint)) == 4
    path, (line,) = newest_checkpoint(checkpoint.parent)
    assert path == older
    assert line.count(" bytes instead of ") == 3
    assert line.endswith("; and 1 more")


# ---- forged manifests, whose hash is right -----------------------------------------------------------------


def forge(folder: Path, **changes: Any) -> None:
    content = {"version": 2, "name": folder.name, "files": {}, **changes}
    text = json.dumps(content, indent=1) + "\n"
    content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content, indent=1) + "\n")


def nested(levels: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(levels):
        inner = [inner]
    return inner


def test_a_forged_manifest_can_be_valid(tmp_path: Path) -> None:
    forge(tmp_path)
    assert verify(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "a/../../secret", "..", "./net.params", "a//b", ""]
)
def test_a_path_outside_the_folder_is_never_opened(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "c").mkdir()
    forge(tmp_path / "c", files={name: {"size": 1, "sha256": hashlib.sha256(b"s").hexdigest()}})

    def never(path: Path) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(HASH, never)
    assert verify(tmp_path / "c") == [f"{name} is outside the checkpoint's folder"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": 99}, "manifest.json has format version 99, and this multifit reads 2"),
        ({"version": 0}, "manifest.json has format version 0, and this multifit reads 2"),
        ({"version": True}, "manifest.json has format version True, and"),
        ({"version": None}, "manifest.json has format version None, and"),
        ({"files": []}, 'manifest.json has no valid "name" and "files"'),
        ({"name": 3}, 'manifest.json has no valid "name" and "files"'),
        ({"files": {"x": 3}}, "x has neither size nor hash in manifest.json"),
        ({"files": {"x": {}}}, "x has 1 bytes instead of None"),
        ({"files": {"x": {"size": 1}}}, "x is damaged: its hash does not match"),
        ({"step": float("nan")}, "manifest.json is not valid JSON: the number NaN is not finite"),
        ({"value": 10**400}, "manifest.json is not valid JSON: the number 1000"),
        ({"deep": nested(400)}, "manifest.json is not valid JSON: it nests lists or objects more than"),
    ],
)
def test_an_invalid_manifest(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    if isinstance(changes.get("files"), dict):
        (tmp_path / "x").write_text("1")
    forge(tmp_path, **changes)
    (line,) = verify(tmp_path)
    assert line.startswith(problem)


def test_a_newer_format_is_refused_and_not_skipped(checkpoint: Path, older: Path) -> None:
    """An older checkpoint beside it would not continue the run that wrote it."""
    forge(checkpoint, version=99, files="anything")
    with pytest.raises(NewerFormatError) as caught:
        newest_checkpoint(checkpoint.parent)
    assert str(caught.value).startswith(f"{checkpoint}: manifest.json has format version 99, and")
    assert "resume with that version, or give another folder" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "manifest.json is not valid JSON: "),
        (b"\xff\xfe\x00", "manifest.json is not valid JSON: "),
        (b"[" * 100_000, "manifest.json is not valid JSON: "),
        (b"1" * 10_000, "manifest.json "),
        (b"[1]", "manifest.json holds a JSON list; valid is an object"),
        (b"{}", "manifest.json is damaged"),
    ],
)
def test_a_file_that_is_not_a_manifest(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    (line,) = verify(tmp_path)
    assert line.startswith(problem)


def test_a_folder_in_place_of_the_manifest_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    assert verify(tmp_path) == ["manifest.json cannot be read: Is a directory"]
    assert verify(tmp_path / "x") == ["x is not a folder"]
