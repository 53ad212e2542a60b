"""``multifit train FILE --only TASK``: one task of a file, and what is rebuilt from its run."""

import json
from pathlib import Path

import pytest

from .results import figures_of, history_of, record_of

# a loader for each task, and one for both
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
    return {"kind": [(point, kind)] * 3, "place": [(point, place)] * 2}, [(point, kind, place)]
"""
OF_DICTS = """
def data():
    point = np.random.RandomState(0).randn(40, 3).astype("float32")
    kind, place = (point[:, 0] > 0).astype("int32"), point[:, :1] + point[:, 1:2]
    return {"a": [{"point": point, "kind": kind}], "b": [{"point": point, "place": place}]}
"""


def loaders(folder):
    plan = json.loads(Path(folder, "plan.json").read_text())
    return [(each["name"], each["sampling"]) for each in plan["loaders"]]


def test_one_task_is_trained_and_rebuilt(write, multifit):
    path, folder = write(), "runs/small-place"
    assert multifit("train", path, "--only", "place", "--checkpoint-every", "1epochs").code == 0
    history, record = history_of(folder), record_of(folder)
    assert [*history] == ["train_loss", "train_place", "lr", "val_loss", "val_place"]
    assert (record["only"], record["tasks"]) == (["place"], ["val_place"])
    expected = {name[4:]: values[-1] for name, values in history.items() if name.startswith("val_")}
    result = multifit("evaluate", path, "--from", folder, "--quiet")
    assert figures_of(result.out) == pytest.approx(expected, rel=1e-4)
    again = ("train", path, "--output", folder, "--resume", "--epochs", 3, "--quiet")
    assert multifit(*again).code == 0 and record_of(folder)["only"] == ["place"]
    assert len(history_of(folder)["val_place"]) == 3 and [*history_of(folder)] == [*history]
    result = multifit(*again, "--only", "kind")
    assert result.code == 1 and 'losses["place"]' in result.err


@pytest.mark.parametrize(("code", "name"), [(LOADERS, "place"), (OF_DICTS, "b")], ids=["tuples", "dicts"])
def test_loaders_sampling_and_balance_of_other_tasks_are_left_out(write, multifit, code, name):
    """Loaders of dicts are known by their labels."""
    assert multifit("train", write(code), "--only", "place", "--output", "one", "--quiet").code == 0
    history = history_of("one")
    assert [each for each in history if "kind" in each or "weight" in each] == []
    assert [each for each in history if "batches" in each] == [f"train_batches_{name}"]
    assert loaders("one") == [(name, "Proportional")]


def test_several_tasks_and_groups(write, multifit):
    path = write(LOADERS)
    for folder, tasks in {"two": ["kind", "place"], "group": ["both"]}.items():
        assert multifit("train", path, "--output", folder, "--quiet", "--only", *tasks).code == 0
        assert loaders(folder) == [("kind", "Ratios"), ("place", "Ratios")]
    assert history_of("two") == history_of("group")
    assert multifit("evaluate", path, "--from", "group", "--quiet").code == 0
