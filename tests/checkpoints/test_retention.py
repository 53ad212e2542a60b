"""superfluous, and Shelf which acts on it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from multifit.checkpoints import Entry, Shelf, problems, superfluous
from multifit.checkpoints.hidden import hidden_name


def made(*values: float | None) -> list[Entry]:
    return [Entry(Path(f"c{step}"), 0, step, True, "m", value) for step, value in enumerate(values)]


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
        ([1, 1, 1, 2], 1, 1, "min", [0, 3]),  # of equal ones the older
        ([2, 2, 1, 1], 1, 1, "max", [0, 3]),
        ([None, 1, None, None], 1, 3, "min", [1, 3]),
        ([], 1, 1, "min", []),
    ],
)
def test_what_is_kept(values: list[Any], last: int, best: int, mode: str | None, kept: list[int]) -> None:
    entries = made(*values)
    expected = [entry for entry in entries if entry.step not in kept]
    assert superfluous(entries, last, best, mode) == expected
    assert superfluous(entries[::-1], last, best, mode) == expected


def test_keeping_goes_on_as_if_all_were_there() -> None:
    """Removing after each checkpoint keeps what removing once at the end does."""
    draw = random.Random(0)
    for _ in range(50):
        entries = made(*(draw.choice([None, draw.randrange(4)]) for _ in range(10)))
        last, best, mode = draw.randint(1, 3), draw.randint(0, 3), draw.choice(["min", "max"])
        there: list[Entry] = []
        for entry in entries:
            there.append(entry)
            gone = superfluous(there, last, best, mode)
            there = [one for one in there if one not in gone]
        assert there == [one for one in entries if one not in superfluous(entries, last, best, mode)]


def fill(folder: Path) -> None:
    (folder / "x").write_text("content")


def put(shelf: Shelf, step: int, value: float | None = None, monitor: str | None = "m") -> Path:
    facts = {"step": step, "complete": True, "monitor": monitor, "value": value}
    return shelf.write(f"epoch-0001-step-{step:08d}", fill, facts)


def steps(folder: Path) -> list[int]:
    return sorted(int(name[-8:]) for name in os.listdir(folder))


def test_a_shelf_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 2, 1)
    assert shelf.furthest() == 0
    for step, value in enumerate([3, 1, 2, 4, 5], 1):
        put(shelf, step, value)
        shelf.trim("m", "min")
    assert steps(tmp_path) == [2, 4, 5]
    assert shelf.furthest() == 5


def test_another_runs_checkpoints_are_older_however_far_it_went(tmp_path: Path) -> None:
    before, now = Shelf(tmp_path, 2, 0), Shelf(tmp_path, 2, 0)
    for step in (100, 200):
        put(before, step)
    for step in (1, 2):
        put(now, step)
        now.trim(None, None)
    assert steps(tmp_path) == [1, 2]


def test_only_values_of_the_same_figure_are_compared(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 1, 1)
    put(shelf, 1, 0.0, "another")
    put(shelf, 2, 5.0)
    put(shelf, 3, 6.0)
    shelf.trim("m", "min")
    assert steps(tmp_path) == [2, 3]


def test_what_is_damaged_or_added_to_neither_counts_nor_goes(tmp_path: Path) -> None:
    paths = [put(Shelf(tmp_path, 1, 0), step) for step in range(1, 6)]
    (paths[0] / "x").write_text("")
    (paths[4] / "mine").write_text("")
    shelf = Shelf(tmp_path, 1, 0)
    shelf.trim(None, None)
    assert steps(tmp_path) == [1, 4, 5]  # 4 is the last of those that are whole
    (paths[3] / "mine").write_text("")  # after it was found whole
    put(shelf, 6)
    shelf.trim(None, None)
    put(shelf, 7)
    shelf.trim(None, None)
    assert steps(tmp_path) == [1, 4, 5, 7]


def test_a_hidden_one_is_left_to_the_sweeping(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 1, 0)
    path = put(shelf, 1)
    hidden = path.rename(tmp_path / hidden_name())
    shelf.trim(None, None)
    assert problems(hidden) == []


def test_what_cannot_be_read_back_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multifit.checkpoints.shelf.problems", lambda path: ["x is missing"])
    with pytest.raises(OSError, match=r"^read back, it was not what had been written: x is missing$"):
        put(Shelf(tmp_path, 1, 1), 1)
