"""multifit.utils.files: files are written completely or not at all."""

import errno
import gc
import json
import math
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest

from multifit.utils.files import atomic_path, atomic_write, parse_json, read_json, write_arrays
from tests.common.full_disk import full_disk


@pytest.mark.parametrize("data", [b"\x00\xff", "ein Häkchen ✓\r\nand a line"], ids=["bytes", "text"])
def test_the_folder_and_the_file_are_created(tmp_path: Path, data: bytes | str) -> None:
    path = tmp_path / "a" / "b" / "c.json"
    atomic_write(path, data)
    assert path.read_bytes() == (data if isinstance(data, bytes) else data.encode("utf-8"))
    assert os.listdir(path.parent) == ["c.json"]
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def full(path: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("write", [lambda path: None, full])
def test_an_error_names_the_target(tmp_path: Path, write) -> None:
    with pytest.raises(OSError, match="^a font is missing$"), atomic_path(tmp_path / "x"):
        raise OSError("a font is missing")  # not an error of the disk
    with pytest.raises(OSError) as caught, atomic_path(tmp_path / "x") as temporary:
        write(temporary)
    assert caught.value.filename == str(tmp_path / "x") and str(tmp_path / "x") in str(caught.value)


def test_arrays_of_any_name_are_read_by_numpy(tmp_path: Path) -> None:
    arrays = {"file": np.arange(3), "0": np.array(2.5), "a b": np.ones((2, 3), "float16").T}
    write_arrays(tmp_path / "x.npz", arrays)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as read:
        np.testing.assert_equal(dict(read), arrays)
        assert {name: array.dtype for name, array in read.items()} == {n: a.dtype for n, a in arrays.items()}


def test_arrays_on_a_full_disk_are_one_error(tmp_path: Path) -> None:
    """It does not come again when the archive is collected."""
    with pytest.raises(OSError) as caught, full_disk(9000):
        write_arrays(tmp_path / "x.npz", {"a": np.ones(500), "b": np.ones(5000)})
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(tmp_path / "x.npz")
    del caught
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_the_target_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path.resolve(), ".json")
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["x.json"]


def test_the_content_is_flushed_before_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: order.append("fsync"))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), replace(a, b)))
    atomic_write(tmp_path / "x", "1")
    assert order == ["fsync", "replace"]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    """So does a device: writing to /dev/null as root must not replace it."""
    (tmp_path / "real").mkdir()
    target, link, pipe = tmp_path / "real" / "x", tmp_path / "link", tmp_path / "pipe"
    target.write_text("before")
    link.symlink_to(target)
    atomic_write(link, "after")
    assert link.is_symlink() and target.read_text() == "after"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_write(pipe, "whole")
        assert os.read(reader, 99) == b"whole"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and sorted(os.listdir(tmp_path)) == ["link", "pipe", "real"]


def test_json_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = {"a": [1, -2.5, None, True, "ü"], "c": 10**300}
    atomic_write(tmp_path / "x", json.dumps(content))
    assert read_json(tmp_path / "x") == content
    assert parse_json("[Infinity]", finite=False) == [math.inf]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"a": 1', "Expecting ',' delimiter"),
        (b'"\xff"', "'utf-8' codec can't decode"),
        (b"[NaN]", "the number NaN is not finite"),
        (b"[-Infinity]", "the number -Infinity is not finite"),
    ],
)
def test_json_that_cannot_be_used_is_an_error_with_its_path(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'x.json'}: ")) as error:
        read_json(tmp_path / "x.json")
    assert reason in str(error.value)
