"""entries and newest_whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multifit.checkpoints import Entry, checkpoints_folder, entries, newest_whole, write_checkpoint
from multifit.checkpoints.hidden import hidden_name


def write(parent: Path, name: str, **facts: Any) -> Path:
    return write_checkpoint(parent, name, lambda folder: (folder / "x").touch(), facts)


def test_newest_by_the_order_of_writing_then_the_step_then_completeness(tmp_path: Path) -> None:
    facts = [
        {},
        {"step": 3},
        {"step": 20},
        {"step": 20, "complete": True},
        {"serial": 1, "step": 5},
        {"serial": 2, "step": 4},
    ]
    paths = [write(tmp_path, f"c{number}", **fact) for number, fact in reversed(list(enumerate(facts)))][::-1]
    assert [entry.path for entry in entries(tmp_path)] == paths
    for path in reversed(paths):
        assert newest_whole(tmp_path) == (path, [])
        path.rename(tmp_path.parent / f"{tmp_path.name}-{path.name}")


def test_facts_that_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, "c", serial=2, step=7, complete=True, monitor="val_loss", value=1)
    assert entries(tmp_path) == [Entry(path, 2, 7, True, "val_loss", 1.0)]


@pytest.mark.parametrize(
    "facts",
    [
        {"serial": "2", "step": 1.5, "complete": 1, "monitor": 3, "value": "best"},
        {"value": True},
        {"step": None},
    ],
)
def test_facts_of_another_kind_are_not_told(tmp_path: Path, facts: dict[str, Any]) -> None:
    path = write(tmp_path, "c", **facts)
    assert entries(tmp_path) == [Entry(path)]


def test_a_run_a_folder_of_checkpoints_or_a_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoints", "epoch-0001-step-00000002", step=2)
    write(tmp_path / "checkpoints", "epoch-0001-step-00000001", step=1)
    for folder in (tmp_path, tmp_path / "checkpoints", path):
        assert newest_whole(folder) == (path, [])


def test_one_checkpoint_that_is_damaged(tmp_path: Path) -> None:
    path = write(tmp_path, "epoch-0001-step-00000002")
    (path / "manifest.json").unlink()
    assert newest_whole(path) == (None, [f"{path}: manifest.json is missing"])


def test_a_readable_damaged_one_that_is_older_is_not_told(tmp_path: Path) -> None:
    old, new = write(tmp_path, "a", step=1), write(tmp_path, "b", step=2)
    (old / "x").unlink()
    assert newest_whole(tmp_path) == (new, [])
    (new / "x").unlink()
    assert newest_whole(tmp_path) == (None, [f"{new}: x is missing", f"{old}: x is missing"])


def test_one_without_a_usable_manifest_is_told_of_first_and_is_no_entry(tmp_path: Path) -> None:
    old, new = write(tmp_path, "a", step=1), write(tmp_path, "b", step=2)
    (old / "manifest.json").write_text("")
    path, (line,) = newest_whole(tmp_path)
    assert path == new
    assert line.startswith(f"{old}: manifest.json is no JSON: ")
    assert [entry.path for entry in entries(tmp_path)] == [new]


def test_what_is_no_checkpoint_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "epoch-0001-step-00000001").touch()
    (tmp_path / ".empty").mkdir()
    assert newest_whole(tmp_path) == (None, [])
    assert entries(tmp_path) == []


def test_no_folder(tmp_path: Path) -> None:
    assert newest_whole(tmp_path / "x") == (None, [f"{tmp_path / 'x'} is no folder"])
    assert entries(tmp_path / "x") == []


def test_a_hidden_one_counts_if_whole_and_is_not_told_of_if_not(tmp_path: Path) -> None:
    shown = write(tmp_path, "a", step=1)
    hidden = write(tmp_path, "b", step=2).rename(tmp_path / hidden_name())
    assert newest_whole(tmp_path) == (hidden, [])
    (hidden / "x").unlink()
    assert newest_whole(tmp_path) == (shown, [])
    (hidden / "manifest.json").write_text("")
    assert newest_whole(tmp_path) == (shown, [])


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("runs/x", "runs/x/checkpoints"), ("runs/x/checkpoints", "runs/x/checkpoints"), (".", "checkpoints")],
)
def test_where_they_are(folder: str, expected: str) -> None:
    assert checkpoints_folder(Path(folder)) == Path(expected)
