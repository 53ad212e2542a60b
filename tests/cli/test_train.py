"""``multifit train`` trains, prints, and leaves a folder of results."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import multifit.locks as locks
from multifit.cli.record import recorded_pictures
from multifit.gluon.compat import mx

WRITTEN = [
    "checkpoints", "curves.png", "final.params", "history.json", "log.txt", "plan.json", "plan.txt",
    "settings.json", "tensorboard",
]  # fmt: skip

PICTURES = """
def pictures(estimator, data, history, output, context):
    from matplotlib.figure import Figure
    assert history.epochs == epochs and output.is_absolute() and context == estimator.context
    figure = Figure(figsize=(2, 2))
    figure.add_subplot().scatter(estimator.predict(data[1])["place"][:, 0], range(10))
    return {"places": figure}
"""


def history_of(folder: str) -> dict:
    return json.loads((Path(folder) / "history.json").read_text())


# -------------------------------------------------------------------------------- output


def test_it_prints_the_plan_trains_and_leaves_its_results(write, multifit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # the width of plan.txt
    result = multifit("train", write())
    assert result.code == 0 and sorted(os.listdir("runs/small")) == WRITTEN
    plan = Path("runs/small/plan.txt").read_text().strip()
    assert result.out.startswith(plan) and "kind" in plan and "place" in plan
    table, last = result.out[len(plan) :].split("after epoch 2\n")[1].strip().rsplit("\n", 1)
    assert last == f"2 epochs; wrote runs/small: {', '.join(WRITTEN)}"
    history = history_of("runs/small")
    assert len(history["train_loss"]) == len(history["val_place"]) == 2
    assert history["train_loss"][1] < history["train_loss"][0]
    rows = dict(line.split(maxsplit=1) for line in table.splitlines() if " " in line)
    for figure in ("loss", "kind", "place"):
        values = [history[f"{stage}_{figure}"][-1] for stage in ("train", "val")]
        assert rows[figure].split() == [f"{value:.4f}" for value in values]


def test_the_curves_are_drawn(trained):
    assert Path("runs/small/curves.png").stat().st_size > 20_000


def test_the_parameters_are_in_gluons_format(trained):
    saved = mx.nd.load("runs/small/final.params")
    assert sorted(saved) == ["kind.bias", "kind.weight", "place.bias", "place.weight"]
    assert np.isfinite(saved["kind.weight"].asnumpy()).all()


def test_quiet_prints_only_what_was_written(write, multifit):
    result = multifit("train", write(), "--quiet", "--epochs", 1)
    assert result.out.count("\n") == 1 and result.out.startswith("1 epoch; wrote runs/small: ")


def test_pictures_of_the_file_are_saved(write, multifit):
    assert multifit("train", write(PICTURES)).code == 0
    assert sorted(os.listdir("runs/small")) == sorted([*WRITTEN, "places.png"])
    assert Path("runs/small/places.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_may_change_the_working_directory(write, multifit):
    """The run's folder stays where the command line says."""
    Path("elsewhere").mkdir()
    inputs = "def inputs(arguments): return np.array([text.split(',') for text in arguments], 'float32')\n"
    drawn = (
        "def show(history, outputs): from matplotlib.figure import Figure; return Figure(figsize=(1, 1))\n"
    )
    path = write("import os\nos.chdir('elsewhere')\n" + inputs + drawn)
    start = Path.cwd()
    of_run = ["--from", "runs/small"]
    for command in (["train"], ["train", "--resume"], ["evaluate", *of_run], ["export", *of_run]):
        assert multifit(*command[:1], path, *command[1:]).code == 0
        os.chdir(start)
    result = multifit("predict", path, *of_run, "1,2,3")
    os.chdir(start)
    assert result.out.endswith("1,2,3: runs/small/predictions/1-1,2,3.png\n")
    assert sorted(os.listdir("runs/small")) == sorted([*WRITTEN, "export", "predictions"])
    assert os.listdir("elsewhere") == []


def test_a_file_without_trainers_and_validation_trains(write, multifit):
    path = write("del trainers\nboth = data\ndef data(seed): return both(seed)[0]\n")
    assert multifit("train", path).code == 0
    history = history_of("runs/small")
    assert "train_loss" in history and not any(name.startswith("val_") for name in history)


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


# -------------------------------------------------------------------------------- options


