"""Listing checkpoints, finding the newest, deleting old ones, and CheckpointStore."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from multifit.checkpoints import (
    CheckpointInfo,
    CheckpointStore,
    checkpoints_folder,
    list_checkpoints,
    newest_checkpoint,
    to_delete,
    verify,
    write_checkpoint,
)
from multifit.checkpoints.temp_dirs import temp_name


def fill(folder: Path) -> None:
    (folder / "x").write_text("content")


def fill_with(content: str) -> Any:
    return lambda folder: (folder / "x").write_text(content)


def write(parent: Path, name: str, **facts: Any) -> Path:
    return write_checkpoint(parent, name, fill, facts)


# ---- listing and finding -----------------------------------------------------------------------------------


def test_the_order_is_that_of_writing_then_step_then_completeness(tmp_path: Path) -> None:
    facts = [
        {},
        {"step": 3},
        {"step": 20},
        {"step": 20, "complete": True},
        {"serial": 1, "step": 5},
        {"serial": 2, "step": 4},
    ]
    paths = [write(tmp_path, f"c{number}", **fact) for number, fact in reversed(list(enumerate(facts)))][::-1]
    assert [info.path for info in list_checkpoints(tmp_path)] == paths
    for path in reversed(paths):
        assert newest_checkpoint(tmp_path) == (path, [])
        path.rename(tmp_path.parent / f"{tmp_path.name}-{path.name}")


@pytest.mark.parametrize(
    ("facts", "info"),
    [
        (
            {"serial": 2, "step": 7, "complete": True, "values": {"val_loss": 1, "val_acc": 0.5}},
            (2, 7, True, {"val_loss": 1.0, "val_acc": 0.5}),
        ),
        ({"monitor": "val_loss", "value": 1}, (0, 0, False, {"val_loss": 1.0})),  # as older ones have it
        ({"serial": "2", "step": 1.5, "complete": 1, "monitor": 3, "value": "best"}, ()),
        ({"values": [1]}, ()),
        ({"values": {"val_loss": None, "val_acc": True}}, ()),
        ({"value": True, "serial": True}, ()),
        ({"step": None}, ()),
    ],
)
def test_facts_of_a_wrong_type_are_ignored(tmp_path: Path, facts: dict[str, Any], info: Any) -> None:
    path = write(tmp_path, "c", **facts)
    assert list_checkpoints(tmp_path) == [CheckpointInfo(path, *info)._replace(name="c")]


def test_a_run_a_folder_of_checkpoints_or_one_checkpoint_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoints", "epoch-0001-step-00000002", step=2)
    write(tmp_path / "checkpoints", "epoch-0001-step-00000001", step=1)
    for folder in (tmp_path, tmp_path / "checkpoints", path):
        assert newest_checkpoint(folder) == (path, [])
    (path / "manifest.json").unlink()
    assert newest_checkpoint(path) == (None, [f"{path}: manifest.json is missing"])


def test_only_damaged_checkpoints_that_are_newer_are_reported(tmp_path: Path) -> None:
    old, new = write(tmp_path, "a", step=1), write(tmp_path, "b", step=2)
    (old / "x").unlink()
    assert newest_checkpoint(tmp_path) == (new, [])
    (new / "x").unlink()
    assert newest_checkpoint(tmp_path) == (None, [f"{new}: x is missing", f"{old}: x is missing"])


def test_one_without_a_valid_manifest_is_always_reported(tmp_path: Path) -> None:
    old, new = write(tmp_path, "a", step=1), write(tmp_path, "b", step=2)
    (old / "manifest.json").write_text("")
    path, (line,) = newest_checkpoint(tmp_path)
    assert path == new
    assert line.startswith(f"{old}: manifest.json is not valid JSON: ")
    assert [info.path for info in list_checkpoints(tmp_path)] == [new]


def test_the_manifest_of_another_one_is_reported(tmp_path: Path) -> None:
    """It says that both are equally new, and that one of them is damaged."""
    old, new = (write_checkpoint(tmp_path, name, fill_with(name)) for name in ("a", "b"))
    shutil.copy(old / "manifest.json", new)
    path, (line,) = newest_checkpoint(tmp_path)
    assert path == old
    assert line.startswith(f"{new}: x is damaged")


def test_a_renamed_one_can_be_used(tmp_path: Path) -> None:
    path = write(tmp_path, "a").rename(tmp_path / "best")
    assert newest_checkpoint(tmp_path) == (path, [])


def test_other_files_and_folders_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "epoch-0001-step-00000001").touch()
    (tmp_path / ".empty").mkdir()
    assert newest_checkpoint(tmp_path) == (None, [])
    assert list_checkpoints(tmp_path) == []
    assert newest_checkpoint(tmp_path / "x") == (None, [f"{tmp_path / 'x'} is not a folder"])
    assert list_checkpoints(tmp_path / "x") == []


def test_a_temporary_folder_counts_if_intact_and_is_not_reported_if_not(tmp_path: Path) -> None:
    path = write(tmp_path, "a", step=1)
    temporary = write(tmp_path, "b", step=2).rename(tmp_path / temp_name())
    assert newest_checkpoint(tmp_path) == (temporary, [])
    (temporary / "x").unlink()
    assert newest_checkpoint(tmp_path) == (path, [])
    (temporary / "manifest.json").write_text("")
    assert newest_checkpoint(tmp_path) == (path, [])


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("runs/x", "runs/x/checkpoints"), ("runs/x/checkpoints", "runs/x/checkpoints"), (".", "checkpoints")],
)
def test_the_folder_of_a_runs_checkpoints(folder: str, expected: str) -> None:
    assert checkpoints_folder(Path(folder)) == Path(expected)


# ---- which to delete ---------------------------------------------------------------------------------------


def made(*values: float | None) -> list[CheckpointInfo]:
    known = [{} if value is None else {"m": value} for value in values]
    return [CheckpointInfo(Path(f"c{step}"), 0, step, True, value) for step, value in enumerate(known)]


def directions(mode: str | None) -> dict[str, str]:
    return {} if mode is None else {"m": mode, "not measured": "min"}


@pytest.mark.parametrize(
    ("values", "last", "best", "mode", "kept"),
    [
        ([3, 1, 2, 4], 1, 0, "min", [3]),
        ([3, 1, 2, 4], 2, 0, "min", [2, 3]),
        ([3, 1, 2, 4], 9, 0, "min", [0, 1, 2, 3]),
        ([3, 1, 2, 4], 1, 1, "min", [1, 3]),
        ([3, 1, 2, 4], 1, 2, "min", [1, 2, 3]),
        ([3, 1, 2, 4], 1, 1, "max", [3]),  # both the last and the best
        ([3, 1, 2, 4], 1, 2, "max", [0, 3]),
        ([3, 1, 2, 4], 1, 2, None, [3]),
        ([1, 1, 1, 2], 1, 1, "min", [0, 3]),  # of equal values the older
        ([2, 2, 1, 1], 1, 1, "max", [0, 3]),
        ([None, 1, None, None], 1, 3, "min", [1, 3]),
        ([], 1, 1, "min", []),
    ],
)
def test_to_delete(values: list[Any], last: int, best: int, mode: str | None, kept: list[int]) -> None:
    infos = made(*values)
    expected = [info for info in infos if info.step not in kept]
    assert to_delete(infos, last, best, directions(mode)) == expected
    assert to_delete(infos[::-1], last, best, directions(mode)) == expected


def test_each_figure_has_its_own_best() -> None:
    values = [{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 3.0}, {"a": 3.0}, {"a": 4.0, "b": 2.0}]
    infos = [CheckpointInfo(Path(f"c{step}"), 0, step, True, value) for step, value in enumerate(values)]
    deleted = to_delete(infos, 1, 1, {"a": "min", "b": "max"})
    assert [info.step for info in deleted] == [2]


def test_deleting_after_each_checkpoint_keeps_what_deleting_once_at_the_end_does() -> None:
    draw = random.Random(0)
    for _ in range(50):
        infos = made(*(draw.choice([None, draw.randrange(4)]) for _ in range(10)))
        last, best, mode = draw.randint(1, 3), draw.randint(0, 3), directions(draw.choice(["min", "max"]))
        left: list[CheckpointInfo] = []
        for info in infos:
            left.append(info)
            deleted = to_delete(left, last, best, mode)
            left = [each for each in left if each not in deleted]
        assert left == [each for each in infos if each not in to_delete(infos, last, best, mode)]


# ---- CheckpointStore ---------------------------------------------------------------------------------------


def put(store: CheckpointStore, step: int, value: float | None = None, monitor: str = "m") -> Path:
    facts = {"step": step, "complete": True, "values": {} if value is None else {monitor: value}}
    return store.write(f"epoch-0001-step-{step:08d}", fill, facts)


def steps(folder: Path) -> list[int]:
    return sorted(int(name[-8:]) for name in os.listdir(folder))


def test_a_store_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2, 1)
    assert store.latest_step() == 0
    for step, value in enumerate([3, 1, 2, 4, 5], 1):
        put(store, step, value)
        store.delete_old({"m": "min"})
    assert steps(tmp_path) == [2, 4, 5]
    assert store.latest_step() == 5


def test_checkpoints_of_an_earlier_run_are_older_even_if_it_trained_longer(tmp_path: Path) -> None:
    earlier, store = CheckpointStore(tmp_path, 2, 0), CheckpointStore(tmp_path, 2, 0)
    for step in (100, 200):
        put(earlier, step)
    for step in (1, 2):
        put(store, step)
        store.delete_old({})
    assert steps(tmp_path) == [1, 2]


def test_only_values_of_the_same_figure_are_compared(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1, 1)
    put(store, 1, 0.0, "another")
    put(store, 2, 5.0)
    put(store, 3, 6.0)
    store.delete_old({"m": "min"})
    assert steps(tmp_path) == [2, 3]


def test_damaged_ones_neither_count_nor_are_deleted(tmp_path: Path) -> None:
    paths = [put(CheckpointStore(tmp_path, 1, 0), step) for step in range(1, 6)]
    for path in (paths[0], paths[4]):
        (path / "net.params").write_text("")
    store = CheckpointStore(tmp_path, 1, 0)
    store.delete_old({})
    assert steps(tmp_path) == [1, 4, 5]  # 4 is the last intact one


def test_those_with_foreign_files_count_and_are_not_deleted(tmp_path: Path) -> None:
    paths = [put(CheckpointStore(tmp_path, 1, 0), step) for step in range(1, 6)]
    (paths[0] / "x").write_text("")
    (paths[4] / "mine").write_text("")
    store = CheckpointStore(tmp_path, 1, 0)
    store.delete_old({})
    assert steps(tmp_path) == [1, 5]
    for step in (6, 7):
        put(store, step)
        store.delete_old({})
    assert steps(tmp_path) == [1, 5, 7]
    (paths[4] / "mine").unlink()
    store.delete_old({})
    assert steps(tmp_path) == [1, 7]


def test_a_temporary_folder_is_not_deleted(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1, 0)
    temporary = put(store, 1).rename(tmp_path / temp_name())
    store.delete_old({})
    assert verify(temporary) == []


def test_damage_when_read_back_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multifit.checkpoints.store.verify", lambda path: ["x is missing"])
    with pytest.raises(OSError, match=r"^the checkpoint is damaged when read back: x is missing$"):
        put(CheckpointStore(tmp_path, 1, 1), 1)
