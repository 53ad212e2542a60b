"""``multifit train FILE --only TASK``: one task of a file, and what is rebuilt from its run."""

import json
from pathlib import Path

import pytest

from .results import figures_of, history_of, record_of

# three loaders: one for each task, and one whose batches are dicts
LOADERS = """
from multifit.balance import DWA
from multifit.sampling import Ratios
def balance():
    return DWA(tasks={"both": ["kind", "place"]})
def sampling():
    return Ratios(kind=1, place=2)
def data():
    point = np.random.RandomState(0).randn(40, 3).astype("float32")
    kind, place = (point[:, 0] > 0).astype("int32"), point[:, :1] + point[:, 1:2]
    whole = [(point, kind, place)]
    return {"kind": [(point, kind)] * 3, "place": [(point, place)] * 2}, whole
"""


def test_one_task_is_trained_and_rebuilt(write, multifit):
    path = write()
    assert multifit("train", path, "--only", "place", "--checkpoint-every", "1epochs").code == 0
    folder = "runs/small-place"
    assert record_of(folder)["only"] == ["place"]
    history = history_of(folder)
    assert [*history] == ["train_loss", "train_place", "lr", "val_loss", "val_place"]
    assert record_of(folder)["tasks"] == ["val_place"]
    expected = {name[4:]: values[-1] for name, values in history.items() if name.startswith("val_")}
    result = multifit("evaluate", path, "--from", folder, "--quiet")
    assert figures_of(result.out) == pytest.approx(expected, rel=1e-4)
    again = ("train", path, "--output", folder, "--resume", "--epochs", 3, "--quiet")
    assert multifit(*again).code == 0 and record_of(folder)["only"] == ["place"]
    assert len(history_of(folder)["val_place"]) == 3 and [*history_of(folder)] == [*history]
    result = multifit(*again, "--only", "kind")
    assert result.code == 1 and 'losses["place"]' in result.err


def test_loaders_sampling_and_balance_of_other_tasks_are_left_out(write, multifit):
    path = write(LOADERS)
    assert multifit("train", path, "--only", "place", "--output", "place", "--quiet").code == 0
    assert [name for name in history_of("place") if "kind" in name or "weight" in name] == []
    assert history_of("place")["train_batches_place"] == [2, 2]
    plan = json.loads(Path("place/plan.json").read_text())
    assert [(each["name"], each["sampling"]) for each in plan["loaders"]] == [("place", "Proportional")]


def test_several_tasks_and_groups(write, multifit):
    path = write(LOADERS)
    for folder, tasks in {"two": ["kind", "place"], "group": ["both"]}.items():
        assert multifit("train", path, "--output", folder, "--quiet", "--only", *tasks).code == 0
        plan = json.loads(Path(folder, "plan.json").read_text())
        assert [each["sampling"] for each in plan["loaders"]] == ["Ratios", "Ratios"] and not plan["frozen"]
    assert history_of("two") == history_of("group")
    assert multifit("evaluate", path, "--from", "group", "--quiet").code == 0


def test_loaders_of_dicts_are_known_by_their_labels(write, multifit):
    path = write("""
def data():
    point = np.random.RandomState(0).randn(40, 3).astype("float32")
    kind, place = (point[:, 0] > 0).astype("int32"), point[:, :1] + point[:, 1:2]
    return {"a": [{"point": point, "kind": kind}], "b": [{"point": point, "place": place}]}
""")
    assert multifit("train", path, "--only", "place", "--quiet").code == 0
    assert "train_batches_b" in history_of("runs/small-place")
    assert "train_batches_a" not in history_of("runs/small-place")


def test_a_wrong_name_is_an_error(write, multifit):
    result = multifit("train", write(LOADERS), "--only", "plase", "--quiet")
    assert result.code == 1 and not list(Path("runs").glob("*/[!.]*"))
    assert 'no task \'plase\' (did you mean "place"?); tasks are "kind", "place", "both"' in result.err