def test_epochs_output_and_settings(write, multifit):
    result = multifit("train", write(), "--epochs", 3, "--output", "elsewhere/deep", "--set", "rate=0")
    assert result.code == 0 and sorted(os.listdir("elsewhere/deep")) == WRITTEN
    assert history_of("elsewhere/deep")["lr"] == [0.0] * 3


def test_the_seed_of_the_file_or_of_the_command_line_decides_everything(write, multifit):
    multifit("train", write("seed = 5\n"), "--output", "a")
    path = write()
    for folder, seed in (("b", 5), ("c", 2)):
        multifit("train", path, "--seed", seed, "--output", folder)
    assert history_of("a") == history_of("b") != history_of("c")


def test_two_devices_give_the_same_figures_as_one(write, multifit):
    path = write()
    multifit("train", path, "--devices", "1", "--output", "one")
    multifit("train", path, "--devices", "cpu:2", "--output", "two")
    assert history_of("one")["val_loss"] == pytest.approx(history_of("two")["val_loss"], rel=1e-4)


@pytest.mark.parametrize(("options", "shown"), [((), "loss"), (("--figures", "val_place"), "place")])
def test_the_figures_that_are_shown(write, multifit, options, shown):
    logger = logging.getLogger("multifit")
    console = logging.StreamHandler(stream := io.StringIO())
    logger.addHandler(console)
    try:
        assert multifit("train", write(), "--epochs", 1, *options).code == 0
    finally:
        logger.removeHandler(console)
    epoch = stream.getvalue().partition("epoch 1/1")[2].partition("trained")[0]
    assert shown in epoch and ("loss" in epoch) == (shown == "loss")
    assert "train_kind" in history_of("runs/small")


def test_figures_that_are_not_a_regular_expression_are_an_error(multifit, capsys):
    with pytest.raises(SystemExit):
        multifit("train", "small.py", "--figures", "val_(")
    assert '"val_(" is not a regular expression: ' in capsys.readouterr().err


# -------------------------------------------------------------------------------- errors


EPOCHS = "is {}; valid is a whole number of at least 1"
MISSPELT = {'outputs=["kind", "place"]': 'outputs=["kind", "plase"]'}


