"""The command line on a task file of PyTorch: the one that ``multifit new --torch`` writes."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multifit.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command and returns its status and output."""

    def command(*arguments: Any) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return command


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what reading a task file adds to the import system."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("multifit_task_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the file and its run in runs/mine."""
    folder, before, path = tmp_path_factory.mktemp("native"), os.getcwd(), list(sys.path)
    os.chdir(folder)
    try:
        assert main(["new", "--torch", "mine.py"]) == 0
        assert main(["train", "mine.py", "--quiet", "--checkpoint-every", "1epochs"]) == 0
    finally:
        os.chdir(before)
        sys.path[:] = path
    return folder


@pytest.fixture
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("there")
def test_the_file_learns_as_it_is_and_its_run_is_recorded_and_resumed(run: Run) -> None:
    history = json.loads(Path("runs/mine/history.json").read_text())
    assert history["val_accuracy"][-1] > 0.95 and history["val_radius_error"][-1] < 0.05
    record = json.loads(Path("runs/mine/settings.json").read_text())
    assert "batch_size" in record["settings"] and "torch" in record["versions"]
    epochs = len(history["val_loss"]) + 1
    code, out, err = run("train", "mine.py", "--resume", "--epochs", epochs, "--output", "runs/mine")
    assert code == 0 and "batches of 32 on cpu" in out, err
    assert len(json.loads(Path("runs/mine/history.json").read_text())["val_loss"]) == epochs


COMMANDS: list[tuple[list[str], str]] = [
    (["check", "mine.py", "--layers"], "Linear"),
    (["evaluate", "mine.py", "--from", "runs/mine"], "radius_error"),
    (["predict", "mine.py", "--from", "runs/mine", "0.5,-0.2"], "0.5,-0.2: arm "),
    (["report", "runs/mine"], "wrote"),
    (["export", "mine.py", "--from", "runs/mine"], "wrote runs/mine/export"),
    (["profile", "mine.py", "--batches", "3"], "forward"),
    (["tasks", "mine.py", "--batches", "3"], "4 parameters that tasks share, mean of 3 batches"),
    (["tasks", "mine.py", "--batches", "2", "--affinity", "--on", "body.0.*"], "affinity"),
]


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(("arguments", "expected"), COMMANDS, ids=lambda value: " ".join(value[:1]))
def test_commands(run: Run, arguments: list[str], expected: str) -> None:
    code, out, err = run(*arguments)
    assert code == 0 and expected in out, err


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "cuda:77"], "--devices cuda:77: context: 'cuda:77' is not a PyTorch device"),
        (["--devices", "2"], "--devices 2: context: '2' is not a PyTorch device"),
        (["--engine", "mxnet"], 'engine="mxnet" runs Gluon nets, not a torch.nn.Module; leave engine out'),
        (["--precision", "bfloat"], "precision is 'bfloat' (did you mean \"bfloat16\"?)"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_changes(
    run: Run, arguments: list[str], message: str
) -> None:
    code, _, err = run("train", "mine.py", "--output", "runs/other", *arguments)
    assert code == 2 and message in err
    assert not Path("runs/other").exists()


def test_functions_get_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Also net(), where the device is that of the library that the file imports."""
    monkeypatch.chdir(tmp_path)
    run("new", "--torch", "mine.py")
    made = '    assert context == torch.device("cpu")\n    return SpiralNet().to(context)'
    code = Path("mine.py").read_text().replace("def net():", "def net(context):")
    Path("mine.py").write_text(code.replace("    return SpiralNet()", made))
    assert run("check", "mine.py", "--deterministic", "--devices", "cpu")[0] == 0
