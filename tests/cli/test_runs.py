"""A run's folder is read as far as it is there; what is missing or damaged is listed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from multifit.cli.runs import read_run
from multifit.handlers.history import History

from .runs import HISTORY, PLAN, PNG, write_run


def test_a_complete_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    assert (run.plan_text, run.history, run.notices) == (str(PLAN), HISTORY, ["a default was used"])
    assert len(run.diagrams) == 1 and run.declared == {"digit", "accuracy", "mean"}
    assert run.record["settings"] == {"rate": 0.1}
    assert run.pictures == {"samples": PNG}  # neither the curves nor a file that is being written
    assert run.missing == []


def changed(*path: Any, value: object) -> bytes:
    """Return a plan's JSON with another value at a path."""
    plan = json.loads(json.dumps(PLAN.to_dict()))
    *parents, last = path
    inner = plan
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return json.dumps(plan).encode()


@pytest.mark.parametrize("name", ["settings.json", "plan.json", "plan.txt", "history.json"])
def test_a_missing_file_is_listed_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).unlink()
    run = read_run(folder)
    assert run.missing == [f"{name}: No such file or directory"]
    contents = {
        "settings.json": bool(run.record),
        "plan.json": bool(run.diagrams),
        "plan.txt": bool(run.plan_text),
        "history.json": bool(run.history),
    }
    assert [file for file, is_read in contents.items() if not is_read] == [name]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("settings.json", b"{", "settings.json cannot be read: Expecting property name"),
        ("settings.json", b"[1]", "settings.json cannot be read: it must be an object"),
        ("plan.json", b"\xff\xfe\x00", "plan.json cannot be read: "),
        ("plan.json", b"{}", "plan.json cannot be read: "),
        ("plan.txt", b"\xff", "plan.txt cannot be read: 'utf-8' codec"),
        ("plan.json", changed("trainers", 0, "size", value="x"), "plan.json cannot be read: "),
        ("plan.json", changed("train", "links", 0, 1, value="x"), "plan.json cannot be read: "),
        ("history.json", b"[1]", "history.json cannot be read: not a history"),
        ("history.json", b"", "history.json cannot be read: "),
        ("samples.png", b"GIF89a", "samples.png cannot be read: it is not a PNG file"),
    ],
)
def test_a_damaged_file_is_listed(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_bytes(content)
    (missing,) = read_run(folder).missing
    assert missing.startswith(message)


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_a_folder_without_a_run_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / name} is not the folder of a run: ")):
        read_run(tmp_path / name)


def test_seeds_are_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for seed in (10, 9):
        write_run(folder / f"seed-{seed}")
    History({"val_loss": [2.0, 2.5]}).to_json(folder / "seed-10" / "history.json")
    (folder / "seed-10" / "plan.txt").unlink()
    run = read_run(folder)
    assert (run.name, run.record["seed"], run.plan_text) == (str(folder), "3, 3", str(PLAN))
    assert list(run.seeds) == ["seed-9", "seed-10"] and run.seeds["seed-9"] == HISTORY
    assert (run.history["val_loss"], run.spread.last["val_loss"]) == ([2.25, 2.0], pytest.approx(0.5**0.5))
    assert run.missing == ["seed-10: plan.txt: No such file or directory"]
