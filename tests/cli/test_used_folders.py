"""``multifit train`` in a folder that holds files already: those of an earlier run, or of the user."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from multifit.cli.record import recorded_pictures

from .results import MISSPELT, PICTURES, WRITTEN, history_of

BREAKS = """
class Breaks(gluon.data.DataLoader):
    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number >= GOOD:
                raise ZeroDivisionError("of mine")
            yield batch

all_data = data
def data(seed):
    train, val = all_data(seed)
    return Breaks(train._dataset, 10), val
"""


def test_a_run_in_a_used_folder_begins_without_its_results(write, multifit):
    assert multifit("train", write(PICTURES)).code == 0
    for name in ("mine.png", "notes.txt"):
        Path(f"runs/small/{name}").write_text("of mine")
    with pytest.raises(ZeroDivisionError):
        multifit("train", write("GOOD = 2\n" + BREAKS), "--set", "rate=0.2")
    left = {*WRITTEN, "mine.png", "notes.txt", "earlier"}
    assert {*os.listdir("runs/small")} == left - {"checkpoints", "history.json", "final.params", "curves.png"}
    record = json.loads(Path("runs/small/settings.json").read_text())
    assert record["settings"]["rate"] == 0.2 and record["pictures"] == []
    assert multifit("train", write()).code == 0
    assert {*os.listdir("runs/small")} == left


def test_the_earlier_run_in_a_folder_is_kept_and_can_be_resumed(write, multifit):
    """Until a third one begins."""
    assert multifit("train", write(PICTURES)).code == 0
    before = {path.name: path.read_bytes() for path in Path("runs/small").glob("*.*")}
    with pytest.raises(ZeroDivisionError):
        multifit("train", write("GOOD = 2\n" + BREAKS), "--set", "rate=0.2")
    earlier = Path("runs/small/earlier")
    kept = {path.name: path.read_bytes() for path in earlier.glob("*.*")}
    assert kept == {name: content for name, content in before.items() if name != "log.txt"}
    assert "places.png" in kept
    assert multifit("train", write(), "--resume", "--epochs", 3, "--output", earlier).code == 0
    assert len(history_of(earlier)["train_loss"]) == 3
    assert multifit("train", write()).code == 0
    assert json.loads((earlier / "settings.json").read_text())["settings"]["rate"] == 0.2
    assert "places.png" not in os.listdir(earlier)


OF_A_RUN = '{"file": "", "seed": 0, "versions": {}, "pictures": '


@pytest.mark.parametrize(
    ("content", "pictures"),
    [
        ("", None), ("{", None), ("[]", None), ('{"pictures": ["mine.png"]}', None), (OF_A_RUN + "5}", None),
        (OF_A_RUN + '["../a.png", "settings.json", "mine.png", "gone.png"]}', ["mine.png"]),
    ],
)  # fmt: skip
def test_only_the_record_of_a_run_names_its_pictures(tmp_path, content, pictures):
    for name in ("../a.png", "mine.png"):
        (tmp_path / name).write_text("")
    (tmp_path / "settings.json").write_text(content)
    assert recorded_pictures(tmp_path) == pictures


def test_a_folder_in_which_no_run_has_been_keeps_its_files(write, multifit):
    Path("runs/small").mkdir(parents=True)
    for name in ("history.json", "curves.png"):
        Path(f"runs/small/{name}").write_text("of mine")
    with pytest.raises(ZeroDivisionError):
        multifit("train", write("GOOD = 2\n" + BREAKS))
    assert {Path(f"runs/small/{name}").read_text() for name in ("history.json", "curves.png")} == {"of mine"}


def test_links_to_results_are_followed(write, multifit):
    assert multifit("train", write()).code == 0
    Path("large").mkdir()
    for name in ("history.json", "final.params"):
        Path(f"runs/small/{name}").rename(f"large/{name}")
        Path(f"runs/small/{name}").symlink_to(Path(f"large/{name}").absolute())
    Path("runs/small/checkpoints").rename("large/checkpoints")
    Path("runs/small/checkpoints").symlink_to(Path("large/checkpoints").absolute())
    before = Path("large/final.params").read_bytes()
    for _ in range(2):
        assert multifit("train", write(), "--set", "rate=0.7").code == 0
        assert Path("runs/small/final.params").is_symlink()
        assert len(os.listdir("large/checkpoints")) == len(os.listdir("large/earlier/checkpoints")) == 1
    assert Path("large/final.params").read_bytes() != before


def test_a_run_that_is_refused_keeps_the_results_in_its_folder(write, multifit):
    assert multifit("train", write(PICTURES)).code == 0
    before = {path: path.read_bytes() for path in Path("runs/small").glob("*.*")}
    with pytest.raises(ZeroDivisionError):
        multifit("train", write("GOOD = 0\n" + BREAKS))
    assert multifit("train", write(**MISSPELT)).code == 1
    assert before == {path: path.read_bytes() for path in Path("runs/small").glob("*.*")}


def test_a_resumed_run_keeps_its_pictures_until_it_draws_others(write, multifit):
    assert multifit("train", write(PICTURES + "GOOD = 3\n" + BREAKS)).code == 0
    before = {path: path.read_bytes() for path in Path("runs/small").glob("*.png")}
    with pytest.raises(ZeroDivisionError):
        multifit("train", write("GOOD = 2\n" + BREAKS), "--resume", "--epochs", 3)
    assert before == {path: path.read_bytes() for path in Path("runs/small").glob("*.png")}
    record = json.loads(Path("runs/small/settings.json").read_text())
    assert record["epochs"] == 3 and record["pictures"] == ["curves.png", "places.png"]
