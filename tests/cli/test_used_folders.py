"""``multifit train`` in a folder that holds files already: those of an earlier run, or of the user."""

import json
import os
from pathlib import Path

import pytest

from .results import MISSPELT, PICTURES, WRITTEN, record_of
from .test_predict import DRAW, INPUTS

NOT_EMPTY = (
    "multifit: runs/small is not empty: --resume continues the run in it, --overwrite removes that run, "
    "--output DIR writes elsewhere\n"
)


def files() -> dict[str, bytes]:
    """Return the content of all files in the run's folder."""
    return {str(path): path.read_bytes() for path in Path("runs/small").rglob("*") if path.is_file()}


def test_a_folder_that_is_not_empty_is_left_alone(trained, multifit):
    before = files()
    result = multifit("train", trained)
    assert (result.code, result.err) == (2, NOT_EMPTY) and files() == before
    Path("runs/own").mkdir()
    Path("runs/own/notes.txt").touch()
    assert multifit("train", trained, "--output", "runs/own").code == 2


def test_overwrite_removes_what_a_run_wrote_and_nothing_else(write, multifit):
    path = write(PICTURES + INPUTS + DRAW)
    assert multifit("train", path, "--overwrite").code == 0  # nothing was there
    assert multifit("predict", path, "--from", "runs/small", "1,2,3").code == 0
    assert multifit("export", path, "--from", "runs/small").code == 0
    Path("runs/small/mine.png").touch()
    os.rename("runs/small/history.json", "history.json")
    Path("runs/small/history.json").symlink_to("../../history.json")
    old = Path("history.json").read_bytes()
    assert multifit("train", write(), "--overwrite", "--set", "rate=0.2").code == 0
    assert {*os.listdir("runs/small")} == {*WRITTEN, "mine.png"}
    record = record_of()
    assert record["settings"]["rate"] == "0.2" and "curves.png" in record["pictures"]
    assert Path("runs/small/log.txt").read_text().count("training for 2 epochs") == 1
    assert Path("history.json").read_bytes() == old


def test_nothing_is_removed_by_what_a_record_says(trained, multifit):
    record = Path("runs/small/settings.json")
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "pictures": ["../../small.py", "notes.txt", "../mine.png"]}))
    kept = [Path("runs/small/notes.txt"), Path("runs/mine.png"), trained]
    for path in kept[:2]:
        path.touch()
    assert multifit("train", trained, "--overwrite").code == 0 and all(path.exists() for path in kept)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"font": 5}', "is not the record of a run"),
        ('{"file": "other.py"}', "is a run of other.py, not of small.py"),
    ],
)
def test_overwrite_refuses_what_is_not_the_run_of_the_file(trained, multifit, record, message):
    path = Path("runs/small/settings.json")
    changed = json.loads(record)
    path.write_text(json.dumps(json.loads(path.read_text()) | changed if "file" in changed else changed))
    before = files()
    result = multifit("train", trained, "--overwrite")
    assert result.code == 2 and message in result.err and files() == before


@pytest.mark.parametrize("replaced", [MISSPELT, {"return TwoHeads()": "return TwoHeads("}])
def test_a_run_that_is_refused_overwrites_nothing(trained, write, multifit, replaced):
    before = files()
    assert multifit("train", write(**replaced), "--overwrite").code in (1, 2)
    assert files() == before