@pytest.mark.parametrize(
    ("more", "options", "code", "message"),
    [
        ("", ["--set", "rat=1"], 2, 'has no setting "rat" (did you mean "rate"?)'),
        ("", ["--devices", "cpus"], 2, "cannot read the devices 'cpus'"),
        ("", ["--seed", "-1"], 2, "seed must be from 0 to"),
        ("", ["--output", "small.py"], 2, "small.py: File exists"),
        ("", ["--output", "\udcff"], 2, "\\udcff': it is not valid UTF-8"),
        ("epochs = 0\n", [], 1, EPOCHS.format(0)),
        ("epochs = 'x'\n", [], 1, EPOCHS.format("'x'")),
        ("seed = 'x'\n", [], 2, "is 'x'; valid is a whole number"),
        ("seed = 1.5\n", [], 2, "is 1.5; valid is a whole number"),
        ("del epochs\ndef data(): raise AssertionError\n", [], 2, "how long to train? Give --epochs"),
        ("def data(history): return history\n", [], 2, "small.py need each other in a circle: "),
    ],
)
def test_what_cannot_be_used_is_reported_in_one_line(write, multifit, more, options, code, message):
    result = multifit("train", write(more), *options)
    assert result.code == code and message in result.err and result.err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("more", "replaced", "code", "message"),
    [
        ("", MISSPELT, 1, "plase"),
        (
            "two = data\ndef data(seed): return (*two(seed), None)\n", {}, 2,
            "must return (train_data, val_data) or train_data, not a tuple of 3",
        ),
        *(
            (f"two = data\ndef data(seed): {code}\n", {}, 2, f"such as a DataLoader or a list; {name}")
            for code, name in (
                ("yield from two(seed)", "train_data is a generator"),
                ("return (batch for batch in two(seed)[0])", "train_data is a generator"),
                ("return two(seed)[0], iter(list(two(seed)[1]))", "val_data is a list_iterator"),
            )
        ),
        (
            "two = data\ndef data(seed): return list(two(seed))\n", {}, 1,
            "a list, which is taken for train_data of two batches; (train_data, val_data) is a tuple: ",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_reported_without_a_traceback(write, multifit, more, replaced, code, message):
    result = multifit("train", write(more, **replaced))
    assert result.code == code and message in result.err and "Traceback" not in result.err
    assert not Path("runs/small/history.json").exists()


def test_a_folder_without_permission_is_an_error(write, multifit, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    result = multifit("train", write())
    assert result.code == 2 and "runs/small: no permission" in result.err


def test_a_folder_in_which_another_run_writes_is_an_error(write, multifit, monkeypatch):
    def lockf(file, how):
        raise BlockingIOError(errno.EAGAIN, "locked")

    monkeypatch.setattr(locks.fcntl, "lockf", lockf)
    Path("runs/small").mkdir(parents=True)
    Path("runs/small/.lock").write_text("process 5 on here, since today")
    result = multifit("train", write())
    assert result.code == 1 and result.err.count("\n") == 1
    assert "runs/small is in use by another run (process 5 on here, since today)" in result.err
    assert os.listdir("runs/small") == [".lock"]


def test_without_locks_it_trains_with_a_warning(write, multifit, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    result = multifit("train", write(), "--quiet")
    assert result.code == 0 and "runs/small cannot be locked" in result.err


FULL = """
def pictures():
    import errno
    class Figure:
        def savefig(self, path, dpi):
            raise OSError(errno.ENOSPC, "No space left on device")
    return {"mine": Figure()}
"""


def test_a_disk_that_is_full_at_the_end_costs_only_what_did_not_fit(write, multifit, monkeypatch):
    result = multifit("train", path := write(FULL))
    mine = Path("runs/small/mine.png").absolute()
    assert result.code == 2 and result.err.count("\n") == 1
    assert result.err.startswith(f"multifit: [Errno 28] No space left on device: '{mine}' ({path}, line ")
    assert "after epoch 2" in result.out and set(WRITTEN) <= set(os.listdir("runs/small"))
    assert result.out.endswith(f"2 epochs; wrote runs/small: {', '.join(WRITTEN)}\n")

    def save(net, path, *_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("multifit.cli.results.save_net", save)
    Path("half").mkdir()
    Path("half/checkpoints").mkdir()
    monkeypatch.setattr("multifit.checkpoints.store.write_checkpoint", save)
    result = multifit("train", write(), "--output", "half")
    assert result.code == 2 and "half/final.params'" in result.err
    assert result.out.endswith("2 epochs; wrote half: log.txt, tensorboard\n")
    assert set(os.listdir("half")) == {*WRITTEN} - {"final.params", "curves.png"}


def test_a_missing_task_file_is_reported_in_one_line(multifit):
    result = multifit("train", "nothing.py")
    assert (result.code, result.err) == (2, "multifit: there is no file nothing.py\n")


@pytest.mark.parametrize("error", ["ZeroDivisionError", "ValueError", "ConnectionError"])
def test_the_files_own_exceptions_keep_their_traceback(write, multifit, error):
    with pytest.raises(eval(error), match="of mine"):
        multifit("train", write(f"def net(): raise {error}('of mine')\n"))


@pytest.mark.parametrize(
    "drawn",
    ["None", "{'a/b': None}", "{'a': 5}", "{5: None}", "[1]", "{'a' * 252: type('F', (), {'savefig': 1})}"],
)
def test_wrong_pictures_are_an_error_after_the_results_are_written(write, multifit, drawn):
    result = multifit("train", write(f"def pictures(): return {drawn}\n"))
    assert result.code == 2 and "pictures() must return a dict of matplotlib figures" in result.err
    assert result.out.endswith(f"2 epochs; wrote runs/small: {', '.join(WRITTEN)}\n")
    assert sorted(os.listdir("runs/small")) == WRITTEN


def test_without_tensorboardx_only_the_events_are_missing(write, multifit, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    result = multifit("train", write())
    assert result.code == 0 and "no TensorBoard events: TensorBoardHandler needs tensorboardX" in result.err
    assert sorted(os.listdir("runs/small")) == [name for name in WRITTEN if name != "tensorboard"]


def test_without_matplotlib_only_the_pictures_are_missing(write, multifit, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = multifit("train", write(PICTURES))
    assert (
        result.code == 0
        and 'no pictures: pictures need matplotlib: pip install "multifit[plot]"' in result.err
    )
    assert sorted(os.listdir("runs/small")) == [name for name in WRITTEN if name != "curves.png"]
