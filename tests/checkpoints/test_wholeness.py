"""Every way in which a checkpoint can be damaged is seen, and named."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from multifit.checkpoints import newest_whole, problems, read_manifest, write_checkpoint

FILES = {
    "net.params": b"\x00\x01\x02parameters",
    "run.json": b'{"step": 3}',
    "trainers/adam.npz": b"mean, var",
}


def fill(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, "epoch-0001-step-00000003", fill, {"step": 3, "serial": 1})


@pytest.fixture
def checkpoint(tmp_path: Path, older: Path) -> Path:
    return write_checkpoint(
        tmp_path, "epoch-0001-step-00000004", fill, {"step": 4, "serial": 2, "value": 1e-05}
    )


def assert_passed_over(checkpoint: Path, older: Path, name: str) -> None:
    found = problems(checkpoint)
    assert len(found) == 1
    assert found[0].startswith(f"{name} ")
    path, (line,) = newest_whole(checkpoint.parent)
    assert path == older
    assert line == f"{checkpoint}: {found[0]}"


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_truncated_at_every_length(checkpoint: Path, older: Path, name: str) -> None:
    whole = (checkpoint / name).read_bytes()
    for length in range(len(whole)):
        (checkpoint / name).write_bytes(whole[:length])
        assert_passed_over(checkpoint, older, name)
    (checkpoint / name).write_bytes(whole)
    assert newest_whole(checkpoint.parent) == (checkpoint, [])


@pytest.mark.parametrize("name", FILES)
def test_each_bit_flipped(checkpoint: Path, older: Path, name: str) -> None:
    whole = (checkpoint / name).read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (checkpoint / name).write_bytes(flipped)
        assert_passed_over(checkpoint, older, name)


def test_each_bit_of_the_manifest_flipped(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"^manifest\.json "):
            read_manifest(checkpoint)


@pytest.mark.parametrize("change", [bytes.upper, lambda data: data + b" ", lambda data: b" " + data])
def test_a_manifest_that_means_the_same_is_not_the_same(checkpoint: Path, change: Any) -> None:
    path = checkpoint / "manifest.json"
    path.write_bytes(change(path.read_bytes()))
    assert len(problems(checkpoint)) == 1


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_removed(checkpoint: Path, older: Path, name: str) -> None:
    (checkpoint / name).unlink()
    assert_passed_over(checkpoint, older, name)
    assert problems(checkpoint) == [f"{name} is missing"]


@pytest.mark.parametrize("name", FILES)
def test_replaced_by_a_link_to_itself(checkpoint: Path, older: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (checkpoint / name).rename(elsewhere)
    (checkpoint / name).symlink_to(elsewhere)
    assert_passed_over(checkpoint, older, name)
    assert problems(checkpoint) == [f"{name} is a link or a device; valid are files"]


def test_a_pipe_is_not_waited_for(checkpoint: Path, older: Path) -> None:
    (checkpoint / "run.json").unlink()
    os.mkfifo(checkpoint / "run.json")
    assert_passed_over(checkpoint, older, "run.json")


@pytest.mark.parametrize("name", ["notes.txt", "deeper/notes.txt"])
def test_added(checkpoint: Path, older: Path, name: str) -> None:
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_text("")
    assert_passed_over(checkpoint, older, name)


def test_a_folder_of_links(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "trainers").rename(tmp_path / "trainers")
    (checkpoint / "trainers").symlink_to(tmp_path / "trainers")
    assert problems(checkpoint) == [
        "trainers is a link or a device; valid are files",
        "trainers/adam.npz is missing",
    ]


def test_a_file_that_cannot_be_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("multifit.checkpoints.wholeness.fingerprint", refuse)
    assert problems(checkpoint)[0] == "net.params cannot be read: Permission denied"


def test_all_problems_are_told(checkpoint: Path, older: Path) -> None:
    for name in FILES:
        (checkpoint / name).write_text("")
    (checkpoint / "x").write_text("")
    assert len(problems(checkpoint)) == 4
    path, (line,) = newest_whole(checkpoint.parent)
    assert path == older
    assert line.count(" bytes instead of ") == 3
    assert line.endswith("; and 1 more")


def forge(folder: Path, **changes: Any) -> None:
    """Write a manifest as somebody would who means harm: its hash is right."""
    content = {"version": 1, "name": folder.name, "files": {}, **changes}
    text = json.dumps(content, indent=1) + "\n"
    content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content, indent=1) + "\n")


def test_the_forger_can_forge(tmp_path: Path) -> None:
    forge(tmp_path)
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "a/../../secret", "..", "./net.params", "a//b", ""]
)
def test_paths_that_leave_the_folder(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "c").mkdir()
    forge(tmp_path / "c", files={name: {"size": 1, "sha256": hashlib.sha256(b"s").hexdigest()}})

    def never(path: Path) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr("multifit.checkpoints.wholeness.fingerprint", never)
    assert problems(tmp_path / "c") == [f"{name} leads out of the checkpoint's folder"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": 2}, "manifest.json is of version 2; this multifit reads version 1"),
        ({"version": True}, "manifest.json is of version True; this"),
        ({"version": None}, "manifest.json is of version None; this"),
        ({"files": []}, 'manifest.json has no usable "name" and "files"'),
        ({"name": 3}, 'manifest.json has no usable "name" and "files"'),
        ({"files": {"x": 3}}, "x has neither size nor hash in manifest.json"),
        ({"files": {"x": {}}}, "x has 1 bytes instead of None"),
        ({"files": {"x": {"size": 1}}}, "x is not as it was written: its hash differs"),
        ({"step": float("nan")}, "manifest.json is not as it was written"),
    ],
)
def test_manifests_that_cannot_be_used(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    if isinstance(changes.get("files"), dict):
        (tmp_path / "x").write_text("1")
    forge(tmp_path, **changes)
    (found,) = problems(tmp_path)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "manifest.json is no JSON: "),
        (b"\xff\xfe\x00", "manifest.json is no JSON: "),
        (b"[" * 100_000, "manifest.json is no JSON: "),
        (b"1" * 10_000, "manifest.json is "),
        (b"[1]", "manifest.json is a JSON list; valid is an object"),
        (b"{}", "manifest.json is of version None; "),
    ],
)
def test_no_manifest_at_all(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    (found,) = problems(tmp_path)
    assert found.startswith(problem)


def test_a_manifest_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    assert problems(tmp_path) == ["manifest.json cannot be read: Is a directory"]


def test_no_folder(tmp_path: Path) -> None:
    assert problems(tmp_path / "x") == ["x is no folder"]
