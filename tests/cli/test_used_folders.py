"""``multifit train`` in a folder that holds files already: those of an earlier run, or of the user."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from multifit.cli.earlier import set_aside
from multifit.cli.record import RunRecord, recorded_pictures, write_record

from .results import MISSPELT, PICTURES, WRITTEN, history_of
from .test_predict import DRAW, INPUTS

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
        multifit("train", write("GOOD = 2\n" + BREAKS), "--set", "rate=0.2", "--checkpoint-every", "1batch")
    earlier = Path("runs/small/earlier")
    logs = Path("runs/small/log.txt"), earlier / "log.txt"
    kept = {path.name: path.read_bytes() for path in earlier.glob("*.*")}
    assert kept == before
    assert "places.png" in kept
    assert multifit("train", write(), "--resume", "--epochs", 3, "--output", earlier).code == 0
    assert len(history_of(earlier)["train_loss"]) == 3
    assert multifit("train", write()).code == 0
    assert json.loads((earlier / "settings.json").read_text())["settings"]["rate"] == 0.2
    assert "places.png" not in os.listdir(earlier)
    assert [each.read_text().count("training for 2 epochs") for each in logs] == [1, 1]
    assert logs[1].read_text() != kept["log.txt"].decode()


def test_what_was_exported_is_kept_with_its_run(trained, write, multifit):
    for format in ("gluon", "onnx"):
        assert multifit("export", trained, "--from", "runs/small", "--format", format).code == 0
        before = {path.name: path.read_bytes() for path in Path("runs/small/export").iterdir()}
        assert multifit("train", write()).code == 0
        assert not Path("runs/small/export").exists()
        kept = Path("runs/small/earlier/export").iterdir()
        assert {path.name: path.read_bytes() for path in kept} == before


def test_what_was_predicted_is_kept_with_its_run(trained, write, multifit):
    assert multifit("predict", write(INPUTS + DRAW), "--from", "runs/small", "1,2,3").code == 0
    assert multifit("train", write()).code == 0
    assert not Path("runs/small/predictions").exists()
    assert os.listdir("runs/small/earlier/predictions") == ["1-1,2,3.png"]


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
    for name in ("plan.json", "curves.png"):
        Path(f"runs/small/{name}").write_text("of mine")
    with pytest.raises(ZeroDivisionError):
        multifit("train", write("GOOD = 0\n" + BREAKS))
    assert {Path(f"runs/small/{name}").read_text() for name in ("plan.json", "curves.png")} == {"of mine"}
    assert multifit("train", write(), "--epochs", 1).code == 0


UNRECORDED = (
    "has {}: a new run would overwrite these files; give another --output, or move these files away{}\n"
)
NO_RECORD, NOT_ONE = "but no settings.json", "but settings.json is not the record of a run"


@pytest.mark.parametrize(
    ("left", "record", "found", "way"),
    [
        (["history.json"], None, f"history.json, {NO_RECORD}", ""),
        (["final.params", "log.txt"], None, f"final.params, {NO_RECORD}", ""),
        (["checkpoints"], None, f"checkpoints, {NO_RECORD}", ", or continue the run with --resume"),
        ([], '{"font": 5}', f"settings.json, {NOT_ONE}", ""),
        (
            ["checkpoints", "final.params"], "{", f"settings.json, final.params, checkpoints, {NOT_ONE}",
            ", or remove settings.json and continue the run with --resume",
        ),
    ],
)  # fmt: skip
def test_results_without_a_record_are_not_overwritten(trained, multifit, left, record, found, way):
    folder = Path("runs/small")
    for path in folder.iterdir():
        if path.name not in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if record is not None:
        (folder / "settings.json").write_text(record)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = multifit("train", trained)
    assert result.code == 2 and result.err == "multifit: runs/small " + UNRECORDED.format(found, way)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_no_result_of_a_run_does_not_stop_a_new_one(trained, multifit):
    for path in Path("runs/small").iterdir():
        if path.name not in ("log.txt", "plan.txt", "tensorboard", "checkpoints"):
            path.unlink()
    shutil.rmtree(next(Path("runs/small/checkpoints").iterdir()))
    assert multifit("train", trained).code == 0


LINKED = ("checkpoints", "final.params", "curves.png")


def link_results(run: Path, scratch: Path) -> None:
    """Move some of a run's results to another folder, and leave links to them."""
    scratch.mkdir(exist_ok=True)
    for name in LINKED:
        target = scratch.absolute() / f"{run.name}-{name}"
        (run / name).rename(target)
        (run / name).symlink_to(target)


