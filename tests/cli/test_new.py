"""``multifit new``: the file that it writes trains, predicts and is never written over another one."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from multifit.cli.new import TEMPLATES

from .results import history_of

ROOT = Path(__file__).parents[2]


def test_the_file_trains_and_predicts_as_it_is(multifit):
    first, *commands = multifit("new", "mytask.py").out.splitlines()
    assert first == "wrote mytask.py; next:"
    commands = [shlex.split(command)[1:] for command in commands]
    assert [command[0] for command in commands] == ["train", "evaluate", "predict", "report"]
    assert [multifit(*command).code for command in commands] == [0, 0, 0, 0]
    history = history_of("runs/mytask")
    assert history["val_accuracy"][-1] > 0.95 and history["val_radius_error"][-1] < 0.05
    predicted = multifit("predict", "mytask.py", "--from", "runs/mytask", "0.5,-0.2", "0.1,0.3")
    assert [line.partition(": ")[0] for line in predicted.out.splitlines()[-2:]] == ["0.5,-0.2", "0.1,0.3"]
    assert predicted.out.count("radius 0.") == 2
    refused = multifit("predict", "mytask.py", "--from", "runs/mytask", "x.npy")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "mytask.py cannot read INPUT: could not convert string to float: 'x.npy' (mytask.py" in refused.err
    assert refused.err.endswith("`multifit predict`: points x,y such as 0.5,-0.2.\n")


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_file_is_formatted_as_the_other_tasks(name):
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename=tasks/new.py", "-"]
        done = subprocess.run(ruff, cwd=ROOT, input=TEMPLATES[name].read_bytes(), capture_output=True)
        assert done.returncode == 0, done.stdout


def test_a_file_that_exists_is_not_overwritten(multifit, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("mine")
    (tmp_path / "link.py").symlink_to("nothing")
    for name in ("mine.py", "link.py"):
        done = multifit("new", name)
        assert done.code == 2 and f"{name} exists already" in done.err
    assert path.read_text() == "mine" and not (tmp_path / "nothing").exists()
    assert "\n    multifit evaluate 'my task.py' --from 'runs/my task'\n" in multifit("new", "my task.py").out
    done = multifit("new", "nowhere/mytask.py")
    assert done.code == 2 and "No such file or directory: 'nowhere'" in done.err