def results_of(run: Path) -> dict[str, bytes]:
    """Return the content of a run's files but the one that holds paths, those of its checkpoints included."""
    files = [path for name in LINKED for path in (run / name, *(run / name).rglob("*")) if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_what_links_of_a_run_point_to_is_set_aside_with_it(write, multifit):
    """Two runs have links to the same folder, as on a scratch disk."""
    runs, names = [Path("runs/one"), Path("runs/other")], []
    for run in runs:
        assert multifit("train", write(), "--output", run).code == 0
        link_results(run, Path("scratch"))
        names += [path.name for path in Path("scratch").glob(f"{run.name}-*")]
    Path("scratch/one-final.earlier.params").write_text("of mine")
    for rate in ("0.2", "0.1"):
        for run in runs:
            others = {each: results_of(each) for each in (*runs, *(one / "earlier" for one in runs))}
            assert multifit("train", write(), "--output", run, "--set", f"rate={rate}").code == 0
            assert results_of(run / "earlier") == others.pop(run) != results_of(run)
            others.pop(run / "earlier")
            assert others == {each: results_of(each) for each in others}
            assert all((run / name).is_symlink() for name in LINKED)
    assert len([*Path("scratch").iterdir()]) == 2 * len(names) + 1  # nothing of older runs is left there
    assert Path("scratch/one-final.earlier.params").read_text() == "of mine"
    earlier = runs[0] / "earlier"
    own = Path("scratch/corpus.earlier")
    own.mkdir()
    (own / "text").write_text("of mine")
    (earlier / "data").symlink_to(own.absolute())
    assert multifit("train", write(), "--resume", "--epochs", 3, "--output", earlier).code == 0
    assert len(history_of(earlier)["train_loss"]) == 3 and (earlier / "final.params").is_symlink()
    assert multifit("train", write(), "--output", earlier).code == 0
    assert multifit("train", write(), "--output", runs[0]).code == 0
    assert (own / "text").read_text() == "of mine"
    assert len([*Path("scratch").iterdir()]) == 2 * len(names) + 2


OPERATIONS = [
    (os, "replace"),
    (shutil, "rmtree"),
    *((Path, name) for name in ("mkdir", "symlink_to", "unlink")),
]


def write_run(folder: Path, text: str) -> None:
    """Write what `set_aside` sees of a run."""
    for name in ("final.params", "history.json", "curves.png", "checkpoints/epoch-1/manifest.json"):
        path = Path(os.path.realpath(folder / name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_record(folder, RunRecord(text, {}, 0))


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("n", range(1, 28))
def test_no_kill_of_a_run_that_begins_anew_costs_the_earlier_one(tmp_path, monkeypatch, n, linked):
    """Nor do those without a checkpoint, whatever they were killed in, when they are begun again."""
    folder = tmp_path / "run"
    write_run(folder, "first")
    if linked:
        link_results(folder, tmp_path / "scratch")
    set_aside(folder, 0)
    write_run(folder, "second")
    before = results_of(folder)
    left = [n]

    def killed(operation: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return operation(*arguments, **options)

        return call

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        for owner, name in OPERATIONS:
            patched.setattr(owner, name, killed(getattr(owner, name)))
        set_aside(folder, 0)
    set_aside(folder, 0)
    for _ in range(2):
        assert results_of(folder / "earlier") == before and results_of(folder) == {}
        assert json.loads((folder / "earlier" / "settings.json").read_text())["file"] == "second"
        write_record(folder, RunRecord("third", {}, 0))
        (folder / "history.json").write_text("of the third")
        assert set_aside(folder, 0) is None
        assert not any((folder / name).exists() for name in ("settings.json", "history.json"))


@pytest.mark.parametrize("options", [(), ("--resume",)])
def test_a_run_without_a_checkpoint_pushes_no_other_out(write, multifit, options):
    assert multifit("train", write()).code == 0
    before = results_of(Path("runs/small"))
    for more in ((), options):
        with pytest.raises(ZeroDivisionError):
            multifit("train", write("GOOD = 2\n" + BREAKS), "--set", "rate=0.2", *more)
        assert results_of(Path("runs/small/earlier")) == before
    assert multifit("train", write(), *options).code == 0
    assert results_of(Path("runs/small/earlier")) == before != results_of(Path("runs/small"))
    assert Path("runs/small/log.txt").read_text().count("training for 2 epochs") == 1


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
